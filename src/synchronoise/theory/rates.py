"""Where the overlap of two tokens goes and how fast: sharp rate, absorption, stationary law (THEORY §6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh_tridiagonal

from synchronoise.errors import UserError
from synchronoise.kernel import Real
from synchronoise.theory.chain import ENTERED, Chain, build_chain, first_spacing, reach_of, romberg, uniform_weights
from synchronoise.theory.two_point import PairLaw

ACCURACY = 1e-9  # relative change at which refinement stops
LONG = 80.0  # reach in y beyond which an eigenvalue still below the essential edge is given up


@dataclass(frozen=True)
class SharpRate:
    """The exponential rate of the mean pair energy, E[e^β - e^{βρ}] ~ e^{rate t}, and what decides it.

    `part`: "essential" (rate λ̄), "essential with power" (rate -μ²/(2s), times t^{-3/2}, or t^{-1/2} at p* = 1),
    "isolated" (an eigenvalue of the two-point generator, from a trap near ρ = -1 or low d) or "none" (the
    energy does not decay exponentially, rate 0).
    `isolated` is None unless it decides; `essential` is the rate without it.
    """

    rate: float
    part: str
    essential: float | None = None
    isolated: float | None = None


def sharp_rate(law: PairLaw, accuracy: float = ACCURACY) -> SharpRate:
    """The larger of the essential rate and an isolated eigenvalue of the two-point generator (THEORY §6).

    Near synchrony log|x-y| has drift μ and variance s, p* = -μ/(2s): the essential rate is λ̄ = 2μ + 2s where
    p* >= 1 and -μ²/(2s) below.  The mean energy decays only if ρ = 1 attracts and ρ = -1 does not.
    `accuracy` is that of the eigenvalue, relative to the essential edge.

    The rate is that of a start away from ρ = -1.  Where ρ = -1 repels (an odd field with attention) pairs
    that begin close to it leave late: from uniform tokens the energy then decays no faster than
    e^{-((d-1)μ' - (d-1)² s'/2) t} if μ' > (d-1) s', μ' and s' the drift and variance rate of the log distance there.

    >>> from synchronoise.kernel import Kernel
    >>> from synchronoise.theory.two_point import kernel_law
    >>> rate = sharp_rate(kernel_law(Kernel("relu", 5)))
    >>> round(rate.rate, 9), rate.part
    (-0.025, 'essential with power')
    """
    same, opposite = law.ends
    if same.kind != "attracting" or opposite.kind in ("attracting", "neutral"):
        return SharpRate(0.0, "none")
    mu, s = same.exponent, same.variance
    critical = -mu / (2 * s)
    edge = -(mu**2) / (2 * s)
    essential = 2 * mu + 2 * s if critical >= 1 else edge
    if opposite.kind == "repelling":
        # Tokens may also linger near ρ = -1.
        edge = max(edge, -(opposite.exponent**2) / (2 * opposite.variance))
        essential = max(essential, edge)
    isolated = _isolated_eigenvalue(law, edge, accuracy * abs(edge))
    if isolated is not None and isolated > essential:
        return SharpRate(isolated, "isolated", essential, isolated)
    return SharpRate(essential, "essential" if essential > edge else "essential with power", essential)


def _isolated_eigenvalue(law: PairLaw, edge: float, tolerance: float) -> float | None:
    """The top eigenvalue of the generator killed at ρ = 1, if it lies above the essential spectrum (-∞, edge].

    Cutting the line at y = -reach only lowers it (a Dirichlet condition), so the cut moves out until it no longer
    matters; an eigenvalue that does not pass the edge by then is none, or within 1e-3 of it.
    """

    def top(spacing: float, reach: float) -> float:
        chain = build_chain(law, spacing=spacing, anchor=0.0, reach=(reach, right))
        return _top_eigenvalue(chain)

    right, coarsest = reach_of(law)[1], first_spacing(law.dim)
    reach, value = 20.0, top(coarsest, 20.0)
    while reach < (LONG if value <= edge else 4 * LONG):
        reach *= 2
        wider = top(coarsest, reach)
        settled, value = wider - value <= tolerance, wider
        if settled:
            break
    refined, _ = romberg(lambda spacing: np.array([top(spacing, reach)]), coarsest, tolerance)
    return float(refined[0]) if refined[0] > edge * (1 - 1e-6) else None


def _top_eigenvalue(chain: Chain) -> float:
    up, down = chain.up[chain.moving()], chain.down[chain.moving()]
    diagonal, off = -(up + down), np.sqrt(up[:-1] * down[1:])
    last = diagonal.size - 1
    # Bisection sees each rate to relative accuracy; the tolerance must not be set by the fastest one.
    return float(
        eigh_tridiagonal(
            diagonal, off, eigvals_only=True, select="i", select_range=(last, last), lapack_driver="stebz", tol=1e-14
        )[0]
    )


def absorption_probability(law: PairLaw, rho0: Real | None = None) -> float:
    """P(ρ_t -> 1) from ρ_0 = `rho0`, or from uniform tokens: by the scale function (THEORY §5, §6).

    1 or 0 where only one end attracts.  Raises `UserError` where no end does.

    >>> from synchronoise.kernel import Kernel
    >>> from synchronoise.theory.two_point import kernel_law
    >>> round(absorption_probability(kernel_law(Kernel("linear", 3)), 0.5), 7)
    0.6666667
    """
    attracting = [end.kind == "attracting" for end in law.ends]
    if not any(attracting):
        raise UserError("no end of the overlap's range attracts: there is nothing to be absorbed in")
    if not all(attracting):
        return float(attracting[0])
    anchor = 0.0 if rho0 is None else -float(np.arctanh(rho0))

    def at(spacing: float) -> np.ndarray:
        chain = build_chain(law, spacing=spacing, anchor=anchor, reach=reach_of(law, anchor))
        # The harmonic function of a birth-death chain: its increments are products of down/up.
        logs = np.append(0.0, np.cumsum(np.log(chain.down[1:-1] / chain.up[1:-1])))
        increments = _with_tails(np.exp(logs - logs.max()), law, spacing)
        to_synchrony = np.append(np.cumsum(increments[::-1])[::-1], 0.0) / increments.sum()
        start = uniform_weights(chain.y, law.dim) if rho0 is None else np.abs(chain.y - anchor) < spacing / 2
        return np.array([to_synchrony @ start])

    return float(romberg(at, first_spacing(law.dim), ACCURACY)[0][0])


def _with_tails(values: np.ndarray, law: PairLaw, spacing: float) -> np.ndarray:
    """Values whose first and last also stand for what continues beyond them at an end, a geometric series."""
    values = values.copy()
    for index, end in zip((0, -1), law.ends, strict=True):
        if end.kind not in ENTERED:
            values[index] /= -np.expm1(-2 * abs(end.exponent) / end.variance * spacing)
    return values


@dataclass(frozen=True)
class StationaryOverlap:
    """The law of ρ that stays: `density` and `cumulative` P(ρ_∞ <= r) over r = `overlap`, increasing, and means.

    The density is infinite at an end that repels weakly; `cumulative` says how much of the law sits there.
    """

    overlap: np.ndarray
    density: np.ndarray
    cumulative: np.ndarray
    mean: float
    distance2: float


def stationary_overlap(law: PairLaw) -> StationaryOverlap | None:
    """The stationary law of the overlap, where tokens neither merge nor become antipodal; else None.

    In y the density is (2/variance) exp(∫ 2 drift/variance): reversible, so no equation has to be solved.
    THEORY §6.

    >>> from synchronoise.kernel import Kernel
    >>> from synchronoise.theory.two_point import PairLaw, private_noise
    >>> round(stationary_overlap(PairLaw(5, (private_noise(1.0),))).distance2, 9)
    2.0
    """
    if any(end.kind not in (*ENTERED, "repelling") for end in law.ends):
        return None

    def at(spacing: float) -> tuple[Chain, np.ndarray]:
        chain = build_chain(law, spacing=spacing, anchor=0.0, reach=reach_of(law))
        inner = chain.moving()
        logs = np.append(0.0, np.cumsum(np.log(chain.up[inner][:-1] / chain.down[inner][1:])))
        mass = _with_tails(np.exp(logs - logs.max()), law, spacing)
        return Chain(chain.y[inner], chain.up[inner], chain.down[inner], (False, False)), mass / mass.sum()

    def moments(spacing: float) -> np.ndarray:
        chain, mass = at(spacing)
        epsilon, eta = chain.gaps()
        return np.array([mass @ (0.5 * (eta - epsilon)), mass @ (2 * epsilon)])

    (mean, distance2), _ = romberg(moments, first_spacing(law.dim), ACCURACY)
    finest = first_spacing(law.dim) / 8
    chain, mass = at(finest)
    epsilon, eta = chain.gaps()
    density = mass / finest / (epsilon * eta)
    overlap, below = 0.5 * (eta - epsilon), np.cumsum(mass[::-1])[::-1] - 0.5 * mass
    # The outermost cells stand for all the mass beyond them, which is no density.
    inner = slice(-2, 0, -1)
    return StationaryOverlap(overlap[inner], density[inner], below[inner], float(mean), float(distance2))
