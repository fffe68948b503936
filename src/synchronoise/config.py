"""A run as data: checked once, written to and read from TOML.

`RunConfig` holds every choice of a run under the paper's names (THEORY §1); the same object comes from a
file, from flags, or from both (flags win), and it is what a result stores to say what made it.
"""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from synchronoise.activations import activation
from synchronoise.errors import UserError, did_you_mean
from synchronoise.options import OPTIONS

STARTS = ("uniform", "clusters", "equiangular")
ATTENTIONS = ("softmax", "unnormalised", "l2", "sinkhorn", "causal", "multihead", "none")
NOISES = ("mlp", "field", "private", "vector", "values", "none")
WITH_DEVIATION = ("private", "vector", "values")
TOKEN_FILES = (".npy", ".csv")
# The compiled loop counts in 32 bits, and the square of this still fits float32.
LARGEST = 2**31 - 1


def _option(name: str, **limits: Any) -> Any:
    return Field(OPTIONS[name].default, description=OPTIONS[name].help, validate_default=True, **limits)


class RunConfig(BaseModel):
    """Every choice of a run of X' = LN(Y + √(T/L) G(Y)), Y = LN(X + (T/L) Attn(X)), L layers (THEORY §1).

    Names are the paper's: `dim` d, `tokens` N, `width` m (an integer, or "inf" for the Gaussian limit),
    `layers` L, `horizon` T, `sigma_u`, `sigma_w`, `beta`, `attention_scale` a (V = a I).  `start` is a name
    or a file of tokens.  Frozen; equal configurations make equal numbers.

    Raises `UserError` (through `configure`) for an unknown name, a wrong type or a value out of range.

    >>> configure({"dim": 5, "width": "inf"}).width
    'inf'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    activation: str = _option("activation")
    dim: int = _option("dim", ge=2)
    sigma_u: float = _option("sigma_u", ge=0)
    sigma_w: float = _option("sigma_w", ge=0)
    beta: float = _option("beta")
    attention: str = _option("attention")
    attention_scale: float = _option("attention_scale")
    method: Literal["auto", "dense", "harmonic"] = _option("method")
    heads: int = _option("heads", ge=1)
    redraw: int = _option("redraw", ge=0)
    noise: str = _option("noise")
    route: Literal["auto", "drawn", "exact", "cholesky", "features", "harmonics"] = _option("route")
    tokens: int = _option("tokens", ge=1)
    width: int | Literal["inf"] = _option("width")
    layers: int = _option("layers", ge=1)
    horizon: float = _option("horizon", gt=0)
    start: str = _option("start")
    clusters: int = _option("clusters", ge=1)
    spread: float = _option("spread", ge=0)
    overlap: float = _option("overlap", ge=-1, le=1)
    replicas: int = _option("replicas", ge=1)
    seed: int = _option("seed", ge=0, lt=2**32)
    dtype: Literal["float32", "float64"] = _option("dtype")
    every: int = _option("every", ge=1)
    save_tokens: bool = _option("save_tokens")
    chunk: int = _option("chunk", ge=0)

    @field_validator("width", mode="before")
    @classmethod
    def _width(cls, value: object) -> object:
        """A flag is text and TOML knows `inf` as a number: both mean what they say."""
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if value == float("inf"):
            return "inf"
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError("a width below 1")
        return value

    @field_validator("activation")
    @classmethod
    def _activation(cls, value: str) -> str:
        activation(value)
        for number in re.findall(r"(?:^|(?<=:))[-+.\d][^*:]*", value):  # 2*sin:4.6
            _small_enough("activation", value, float(number))
        return value

    @field_validator("attention")
    @classmethod
    def _attention(cls, value: str) -> str:
        return _known("attention", value, ATTENTIONS)

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: str) -> str:
        noise_terms(value)
        return value

    @field_validator("start")
    @classmethod
    def _start(cls, value: str) -> str:
        if not value.endswith(TOKEN_FILES):
            return _known("start", value, STARTS)
        if value != value.encode(errors="replace").decode():
            raise UserError("start", got=value, expected="a file name in UTF-8", mend="rename the file")
        return value

    @property
    def step(self) -> float:
        """Δt = T/L, the time one layer takes."""
        return self.horizon / self.layers


def _known(what: str, name: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise UserError(f"unknown {what} {name!r}", mend=did_you_mean(name, names))
    return name


def _small_enough(what: str, got: object, number: int | float) -> None:
    if LARGEST < abs(number) < math.inf:
        raise UserError(what, got=got, expected=f"no number beyond {LARGEST}", mend="use a smaller one")


def noise_terms(text: str) -> list[tuple[str, float]]:
    """The noises of a sum and the deviation of each (1 where none is given; an mlp or a field has its own).

    Raises `UserError` for an unknown name or a deviation that is none.

    >>> noise_terms("mlp+private:0.3")
    [('mlp', 1.0), ('private', 0.3)]
    """
    terms = []
    for term in text.split("+"):
        name, colon, number = term.partition(":")
        _known("noise", name, NOISES)
        try:
            sigma = float(number) if colon else 1.0
        except ValueError:
            sigma = math.nan
        _small_enough(f"noise {term!r}", number, sigma)
        if not (math.isfinite(sigma) and sigma >= 0):
            raise UserError(f"noise {term!r}", got=number, expected="a finite number >= 0", mend=f"e.g. {name}:0.3")
        if colon and name not in WITH_DEVIATION:
            raise UserError(f"noise {name!r} has no deviation", mend="--sigma-u and --sigma-w are those of its biases")
        terms.append((name, sigma))
    if len(terms) > 1 and "none" in dict(terms):
        raise UserError("noise 'none' in a sum", mend="leave it out")
    return terms


def configure(values: Mapping[str, object], *, source: str = "") -> RunConfig:
    """The checked configuration of `values`, defaults elsewhere; `source` is their file's name, for errors.

    Raises `UserError`, one line, for the first thing that is wrong.

    >>> configure({"dims": 3})
    Traceback (most recent call last):
    synchronoise.errors.UserError: unknown key 'dims'; did you mean 'dim'? known: ...
    """
    where = f" in {source}" if source else ""
    for key in values:
        if key not in OPTIONS:
            raise UserError(f"unknown key {key!r}{where}", mend=did_you_mean(key, OPTIONS))
    for name, value in values.items():
        # `seed` has a bound of its own, and 10^400 is no float
        if name != "seed" and isinstance(value, int | float):
            _small_enough(f"{name}{where}", value, value)
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as failure:
        problem = failure.errors()[0]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, UserError):
            raise UserError(f"{cause}{where}") from None
        name = str(problem["loc"][0])
        option = OPTIONS[name]
        raise UserError(
            f"{name}{where}",
            got=values[name],
            expected=option.expects,
            mend=f"for example {name} = {option.default}",
        ) from None


def refuse_idle(typed: Iterable[str], config: RunConfig, *, energy: bool = True) -> None:
    """Refuse an option that was asked for by name and changes nothing; `energy`: whether β is that of an energy too.

    >>> refuse_idle(["heads"], configure({"heads": 2}))
    Traceback (most recent call last):
    synchronoise.errors.UserError: --heads changes nothing without multihead attention; leave it out
    """
    noises, attention = dict(noise_terms(config.noise)), config.attention != "none"
    acts = attention and config.attention_scale != 0
    layer = bool({"mlp", "field"} & noises.keys())
    needs = {
        "attention_scale": ("attention", attention),
        **dict.fromkeys(("method", "redraw"), ("attention", acts)),
        **dict.fromkeys(("activation", "sigma_u", "sigma_w", "route"), ("an mlp", layer)),
        **dict.fromkeys(("clusters", "spread"), ("the start clusters", config.start == "clusters")),
        "overlap": ("the start equiangular", config.start == "equiangular"),
        "width": ("an mlp", "mlp" in noises),
        "heads": ("multihead attention", acts and config.attention == "multihead"),
        "beta": ("attention", energy or acts or "values" in noises),
    }
    for name in typed:
        what, there = needs.get(name, ("", True))
        if not there:
            raise UserError(f"--{name.replace('_', '-')} changes nothing without {what}", mend="leave it out")


def read_toml(path: str | Path) -> dict[str, object]:
    """The table of a TOML file, unchecked (`configure` checks it).

    Raises `UserError` when the file is missing, unreadable, not text, or not TOML.

    >>> read_toml("missing.toml")
    Traceback (most recent call last):
    synchronoise.errors.UserError: cannot read missing.toml: No such file or directory; ...
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as failure:
        raise UserError(f"cannot read {path}: {failure.strerror}", mend="`synchronoise init` writes one") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file", mend="`synchronoise init` writes a template") from None
    except (ValueError, RecursionError) as failure:  # also a number of 5000 digits, and lists 1000 deep
        raise UserError(f"{path} is not TOML: {failure}", mend='a line reads key = value, text in "quotes"') from None


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML, each key under a comment that says what it is; `read_toml` reads it back.

    >>> to_toml(configure({})).splitlines()[:2]
    ['# activation φ of the MLP: relu, tanh, gelu, ..., or sin:4.6 (a name)', 'activation = "relu"']
    """
    return "\n".join(
        f"# {OPTIONS[name].help} ({OPTIONS[name].expects})\n{tomli_w.dumps({name: value})}"
        for name, value in config.model_dump().items()
    )


def command(config: RunConfig) -> str:
    """The command line of a configuration: what differs from the defaults, as flags.

    >>> command(configure({"dim": 5, "save_tokens": True, "start": "my tokens.npy"}))
    "synchronoise simulate --dim 5 --start 'my tokens.npy' --save-tokens"
    """
    defaults = RunConfig().model_dump()
    words = ["synchronoise", "simulate"]
    for name, value in config.model_dump().items():
        if value != defaults[name]:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(str(value))
    return shlex.join(words)
