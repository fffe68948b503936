"""The overlap ρ = <X_1, X_2> of two tokens as a diffusion, in a coordinate that resolves both ends (THEORY §5).

With ε = 1 - ρ and η = 1 + ρ the coordinate is y = log(ε/η)/2 = -artanh ρ: synchrony is y -> -∞, where
ε = 2 e^{2y}, and antipodes are y -> +∞.  There, for any noise of per-pair covariance C and an attention
that pulls with strength A(ρ) (drift A(ρ)(1-ρ²) on ρ), Itô's formula gives

    variance of y = 2 S,    drift of y = -(d-1) P + C_12 - A - 2 ρ S,
    S = (C̄ - ρ C_12)/(1-ρ²),    P = (C_12 - ρ C̄)/(1-ρ²),    C̄ = (C_11 + C_22)/2.

S, P and C_12 are linear in the covariance, so independent noises add; each noise writes S and P without
a cancellation at either end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synchronoise.errors import UserError
from synchronoise.kernel import Kernel, Real


class Covariance(NamedTuple):
    """S = (C̄ - ρ C_12)/(1-ρ²), P = (C_12 - ρ C̄)/(1-ρ²) and C_12, each an array over ρ."""

    spread: np.ndarray
    pull: np.ndarray
    cross: np.ndarray


LARGEST_BETA = 300.0  # e^β and its squares stay within floating point
LARGEST_DIM = 65_536  # the law of ρ for uniform tokens is 1/√d wide: the grid grows with √d


def check_beta(beta: Real) -> None:
    """Refuse a β whose energies or unnormalised weights e^β leave floating point."""
    if not abs(beta) <= LARGEST_BETA:
        raise UserError(
            "beta",
            got=beta,
            expected=f"a number in [-{LARGEST_BETA:g}, {LARGEST_BETA:g}]",
            mend="energies grow like e^β",
        )


PairNoise = Callable[[np.ndarray, np.ndarray], Covariance]


def field_noise(kernel: Kernel) -> PairNoise:
    """The common Gaussian field: C_11 = C_22 = κ(1), C_12 = κ(ρ).

    >>> import numpy as np
    >>> field_noise(Kernel("linear", 4))(np.array([0.5]), np.array([1.5])).spread.round(12).tolist()
    [0.25]
    """
    k1 = kernel.kappa_1

    def covariance(epsilon: np.ndarray, eta: np.ndarray) -> Covariance:
        slope = kernel.chord_slope(epsilon)
        cross = k1 - epsilon * slope
        near_spread, near_pull = (k1 + (1 - epsilon) * slope) / eta, (k1 - slope) / eta
        # Beyond ρ = 0 the same two from κ(1) + κ(ρ), which is small where the field is nearly odd.
        total = kernel.antipodal_sum(eta) / eta
        far_spread, far_pull = (total - cross) / epsilon, (total - k1) / epsilon
        near = epsilon <= 1
        return Covariance(np.where(near, near_spread, far_spread), np.where(near, near_pull, far_pull), cross)

    return covariance


def private_noise(sigma: Real) -> PairNoise:
    """Independent noise σ on every token: C_11 = C_22 = σ², C_12 = 0."""

    def covariance(epsilon: np.ndarray, eta: np.ndarray) -> Covariance:
        spread = sigma**2 / (epsilon * eta)
        # -ρ = (ε - η)/2 keeps its digits where ρ is small
        return Covariance(spread, 0.5 * (epsilon - eta) * spread, np.zeros_like(epsilon))

    return covariance


def vector_noise(sigma: Real) -> PairNoise:
    """One Brownian vector for all tokens: C_11 = C_22 = C_12 = σ²."""

    def covariance(epsilon: np.ndarray, eta: np.ndarray) -> Covariance:
        return Covariance(sigma**2 / eta, sigma**2 / eta, np.full_like(epsilon, sigma**2))

    return covariance


def value_noise(beta: Real, sigma: Real = 1.0) -> PairNoise:
    """Random value matrices: C_ij = σ² <m_i, m_j>, m_i the outputs of softmax attention, Q^T K = βI.

    With r = p(1-p), p the weight a token gives itself: S = 1 - 2r, P = 2r and C_12 = ρ + 2rε.
    """

    def covariance(epsilon: np.ndarray, eta: np.ndarray) -> Covariance:
        # beyond 350 the square of cosh would overflow, where r is 0
        r = 0.25 / np.cosh(np.minimum(0.5 * abs(beta) * epsilon, 350.0)) ** 2
        cross = 0.5 * (eta - epsilon) + 2 * r * epsilon
        return Covariance(sigma**2 * (1 - 2 * r), 2 * sigma**2 * r, sigma**2 * cross)

    return covariance


@dataclass(frozen=True)
class PairAttention:
    """Attention between two tokens, V = aI and Q^T K = βI: the pull A(ρ) of the drift A(ρ)(1-ρ²) (THEORY §5).

    `kind` "softmax" has A = 2a e^{βρ}/(e^β + e^{βρ}), "unnormalised" a e^{βρ} (weights e^{β<x,y>}/N), "none" 0.

    >>> import numpy as np
    >>> PairAttention("softmax", scale=0.3).pull(np.zeros(1)).tolist()
    [0.3]
    """

    kind: str = "none"
    scale: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "softmax", "unnormalised"):
            raise UserError(
                "attention", got=self.kind, expected="softmax, unnormalised or none", mend="others have no pair law"
            )
        if self.kind != "none":
            check_beta(self.beta)

    def pull(self, epsilon: np.ndarray) -> np.ndarray:
        if self.kind == "softmax":
            return 2 * self.scale / (1 + np.exp(self.beta * epsilon))
        if self.kind == "unnormalised":
            return self.scale * np.exp(self.beta * (1 - epsilon))
        return np.zeros_like(epsilon)


@dataclass(frozen=True)
class End:
    """One end of the overlap's range: ρ = 1 (synchrony) or ρ = -1 (antipodes).

    `kind`: "attracting", "repelling" and "neutral" ends are never reached: close to them the logarithm of the
    distance to the end is a Brownian motion of drift `exponent` and variance rate `variance`.  An
    "entrance" is left at once and never reached again; a "reflecting" end (d = 2 only) is hit and left.
    For these two `separation` = C̄ - |C_12| > 0 at the end is what drives tokens away from it.
    """

    kind: str
    exponent: float = 0.0
    variance: float = 0.0
    separation: float = 0.0


FAR = 300.0  # |y| at which an end is looked at: 1 - |ρ| is about 1e-260


@dataclass(frozen=True)
class PairLaw:
    """The overlap diffusion of two tokens under a sum of noises and an attention (THEORY §5).

    `drift` and `variance` are those of y = -artanh ρ; `ends` classifies ρ = 1 and ρ = -1.

    >>> law = PairLaw(5, (field_noise(Kernel("relu", 5, 0.1, 0.1)),))
    >>> law.ends[0].kind, round(law.ends[0].exponent, 12), law.ends[1].kind
    ('attracting', -0.13, 'entrance')
    """

    dim: int
    noises: tuple[PairNoise, ...]
    attention: PairAttention = PairAttention()

    def __post_init__(self) -> None:
        if not 2 <= self.dim <= LARGEST_DIM:
            expected = f"an integer in [2, {LARGEST_DIM}]"
            raise UserError("dim", got=self.dim, expected=expected, mend="large dimensions hardly differ")

    def covariance(self, y: np.ndarray) -> Covariance:
        epsilon, eta = gaps(y)
        parts = [noise(epsilon, eta) for noise in self.noises]
        return Covariance(*(np.sum([part[i] for part in parts], axis=0) for i in range(3)))

    def drift_and_variance(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Drift and variance rate of y, arrays like `y`."""
        epsilon, eta = gaps(y)
        spread, pull, cross = self.covariance(y)
        overlap = 0.5 * (eta - epsilon)
        drift = -(self.dim - 1) * pull + cross - self.attention.pull(epsilon) - 2 * overlap * spread
        return drift, 2 * spread

    @property
    def ends(self) -> tuple[End, End]:
        """The ends ρ = 1 and ρ = -1."""
        return self._end(-FAR), self._end(FAR)

    def _end(self, y: float) -> End:
        where = np.array([y])
        epsilon, eta = gaps(where)
        drift, variance = (float(x[0]) for x in self.drift_and_variance(where))
        # C̄ -/+ C_12 at the end itself; positive means that the noise separates tokens that coincide there.
        separation = 0.5 * variance * float((epsilon * eta)[0])
        if separation > 1e-200:
            return End("entrance" if self.dim > 2 else "reflecting", separation=separation)
        exponent = drift if y < 0 else -drift
        scale = max(abs(exponent), variance)
        kind = "neutral" if abs(exponent) <= 1e-12 * scale else "attracting" if exponent < 0 else "repelling"
        return End(kind, exponent, variance)


def gaps(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ε = 1 - ρ and η = 1 + ρ at y = -artanh ρ, both to relative accuracy.

    >>> import numpy as np
    >>> gaps(np.zeros(1))
    (array([1.]), array([1.]))
    """
    return 2 / (1 + np.exp(-2 * y)), 2 / (1 + np.exp(2 * y))


def kernel_law(kernel: Kernel) -> PairLaw:
    """Two tokens under the MLP's Gaussian field and nothing else."""
    return PairLaw(kernel.dim, (field_noise(kernel),))
