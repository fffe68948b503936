"""Frozen fields: a Gaussian field on the sphere as finitely many fixed functions with fresh Gaussian coefficients.

    G(dt, x) = Σ_k f_k(x) ξ_k √dt,    ξ_k ∈ R^d standard normal, fresh at every fine step.

The functions never change, so the increment over a coarse step is the same sum with the coefficients summed: every
level of a refinement sees one field, at any points.  The field's own covariance C(x, y) = Σ_k f_k(x) f_k(y) is that of
its limit; how far its slope at x = y is from κ'(1) is its `missing_slope`.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, Factor, Float, PRNGKey, Tokens
from .harmonics import DIMENSIONS, degrees, harmonics
from .noise import MLP, Noise
from .randomness import Role, address, role_key
from .spectral import series


class FrozenField(Noise):
    """A field Σ_k f_k(x) ξ_k whose functions f_k are fixed: the left factor depends on the tokens alone.  Abstract."""

    common = True

    @abstractmethod
    def functions(self, x: Tokens) -> Factor:
        """f_k at the rows of x, shape (n, rank)."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of functions."""

    @property
    @abstractmethod
    def missing_slope(self) -> float:
        """1 - κ'_own(1)/κ'(1): the share of the MLP's slope at equal tokens that the field lacks."""

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return self.functions(x)

    @property
    def in_law_only(self) -> bool:
        return False

    def floor(self, dtype: Any) -> float:
        return 8 * float(jnp.finfo(dtype).eps)


class HarmonicField(FrozenField):
    """The MLP's Gaussian field on the circle or S², exact up to a degree: f = √(c_n/N_n) Y_{n,k}   (THEORY §2).

    c_n are the Gegenbauer weights of κ, so κ_own = Σ_{n<=degree} c_n P_n.  Degrees that κ lacks are left out.

    >>> field = HarmonicField(MLP("relu", dim=3), degree=8)
    >>> field.rank, round(field.missing_slope, 3)
    (48, 0.051)
    """

    mlp: MLP
    degree: int = eqx.field(static=True)
    columns: tuple[int, ...] = eqx.field(static=True)
    amplitudes: Any

    def __init__(self, mlp: MLP, degree: int = 12):
        kernel, of_column = mlp.kernel(), degrees(mlp.dim, degree)
        weights = kernel.gegenbauer_weights(degree + 1)
        variance = (weights / np.bincount(of_column))[of_column]
        columns = np.flatnonzero(variance > 1e-12 * kernel.kappa_1)
        self.mlp, self.degree, self.columns = mlp, degree, tuple(columns.tolist())
        self.amplitudes = np.sqrt(variance[columns])

    def functions(self, x: Tokens) -> Factor:
        return harmonics(x, self.degree, jnp)[:, np.array(self.columns, np.int32)] * self.amplitudes

    def increment(self, key: PRNGKey, x: Tokens) -> Tokens:
        xi = jax.random.normal(role_key(key, Role.OUTPUT), (self.rank, x.shape[1]), x.dtype)
        return self.values(xi, x)

    def values(self, xi: Float[Array, "rank d"], x: Tokens) -> Tokens:
        """Σ_k f_k(x) ξ_k at the rows of x, in memory O(n + rank): the factor of many tokens is never held."""
        count = degrees(self.mlp.dim, self.degree).size
        coefficients = jnp.asarray(self.amplitudes, x.dtype)[:, None] * xi
        whole = jnp.zeros((count, xi.shape[1]), x.dtype).at[np.array(self.columns, np.int32)].set(coefficients)
        return series(x, whole, self.degree)

    @property
    def kappa_1(self) -> float:
        """κ_own(1) = Σ_n c_n over the degrees that are there."""
        return float(np.sum(np.asarray(self.amplitudes) ** 2))

    @property
    def rank(self) -> int:
        return len(self.columns)

    @property
    def missing_slope(self) -> float:
        n = degrees(self.mlp.dim, self.degree)[list(self.columns)]
        # P_n'(1) = n(n+d-2)/(d-1), and the N_n columns of degree n hold c_n together.
        slope = np.sum(np.asarray(self.amplitudes) ** 2 * n * (n + self.mlp.dim - 2)) / (self.mlp.dim - 1)
        return float(1 - slope / self.mlp.kernel().dkappa_1)

    @property
    def route(self) -> str:
        return f"harmonics up to degree {self.degree} ({self.rank} functions)"


class FeatureBank(FrozenField):
    """A frozen bank of random features, f_k(x) = φ(u_k·x/√d + σ_U b_k)/√K and σ_W, in any dimension.

    Its covariance is κ up to O(1/√K), not rotation invariant: that covariance is the limit's.  ``weights`` holds the
    rows (u_k, b_k) drawn once at ``seed``, shape (K, d + 1).

    >>> FeatureBank(MLP("relu", dim=5), size=64).rank
    65
    """

    mlp: MLP
    weights: Any

    def __init__(self, mlp: MLP, size: int = 256, seed: int = 0):
        self.mlp = mlp
        self.weights = np.asarray(jax.random.normal(address(seed, 0, 0, Role.HIDDEN), (size, mlp.dim + 1)))

    def functions(self, x: Tokens) -> Factor:
        return self.mlp.features(self.mlp.inputs(x) @ self.weights.T)

    @property
    def rank(self) -> int:
        return self.weights.shape[0] + 1

    @property
    def missing_slope(self) -> float:
        # Mean over the sphere of E f'(x)²: the tangential gradients of the features at fixed uniform points.
        x = np.random.default_rng(0).standard_normal((2000, self.mlp.dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        u, d = np.asarray(self.weights)[:, : self.mlp.dim], self.mlp.dim
        along = x @ u.T
        slopes = self.mlp.activation.prime(np.asarray(self.mlp.inputs(jnp.asarray(x))) @ np.asarray(self.weights).T)
        slope = np.mean(slopes**2 * ((u**2).sum(axis=1) - along**2)) / (d * (d - 1))
        return float(1 - slope / self.mlp.kernel().dkappa_1)

    @property
    def route(self) -> str:
        return f"frozen bank of {self.weights.shape[0]} random features"


def frozen_field(mlp: MLP, seed: int = 0) -> FrozenField:
    """The field for a refinement in depth: harmonics for d = 2, 3, else a bank of features drawn at ``seed``.

    >>> frozen_field(MLP("tanh", dim=3)).route
    'harmonics up to degree 12 (78 functions)'
    """
    if mlp.dim in DIMENSIONS:
        return HarmonicField(mlp, degree=48 if mlp.dim == 2 else 12)
    return FeatureBank(mlp, seed=seed)
