"""What the commands share: the application, the flags, and how a result is printed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Annotated, Any

from cyclopts import App, Parameter, Token

from synchronoise.errors import UserError
from synchronoise.options import OPTIONS

app = App(
    name="synchronoise",
    help="Stochastic scaling limits of deep transformers, and their synchronization by noise.",
    help_format="plaintext",
    version=lambda: version("synchronoise"),
    suppress_keyboard_interrupt=False,
)
app.register_install_completion_command()


def flag(name: str, default: str = "") -> Parameter:
    """The flag of an option; left out, its value is None and the default of the configuration, or this one, holds."""
    option = OPTIONS[name]
    return Parameter(
        help=f"{option.help} ({option.expects})",
        show_default=default or str(option.default),
        converter=_whole if type(option.default) is int else None,
    )


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """An integer as it is written; the parser alone would cut 2.5 down to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"got {tokens[0].value!r}, expected an integer.") from None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LawFlags:
    """What the law of the tokens depends on, apart from their number and start."""

    activation: Annotated[str | None, flag("activation")] = None
    dim: Annotated[int | None, flag("dim")] = None
    sigma_u: Annotated[float | None, flag("sigma_u")] = None
    sigma_w: Annotated[float | None, flag("sigma_w")] = None
    beta: Annotated[float | None, flag("beta")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SetupFlags(LawFlags):
    """What a simulation depends on, apart from its noise."""

    attention: Annotated[str | None, flag("attention")] = None
    attention_scale: Annotated[float | None, flag("attention_scale")] = None
    method: Annotated[str | None, flag("method")] = None
    heads: Annotated[int | None, flag("heads")] = None
    redraw: Annotated[int | None, flag("redraw")] = None
    route: Annotated[str | None, flag("route")] = None
    tokens: Annotated[int | None, flag("tokens")] = None
    width: Annotated[str | None, flag("width")] = None
    layers: Annotated[int | None, flag("layers")] = None
    horizon: Annotated[float | None, flag("horizon")] = None
    start: Annotated[str | None, flag("start")] = None
    clusters: Annotated[int | None, flag("clusters")] = None
    spread: Annotated[float | None, flag("spread")] = None
    overlap: Annotated[float | None, flag("overlap")] = None
    replicas: Annotated[int | None, flag("replicas")] = None
    seed: Annotated[int | None, flag("seed")] = None
    dtype: Annotated[str | None, flag("dtype")] = None
    every: Annotated[int | None, flag("every")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WatchFlags(SetupFlags):
    """What a simulation depends on."""

    noise: Annotated[str | None, flag("noise")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunFlags(WatchFlags):
    """What a simulation depends on, and what is kept of it."""

    save_tokens: Annotated[bool | None, flag("save_tokens")] = None
    chunk: Annotated[int | None, flag("chunk")] = None


Json = Annotated[bool, Parameter(name="--json", help="One JSON object on stdout.", negative=())]
Overwrite = Annotated[bool, Parameter(help="Replace an existing output.", negative=())]


def given(flags: LawFlags) -> dict[str, object]:
    """The options that were typed, and only those."""
    return {name: value for name, value in asdict(flags).items() if value is not None}


def report(values: Mapping[str, Any], as_json: bool) -> None:
    """Print a result: one JSON object, or a line for each of its entries, to ten digits."""
    if as_json:
        print(json.dumps(values, allow_nan=False))
        return
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {value if isinstance(value, str) else json.dumps(_short(value))}")


def _short(value: Any) -> Any:
    """The same value without digits that are rounding."""
    if isinstance(value, Mapping):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def allow_dtype(dtype: str) -> None:
    """Switch JAX to 64 bits for a float64 run: the command owns its process, the library never does it.

    `JAX_ENABLE_X64=0` in the environment is respected; a float64 run is then refused.
    """
    if dtype == "float64" and "JAX_ENABLE_X64" not in os.environ:
        import jax

        jax.config.update("jax_enable_x64", True)


def numbers(name: str, text: str) -> list[float]:
    """The comma-separated numbers of a flag."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(name, got=text, expected="comma-separated numbers", mend=f"e.g. --{name} 0.5,2,5") from None
