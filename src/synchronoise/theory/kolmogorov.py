"""E f(ρ_t) for two tokens without Monte Carlo: the forward equation on the chain (THEORY §5)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from synchronoise.errors import RunError, UserError, did_you_mean
from synchronoise.kernel import Kernel, Real
from synchronoise.theory.chain import (
    LEVELS,
    LONGEST,
    Chain,
    build_chain,
    cut_off,
    first_spacing,
    reach_of,
    romberg,
    settled,
    time_mesh,
    uniform_weights,
)
from synchronoise.theory.two_point import PairLaw, check_beta, gaps, kernel_law

GROWTHS = (0.5, 0.25, 0.12, 0.06, 0.03)  # relative lengths of time steps tried in turn
ABSOLUTE = 1e-8  # accuracy aimed at, in units of the largest value of the observable
RELATIVE = 1e-6  # and in units of the mean itself, where the observable vanishes at synchrony
LATEST = 1e30  # times beyond are a slip of the pen
BUDGET = 6e6  # states times steps on the finest grid tried: about a second
PROMISED = 1e-6  # a larger error, in units of the largest value, is warned about
VANISHING = {"log_distance": 0.0, "energy": 2.0, "distance2": 2.0}  # like |x-y| to this power at synchrony
OBSERVABLES = ("overlap", "distance2", "log_distance", "energy", "exceedance", "quantiles")

Functional = Callable[[Chain, np.ndarray], np.ndarray]


class PairAccuracyWarning(UserWarning):
    """The two-token solver could not bring its own error estimate below the promised accuracy."""


@dataclass(frozen=True)
class PairExpectation:
    """E f(ρ_t): `mean` has one row for each of `times` (quantiles: one column for each level).

    `error`, of the same shape, is the solver's own estimate of the absolute error.
    """

    times: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def pair_expectation(
    law: Kernel | PairLaw,
    observable: str | Callable[[np.ndarray], np.ndarray],
    times: Sequence[float] | np.ndarray,
    rho0: Real | None = None,
    *,
    beta: Real = 1.0,
    threshold: Real = 0.9,
    levels: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
) -> PairExpectation:
    """E f(ρ_t) for the overlap ρ_t of two tokens, from ρ_0 = `rho0` or from two independent uniform tokens.

    `observable`: "overlap" ρ; "distance2" |x-y|² = 2(1-ρ); "log_distance" log|x-y|; "energy"
    (e^β - e^{βρ})/2, the energy of the pair (N exchangeable tokens have 1 - 1/N times it); "exceedance"
    1{ρ > threshold}; "quantiles" of ρ_t at `levels`; or a function of ρ, vectorised.  `law` is a `Kernel`
    (its field, no attention) or a `PairLaw`.  `times` >= 0 in any order.

    Warns `PairAccuracyWarning` where the error estimate exceeds 1e-6 of the observable's size.  Raises
    `UserError` for unknown names and values out of range, `RunError` where the error exceeds that size.  THEORY §5.

    >>> energy = pair_expectation(Kernel("relu", 5, 0.1, 0.1), "energy", [0.0, 2.0, 5.0])
    >>> energy.mean.round(6).tolist()
    [0.807322, 0.634579, 0.456142]
    """
    law = kernel_law(law) if isinstance(law, Kernel) else law
    when = np.asarray(times, dtype=float)
    if when.ndim != 1 or when.size == 0 or not ((when >= 0) & (when <= LATEST)).all():
        raise UserError("times", got=times, expected=f"numbers in [0, {LATEST:g}]", mend="e.g. --times 0.5,2,5")
    if rho0 is not None and not -1 <= rho0 <= 1:
        raise UserError("rho0", got=rho0, expected="a number in [-1, 1]", mend="it is <X_1, X_2> at time 0")
    if rho0 == 1 and observable == "log_distance":
        raise UserError("rho0", got=rho0, expected="a number below 1", mend="the log distance of equal tokens is -∞")
    functional, size = _functional(observable, float(beta), float(threshold), np.asarray(levels, dtype=float))
    ordered, place = np.unique(when, return_inverse=True)
    mean, error = _solve(
        law,
        functional,
        ordered,
        rho0,
        size,
        power=VANISHING.get(observable) if isinstance(observable, str) else None,
    )
    worst = float(np.max(error))
    if not (worst <= size or (observable == "log_distance" and np.isfinite(worst))):
        raise RunError(f"the law of two tokens is out of the solver's reach (error {worst:.1e}); use milder parameters")
    if not worst <= PROMISED * size:
        warnings.warn(
            f"E f(rho_t) is accurate to about {worst:.1e} only (dim={law.dim}, times up to {ordered[-1]:g})",
            PairAccuracyWarning,
            stacklevel=2,
        )
    if observable != "quantiles":
        mean, error = mean[:, 0], error[:, 0]
    if observable in ("energy", "distance2", "exceedance"):
        sign = -1.0 if observable == "energy" and beta < 0 else 1.0
        mean = sign * np.maximum(sign * mean, 0.0)  # rounding around 0, far below the error
    return PairExpectation(when, mean[place], error[place])


def _functional(
    observable: str | Callable[[np.ndarray], np.ndarray], beta: float, threshold: float, levels: np.ndarray
) -> tuple[Functional, float]:
    """What is read off a probability vector, and the size its accuracy is measured by."""

    def mean_of(f: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Functional:
        return lambda chain, p: np.atleast_1d(p @ f(*chain.gaps()))

    if callable(observable):
        size = float(np.max(np.abs(observable(np.linspace(-1, 1, 101)))))
        return mean_of(lambda epsilon, eta: observable(0.5 * (eta - epsilon))), size
    if observable == "overlap":
        return mean_of(lambda epsilon, eta: 0.5 * (eta - epsilon)), 1.0
    if observable == "distance2":
        return mean_of(lambda epsilon, eta: 2 * epsilon), 4.0
    if observable == "log_distance":
        # An end that keeps its tokens counts as its distance on the grid, so that the mean stays finite.
        return lambda chain, p: np.atleast_1d(p @ (0.5 * np.log(2 * gaps(chain.y)[0]))), 10.0
    if observable == "energy":
        check_beta(beta)
        return mean_of(lambda epsilon, eta: -0.5 * np.exp(beta) * np.expm1(-beta * epsilon)), abs(np.sinh(beta))
    if observable == "exceedance":
        if not -1 < threshold < 1:
            raise UserError("threshold", got=threshold, expected="a number in (-1, 1)", mend="P(ρ > threshold)")
        return lambda chain, p: _distribution(chain, p, np.array([-np.arctanh(threshold)])), 1.0
    if observable == "quantiles":
        if levels.size == 0 or not ((levels > 0) & (levels < 1)).all():
            raise UserError("levels", got=levels.tolist(), expected="numbers in (0, 1)", mend="e.g. 0.25,0.5,0.75")
        # ρ falls as y grows
        return lambda chain, p: -np.tanh(_inverse_distribution(chain, p, 1 - levels)), 1.0
    raise UserError("observable", got=observable, expected="a known one", mend=did_you_mean(observable, OBSERVABLES))


def _solve(
    law: PairLaw,
    functional: Functional,
    times: np.ndarray,
    rho0: Real | None,
    size: float,
    *,
    power: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Values at the increasing times: time steps refined on the coarsest grid, then Romberg in the spacing."""
    anchor = 0.0 if rho0 is None or abs(rho0) == 1 else -float(np.arctanh(rho0))
    coarsest, decaying = first_spacing(law.dim), bool(power)
    left, right = reach_of(law, anchor, float(times[-1]), power=power)
    # Every spacing ends at the same two nodes: what depends on them is smooth in the spacing.
    whole = np.ceil(np.array([left + anchor, right - anchor]) / coarsest) - 1e-6
    reach = (coarsest * whole[0] - anchor, coarsest * whole[1] + anchor)
    absolute, relative = ABSOLUTE * size, RELATIVE if decaying else np.inf

    def at(spacing: float, growth: float) -> np.ndarray:
        chain = build_chain(law, spacing=spacing, anchor=anchor, reach=reach, positive=False)
        return _read(chain, functional, times, _start(chain, law.dim, anchor, rho0), growth, decaying)

    values, growth = at(coarsest, GROWTHS[0]), GROWTHS[0]
    time_error = np.full_like(values, np.inf)
    for growth in GROWTHS[1:]:
        finer = at(coarsest, growth)
        time_error, values = np.abs(finer - values), finer
        if settled(time_error, values, absolute, relative):
            break
    work = (whole.sum() + 1) * time_mesh(times[times > 0], growth).size if times[-1] > 0 else 1.0
    levels = int(np.clip(np.log2(BUDGET / work) + 1, 3, LEVELS))
    values, error = romberg(
        lambda spacing: at(spacing, growth), coarsest, absolute, relative, first=values, levels=levels
    )
    lost = size * sum(cut_off(end, far - abs(anchor), times) for end, far in zip(law.ends, reach, strict=True))
    if power == 0:
        # log|x-y| of what went beyond the grid is off by how far it went.
        end, travelled = law.ends[0], abs(law.ends[0].exponent) * times
        spread = np.sqrt(end.variance * times) + 1.0
        lost = lost + travelled * ndtr((travelled + abs(anchor) - reach[0]) / spread)
    return values, error + time_error + (lost + size * np.exp(-2 * LONGEST))[:, None]


def _start(chain: Chain, dim: int, anchor: float, rho0: Real | None) -> np.ndarray:
    if rho0 is None:
        return uniform_weights(chain.y, dim)
    probabilities = np.zeros_like(chain.y)
    index = 0 if rho0 == 1 else -1 if rho0 == -1 else int(np.argmin(np.abs(chain.y - anchor)))
    probabilities[index] = 1.0
    return probabilities


def _read(
    chain: Chain, functional: Functional, times: np.ndarray, probabilities: np.ndarray, growth: float, decaying: bool
) -> np.ndarray:
    now, rate, value = 0.0, 0.0, functional(chain, probabilities)
    rows = {now: value}
    positive = times[times > 0]
    wanted = set(positive.tolist())
    for t in time_mesh(positive, growth) if positive.size else ():
        probabilities = chain.step(probabilities, t - now, rate)
        if decaying or t in wanted:
            before, value = value, functional(chain, probabilities)
            rows[t] = value
            if decaying:
                rate = _decay(abs(before[0]), abs(value[0])) / (t - now)
        now = t
    return np.array([rows[t] for t in times.tolist()])


def _decay(before: float, now: float) -> float:
    """log(now/before) where that is a true decay, 0 where it may be rounding."""
    return float(np.log(now / before)) if 0 < now < (1 - 1e-6) * before else 0.0


def _edges(chain: Chain, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cell edges and P(y < edge) on them."""
    half = 0.5 * (chain.y[1] - chain.y[0])
    return np.append(chain.y - half, chain.y[-1] + half), np.append(0.0, np.cumsum(probabilities))


def _distribution(chain: Chain, probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(y_t < y), cubic between the cell edges so that it is smooth in the spacing."""
    edges, cumulated = _edges(chain, probabilities)
    i = np.clip(np.searchsorted(edges, y) - 1, 1, edges.size - 3)
    return _cubic(cumulated, i, (y - edges[i]) / (edges[1] - edges[0]))


def _inverse_distribution(chain: Chain, probabilities: np.ndarray, levels: np.ndarray) -> np.ndarray:
    edges, cumulated = _edges(chain, probabilities)
    i = np.clip(np.searchsorted(cumulated, levels) - 1, 1, edges.size - 3)
    low, high = np.zeros(levels.size), np.ones(levels.size)
    for _ in range(50):
        middle = 0.5 * (low + high)
        below = _cubic(cumulated, i, middle) < levels
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return edges[i] + low * (edges[1] - edges[0])


def _cubic(values: np.ndarray, i: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The cubic through values[i-1..i+2] at i + x."""
    a, b, c, d = values[i - 1], values[i], values[i + 1], values[i + 2]
    return (
        -a * x * (x - 1) * (x - 2) / 6
        + b * (x + 1) * (x - 1) * (x - 2) / 2
        - c * (x + 1) * x * (x - 2) / 2
        + d * (x + 1) * x * (x - 1) / 6
    )
