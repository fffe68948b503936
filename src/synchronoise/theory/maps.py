"""Phase diagrams: exponents, the sharp rate and the verdict over two parameters, zero lines solved (THEORY §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from synchronoise.activations import activation, scaled
from synchronoise.errors import UserError, did_you_mean
from synchronoise.kernel import Kernel
from synchronoise.progress import Progress
from synchronoise.theory.assumption_2 import proven_epsilon
from synchronoise.theory.exponents import lambda_1, lambda_bar, lambda_bar_prime
from synchronoise.theory.rates import sharp_rate
from synchronoise.theory.two_point import PairAttention, PairLaw, field_noise

RANGES = {
    "dim": (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128),
    "sigma_u": np.linspace(0.0, 1.0, 15),
    "sigma_w": np.linspace(0.0, 0.5, 15),
    "gain": np.geomspace(0.25, 4.0, 15),
    "attention_scale": np.linspace(-1.0, 1.0, 15),
    "beta": np.geomspace(0.1, 6.0, 15),
}
VERDICTS = (
    "tokens stay apart",
    "tokens merge up to sign",
    "tokens merge, Theorem 1.4 silent",
    "tokens merge, Theorem 1.4 applies",
)
LONGEST_AXIS = 200  # values of an axis
ACCURACY = 1e-5  # of the sharp rate: finer than any figure
FIELDS = {
    "lambda_1": "rate of log-distances, λ_1 - pull of the attention",
    "lambda_bar": "rate of close squared distances, λ̄ - 2 pull",
    "lambda_bar_prime": "λ̄' of Theorem 1.4 (noise alone)",
    "sharp_rate": "rate of the mean pair energy of two tokens",
    "verdict": "0..3: " + "; ".join(VERDICTS),
}


@dataclass(frozen=True)
class PhaseMap:
    """Values over a grid: `fields[name][j, i]` at x[i], y[j]; `zeros[name]` is an array (points, 2) of (x, y).

    `fields` are those of `FIELDS`; `zeros` holds the solved zero lines of "lambda_1" and "lambda_bar".
    """

    x_name: str
    y_name: str
    x: np.ndarray
    y: np.ndarray
    fields: dict[str, np.ndarray]
    zeros: dict[str, np.ndarray]
    fixed: dict[str, Any]

    def dataset(self) -> Any:
        """The map as an `xarray.Dataset`, dims (y, x) under the parameters' names."""
        import xarray as xr

        variables = {
            name: ((self.y_name, self.x_name), values, {"long_name": FIELDS[name], "reference": "THEORY §6"})
            for name, values in self.fields.items()
        }
        for name, points in self.zeros.items():
            note = {"long_name": f"solved points ({self.x_name}, {self.y_name}) where {name} = 0"}
            variables[f"{name}_zero"] = ((f"{name}_point", "coordinate"), points, note)
        return xr.Dataset(variables, coords={self.x_name: self.x, self.y_name: self.y})


def axis(spec: str) -> tuple[str, np.ndarray]:
    """A parameter's name and its values, from "name" (its default range) or "name=low:high:count".

    Raises `UserError` for an unknown name or a range that is none.

    >>> axis("sigma_u=0:1:3")
    ('sigma_u', array([0. , 0.5, 1. ]))
    """
    name, equals, text = spec.partition("=")
    name = name.strip().replace("-", "_")
    if name not in RANGES:
        raise UserError(f"unknown axis {name!r} of a map", mend=did_you_mean(name, RANGES))
    if not equals:
        return name, np.array(RANGES[name], dtype=float)
    try:
        low, high, count = text.split(":")
        values = np.linspace(float(low), float(high), min(int(count), LONGEST_AXIS + 1))
    except ValueError:
        values = np.zeros(0)
    if not 2 <= values.size <= LONGEST_AXIS or not np.isfinite(values).all() or values[0] >= values[-1]:
        expected = f"low:high:count, 2 <= count <= {LONGEST_AXIS}"
        raise UserError(f"axis {name}", got=text, expected=expected, mend=f"e.g. {name}=0.1:1:11")
    return name, np.unique(np.round(values)) if name == "dim" else values


def phase_map(x: str, y: str, *, progress: bool = False, **fixed: Any) -> PhaseMap:
    """λ_1, λ̄, λ̄', the sharp rate and the verdict over two of dim, sigma_u, sigma_w, gain, attention_scale, beta.

    `x` and `y` are axes as in `axis`; `fixed` sets the others (activation, dim, sigma_u, sigma_w, gain, beta,
    attention, attention_scale; defaults as in `theory_report`).  The gain g replaces φ by g φ.  Attention shifts
    λ_1 by its pull at synchrony and λ̄ by twice that.  Zero lines are solved along every grid line, not
    interpolated.  `progress` counts rows on stderr.  Raises `UserError` for equal axes or an axis without effect.

    >>> phase = phase_map("sigma_u=0:0.5:3", "sigma_w=0:0.2:2", activation="relu", dim=8)
    >>> phase.fields["verdict"].tolist()
    [[2, 3, 3], [3, 3, 3]]
    """
    (x_name, xs), (y_name, ys) = axis(x), axis(y)
    law = {"activation": "relu", "dim": 64, "sigma_u": 0.0, "sigma_w": 0.0, "gain": 1.0, "beta": 1.0}
    law |= {"attention": "none", "attention_scale": 1.0, **fixed}
    if x_name == y_name:
        raise UserError(f"both axes of the map are {x_name}", mend="choose two parameters")
    if "attention_scale" in (x_name, y_name) and law["attention"] == "none":
        raise UserError("an axis attention_scale without attention", mend="add --attention softmax")

    def at(a: float, b: float) -> dict[str, Any]:
        return law | {x_name: a, y_name: b}

    rows = []
    with Progress("phase map", ys.size, "row", shown=progress) as bar:
        for b in ys:
            rows.append([_point(**at(float(a), float(b))) for a in xs])
            bar.advance(1)
    fields = {name: np.array([[point[name] for point in row] for row in rows]) for name in FIELDS}
    zeros = {}
    for name in ("lambda_1", "lambda_bar"):
        along_x = [
            (root, b)
            for j, b in enumerate(ys)
            for root in _roots(name, x_name, xs, fields[name][j], at, lambda t, b=b: (t, b))
        ]
        along_y = [
            (a, root)
            for i, a in enumerate(xs)
            for root in _roots(name, y_name, ys, fields[name][:, i], at, lambda t, a=a: (a, t))
        ]
        zeros[name] = np.array(sorted(along_x + along_y), dtype=float).reshape(-1, 2)
    return PhaseMap(x_name, y_name, xs, ys, fields, zeros, {k: v for k, v in law.items() if k not in (x_name, y_name)})


def _law(law: dict[str, Any]) -> tuple[Kernel, PairAttention]:
    act = scaled(activation(law["activation"]), law["gain"])
    kernel = Kernel(act, int(law["dim"]), law["sigma_u"], law["sigma_w"])
    return kernel, PairAttention(law["attention"], float(law["attention_scale"]), float(law["beta"]))


def _exponents(**law: Any) -> dict[str, float]:
    kernel, attention = _law(law)
    pull = float(attention.pull(np.zeros(1))[0])
    return {"lambda_1": lambda_1(kernel) - pull, "lambda_bar": lambda_bar(kernel) - 2 * pull}


def _point(**law: Any) -> dict[str, float]:
    kernel, attention = _law(law)
    pair = PairLaw(kernel.dim, (field_noise(kernel),), attention)
    bound = lambda_bar_prime(kernel, attention.beta)
    epsilon = proven_epsilon(attention, attention.beta)
    same, opposite = pair.ends
    if same.kind != "attracting":
        verdict = 0
    elif opposite.kind == "attracting":
        verdict = 1
    else:
        verdict = 3 if epsilon is not None and bound + epsilon < 0 else 2
    return {
        **_exponents(**law),
        "lambda_bar_prime": bound,
        "sharp_rate": sharp_rate(pair, ACCURACY).rate,
        "verdict": verdict,
    }


def _roots(
    name: str,
    parameter: str,
    values: np.ndarray,
    known: np.ndarray,
    at: Callable[[float, float], dict[str, Any]],
    point: Callable[[float], tuple[float, float]],
) -> Iterator[float]:
    """The zeros of an exponent along one grid line; a dimension is an integer, so none is solved along it."""
    if parameter == "dim":
        return
    from scipy.optimize import brentq

    for k in np.flatnonzero(np.sign(known[1:]) != np.sign(known[:-1])):
        low, high = float(values[k]), float(values[k + 1])
        if known[k] * known[k + 1] < 0:
            yield float(brentq(lambda t: _exponents(**at(*point(t)))[name], low, high, xtol=1e-12))  # pyright: ignore
        elif known[k] == 0:
            yield low
