"""A chain on a grid that carries the law of the overlap, and its exponential (THEORY §5).

The diffusion y of `two_point` becomes a chain on a uniform grid; rows of its generator Q sum to zero and the error
is a series in h².  exp(tQ) is a product of L-stable Padé (4,5) steps, each three tridiagonal solves, on a time mesh
that starts far below the first time and grows geometrically: the semigroup smooths, so the steps may grow with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np
from scipy.linalg import get_lapack_funcs

from synchronoise.theory.two_point import End, PairLaw, gaps

LEVELS = 6  # spacings tried in turn, each half the one before
LOST = 1e-12  # probability that may sit beyond the ends of the grid
ENTERED = ("entrance", "reflecting")  # ends that are left at once
LONGEST = 290.0  # largest |y|: 1 - |ρ| is about 1e-251 there


def _pade_poles() -> tuple[np.ndarray, np.ndarray]:
    """Poles p_j and residues c_j of the (4,5) Padé approximant of e^z = Σ_j c_j / (z - p_j)."""
    m, n = 4, 5

    def coefficients(a: int, b: int, sign: int) -> list[float]:
        return [
            sign**j * factorial(a + b - j) * factorial(a) / (factorial(a + b) * factorial(j) * factorial(a - j))
            for j in range(a, -1, -1)
        ]

    numerator, denominator = np.poly1d(coefficients(m, n, 1)), np.poly1d(coefficients(n, m, -1))
    poles = denominator.roots
    for _ in range(3):  # Newton, since thousands of steps repeat the error
        poles = poles - denominator(poles) / denominator.deriv()(poles)
    residues = numerator(poles) / denominator.deriv()(poles)
    residues = residues / np.sum(-residues / poles)  # exactly 1 at z = 0: no probability is lost
    upper = np.imag(poles) > -1e-9  # one of each conjugate pair, and the real pole
    return poles[upper], residues[upper]


(_solve_real,) = get_lapack_funcs(("gtsv",), dtype="d")
(_solve_complex,) = get_lapack_funcs(("gtsv",), dtype="D")
POLES, RESIDUES = _pade_poles()


@dataclass(frozen=True)
class Chain:
    """States y on a uniform grid, and the rates up (i -> i+1) and down (i -> i-1).

    An end that tokens never leave once they are there (any but an entrance) is a state of its own, the first
    or the last one: it keeps what reaches it, and stands for ρ = 1 or ρ = -1 exactly.  The last state
    before an entrance stands for everything beyond, which is in equilibrium with it.

    >>> import numpy as np
    >>> from synchronoise.kernel import Kernel
    >>> from synchronoise.theory.two_point import kernel_law
    >>> chain = build_chain(kernel_law(Kernel("relu", 5)), spacing=0.1, anchor=0.0, reach=(10.0, 10.0))
    >>> bool((chain.up >= 0).all()), float(chain.up[0]), float(chain.gaps()[0][0])
    (True, 0.0, 0.0)
    """

    y: np.ndarray
    up: np.ndarray
    down: np.ndarray
    kept: tuple[bool, bool]

    def gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """1 - ρ and 1 + ρ of every state."""
        y = self.y.copy()
        for index, kept in zip((0, -1), self.kept, strict=True):
            if kept:
                y[index] *= np.inf
        return gaps(y)

    def moving(self) -> slice:
        """The states other than the ends that keep what reaches them."""
        return slice(1 if self.kept[0] else 0, self.y.size - (1 if self.kept[1] else 0))

    def step(self, probabilities: np.ndarray, tau: float, rate: float = 0.0) -> np.ndarray:
        """p e^{τQ} = e^{rτ} p e^{τ(Q-r)}, by the Padé approximant at the second form, r = `rate`.

        It is accurate near 0: for a mean that decays like e^{rt} the second form keeps its digits however small it is.
        """
        diagonal = -tau * (self.up + self.down + rate)
        lower, upper = tau * self.up[:-1], tau * self.down[1:]  # of the transposed generator
        total = np.zeros_like(probabilities)
        for pole, residue in zip(POLES, RESIDUES, strict=True):
            if abs(pole.imag) < 1e-9:
                solution = _solve_real(lower, diagonal - pole.real, upper, probabilities)[3]
                total += residue.real * solution
            else:
                solution = _solve_complex(lower + 0j, diagonal - pole, upper + 0j, probabilities + 0j)[3]
                total += 2 * (residue * solution).real
        return np.exp(rate * tau) * total


def build_chain(
    law: PairLaw, *, spacing: float, anchor: float, reach: tuple[float, float], positive: bool = True
) -> Chain:
    """The chain of a law on the grid anchor + spacing * integers that covers [-reach_0, reach_1].

    `anchor` is a node, so that a start at a given ρ sits exactly on the grid.  `positive` rates are exponentially
    fitted: never negative, a birth-death chain.  Otherwise they are central differences, which may be negative
    where the drift dominates but add no diffusion of their own there: much more accurate for E f(ρ_t) in high d.
    """
    first, last = np.floor((-reach[0] - anchor) / spacing), np.ceil((reach[1] - anchor) / spacing)
    y = anchor + spacing * np.arange(first, last + 1)
    drift, variance = law.drift_and_variance(y)
    rate = 0.5 * variance / spacing**2
    tilt = 2 * spacing * drift / variance
    up, down = (rate * _bernoulli(x) if positive else rate * (1 - 0.5 * x) for x in (-tilt, tilt))
    kept = tuple(end.kind not in ENTERED for end in law.ends)
    up[-1] = down[0] = 0.0
    tail = tail_share(law.dim, spacing)
    up[0] *= 0.0 if kept[0] else tail
    down[-1] *= 0.0 if kept[1] else tail
    return Chain(y, up, down, (kept[0], kept[1]))


def first_spacing(dim: int) -> float:
    """The coarsest spacing worth trying: the law of ρ for uniform tokens has width 1/√d.

    >>> first_spacing(5), first_spacing(10_000)
    (0.08, 0.006)
    """
    return min(0.08, 0.6 / float(np.sqrt(dim)))


def tail_share(dim: int, spacing: float) -> float:
    """The share of the outermost cell in all the mass from there outwards, 1 - e^{-(d-1)h}.

    Both the uniform law and the equilibrium next to an entrance have density e^{-(d-1)|y|} in y.
    """
    return -float(np.expm1(-(dim - 1) * spacing))


def _bernoulli(x: np.ndarray) -> np.ndarray:
    """x/(e^x - 1): exact rates for constant coefficients."""
    small = np.abs(x) < 1e-12
    # The clip only avoids an overflow where the value is 0.
    return np.where(small, 1.0, x / np.expm1(np.where(small, 1.0, np.minimum(x, 700.0))))


def reach_of(
    law: PairLaw, start: float = 0.0, horizon: float | None = None, *, power: float | None = None
) -> tuple[float, float]:
    """How far the grid must go on both sides of y = 0.

    Without a `horizon`, so far that at most `LOST` comes back from beyond, or stays there.  With one, as far as
    paths get that are back in the middle at the horizon, however rare: those carry a decaying mean.  With
    `power` it also holds the paths that carry E|x-y|^power (0: the typical ones).
    """
    left, right = (_reach(end, abs(start), horizon, power) for end in law.ends)
    return max(left, 2.0 - start), max(right, 2.0 + start)


def _reach(end: End, start: float, horizon: float | None, power: float | None) -> float:
    if end.kind in ENTERED:
        # The tail beyond is summed into the last state: what is lost is f's variation there, 1 - |ρ| = 1e-9.
        return min(10.5 + 0.5 * max(0.0, -np.log(end.separation)), LONGEST)
    exponent, variance = abs(end.exponent), end.variance
    if horizon is not None:
        # Paths that return spread like driftless ones; weighted with |x-y|^power they drift `power` variances slower.
        drift = 0.0 if power is None else abs(end.exponent + power * variance)
        return min(max(start, 18.0) + 7 * np.sqrt(variance * horizon) + drift * horizon, LONGEST)
    # The chance to return from beyond an attracting end, and the mass beyond a repelling one, fall like
    # e^{-2 |exponent| / variance * distance}.
    return min(max(18.0, -np.log(LOST) * variance / (2 * exponent)), LONGEST) if exponent > 0 else LONGEST


def cut_off(end: End, reach: float, times: np.ndarray) -> np.ndarray:
    """The chance that a path goes beyond `reach` at an end and is back in time: what the grid leaves out.

    There and back within t has the weight e^{-2 reach²/(st) - μ²t/(2s)}, largest at t = 2 reach/|μ|.

    >>> import numpy as np
    >>> bool(np.isclose(cut_off(End("attracting", -0.1, 1.0), 290.0, np.array([1e9]))[0], np.exp(-58.0), atol=0))
    True
    """
    if end.kind in ENTERED:
        return np.zeros_like(times)
    exponent, variance = abs(end.exponent), end.variance
    longest = 2 * reach / exponent if exponent > 0 else np.inf
    within = np.minimum(times, longest)
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(-2 * reach * (reach / (variance * within)) - exponent**2 * within / (2 * variance))


def uniform_weights(y: np.ndarray, dim: int) -> np.ndarray:
    """The law of y for two independent uniform tokens, on the grid of a chain.

    The density of ρ is (1-ρ²)^{(d-3)/2}, and dρ = (1-ρ²) dy up to sign.
    """
    weights = np.cosh(y) ** (1.0 - dim)
    weights[[0, -1]] /= tail_share(dim, y[1] - y[0])
    return weights / weights.sum()


def romberg(
    at: Callable[[float], np.ndarray],
    spacing: float,
    absolute: float,
    relative: float = np.inf,
    first: np.ndarray | None = None,
    levels: int = LEVELS,
) -> tuple[np.ndarray, np.ndarray]:
    """The limit of at(h) as h -> 0 for an error series in h², and an estimate of what is left.

    h starts at `spacing` (where the value may be known already, `first`) and halves until the extrapolation
    moves by at most `absolute` and at most `relative` times its size, or `levels` spacings are used up.

    >>> import numpy as np
    >>> value, error = romberg(lambda h: np.array([1 + h**2 - h**4]), 0.1, 1e-12)
    >>> round(float(value[0]), 12)
    1.0
    """
    row = [at(spacing) if first is None else first]
    error = np.full_like(row[0], np.inf)
    for level in range(1, levels):
        fresh = [at(spacing / 2**level)]
        for k, coarse in enumerate(row, start=1):
            fresh.append(fresh[-1] + (fresh[-1] - coarse) / (4**k - 1))
        error, row = np.abs(fresh[-1] - row[-1]), fresh
        if settled(error, row[-1], absolute, relative):
            break
    return row[-1], error


def settled(error: np.ndarray, values: np.ndarray, absolute: float, relative: float) -> bool:
    """Whether every error is at most `absolute` and, down to 1e-42 of that, at most `relative` times its value."""
    if np.isinf(relative):
        return bool((error <= absolute).all())
    return bool((error <= np.clip(relative * np.abs(values), 1e-42 * absolute, absolute)).all())


def time_mesh(times: np.ndarray, growth: float) -> np.ndarray:
    """Steps to take from 0 to each of the increasing times: geometric from 1e-6 of the first one."""
    first = 1e-6 * times[0]
    count = int(np.ceil(np.log(times[-1] / first) / np.log1p(growth)))
    points = first * (times[-1] / first) ** (np.arange(count + 1) / count)
    return np.unique(np.concatenate([points[:-1], times]))
