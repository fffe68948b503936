"""Attention on the circle and S² through harmonics: O(n · modes) instead of O(n²)   (THEORY §7).

e^{β<x,y>} = Σ_n c_n P_n(<x,y>) and the addition theorem P_n = N_n⁻¹ Σ_k Y_{n,k}(x) Y_{n,k}(y) turn the sums over all
tokens into moments of the tokens and a series at the points:

    Σ_j w_j e^{β<x,X_j>} (1, X_j) = Σ_{n,k} (c_n/N_n) Y_{n,k}(x) Σ_j w_j Y_{n,k}(X_j) (1, X_j).

The series is right to rounding times e^{|β|}, the largest value of the kernel.  Softmax divides by a sum that may be
far smaller: at a point where it is below `lost_below` times e^{|β|} its digits are lost, and there the
sum is made densely.  A token of weight w sees itself, so for β > 0 only tokens with w < `lost_below` can be such.
"""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Bool

from ._arrays import Array, Float, Tokens, Weights
from .attention import Attention, _times
from .errors import UserError
from .harmonics import DIMENSIONS, degrees
from .observables import Observable
from .spectral import exponential_degree, exponential_weights, moments, series

LARGEST_BETA = 200.0  # beyond it a kernel is narrower than harmonics are good for
PAIRS_AT_ONCE = 2**20  # logits that a dense sum holds
SMALL = 2**16  # logits that are cheaper than looking for the points that need them


class HarmonicAttention(Attention):
    """Attn_X(x) = a Σ_j w_j e^{β<x,X_j>} X_j (/ Σ_j w_j e^{β<x,X_j>} for "softmax"), in harmonics; d = 2 or 3.

    QᵀK = β I; ``scale`` is the number a of V = a I, or a d×d matrix V.  ``degree`` is where the weights of e^{βu} fall
    below the rounding of ``dtype``.  Memory O(n + modes); equal to `SoftmaxAttention` and `UnnormalisedAttention` up to
    rounding (relative to e^{|β|} for "unnormalised"), see the module.  Raises `UserError` for other dimensions.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> from synchronoise import SoftmaxAttention
    >>> bool(jnp.allclose(HarmonicAttention(3.0, dim=2, dtype="float32")(x), SoftmaxAttention(3.0)(x), atol=1e-5))
    True
    """

    kind: str = eqx.field(static=True)
    beta: float
    value: Any
    spectrum: Any  #: c_n/N_n e^{-|β|} of every harmonic
    degree: int = eqx.field(static=True)
    space: int = eqx.field(static=True)  #: the dimension d of the tokens
    symmetric = True
    rowwise = True

    def __init__(
        self, beta: float = 1.0, scale: Any = 1.0, *, dim: int, kind: str = "softmax",
        dtype: str = "float64",
    ):  # fmt: skip
        if dim not in DIMENSIONS:
            raise UserError("method harmonic", got=f"dim {dim}", expected="dim 2 or 3", mend="use --method dense")
        if kind not in ("softmax", "unnormalised"):
            raise UserError("kind", got=kind, expected="softmax or unnormalised", mend="other attentions are dense")
        if not abs(beta) <= LARGEST_BETA:
            raise UserError("beta", got=beta, expected=f"at most {LARGEST_BETA:g} in size", mend="use --method dense")
        self.kind, self.beta, self.space = kind, float(beta), dim
        self.value = float(scale) if np.ndim(scale) == 0 else np.asarray(scale, float)
        self.degree = exponential_degree(beta, dim, dtype)
        of_column = degrees(dim, self.degree)
        self.spectrum = (exponential_weights(beta, dim, self.degree) / np.bincount(of_column))[of_column]

    @property
    def dim(self) -> int:
        return self.space

    @property
    def route(self) -> str:
        """How the attention is computed, in words."""
        return f"attention in harmonics up to degree {self.degree}"

    def __call__(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Float[Array, "k d"]:
        points = x if at is None else at
        sums = self._sums(x, weights, points)
        if self.kind == "softmax":
            mixed = sums[:, 1:] / sums[:, :1]
            mixed = self._mend(mixed, sums[:, 0] < lost_below(x.dtype), x, weights, points)
        else:
            mixed = sums[:, 1:] * jnp.exp(jnp.abs(self.beta))
        return _times(mixed, jnp.transpose(self.value) if jnp.ndim(self.value) == 2 else self.value)

    def lost(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Bool[Array, " k"]:
        """Where the denominator loses its digits, so that the sum is made densely."""
        if self.kind == "unnormalised":
            return jnp.zeros(len(x if at is None else at), bool)
        return self._sums(x, weights, x if at is None else at)[:, 0] < lost_below(x.dtype)

    def _sums(self, x: Tokens, weights: Weights | None, points: Float[Array, "k d"]) -> Float[Array, "k d_plus_1"]:
        """e^{-|β|} Σ_j w_j e^{β<x,X_j>} (1, X_j) at the points."""
        n = x.shape[0]
        w = jnp.full((n, 1), 1 / n, x.dtype) if weights is None else weights[:, None]
        found = moments(x, w * jnp.concatenate([jnp.ones_like(w), x], axis=1), self.degree)
        return series(points, jnp.asarray(self.spectrum, x.dtype)[:, None] * found, self.degree)

    def _mend(
        self, mixed: Float[Array, "k d"], lost: Bool[Array, " k"], x: Tokens, weights: Weights | None,
        points: Float[Array, "k d"],
    ) -> Float[Array, "k d"]:  # fmt: skip
        """The rows where digits are lost, by the dense sum, few at a time."""
        count = points.shape[0]
        log_weights = 0.0 if weights is None else jnp.log(weights)

        def dense(rows: Float[Array, "b d"]) -> Float[Array, "b d"]:
            return jax.nn.softmax(self.beta * (rows @ x.T) + log_weights, axis=-1) @ x

        size = max(1, PAIRS_AT_ONCE // x.shape[0])
        if count * x.shape[0] <= SMALL:  # no loop, so that it can be differentiated backwards
            return jnp.where(lost[:, None], dense(points), mixed)
        size = min(size, count)
        (index,) = jnp.nonzero(lost, size=count + size, fill_value=count)

        def some(i: Array, mixed: Array) -> Array:
            here = jax.lax.dynamic_slice(index, (i * size,), (size,))
            return mixed.at[here].set(dense(points[here]), mode="drop")

        return jax.lax.fori_loop(0, -(-jnp.sum(lost) // size), some, mixed)


def lost_below(dtype: Any) -> float:
    """Share of e^{|β|} below which a sum over all tokens has lost its digits: 1e-10 of it is 10 roundings of float64.

    In float32 three digits are asked for.

    >>> round(lost_below("float64") * 1e5, 2)
    2.22
    """
    wanted = 1e-10 if np.dtype(dtype) == np.float64 else 1e-3
    return 10 * float(jnp.finfo(dtype).eps) / wanted


class DenseTokens(Observable):
    """How many tokens have their attention summed densely, because harmonics lose its digits there.

    >>> import jax.numpy as jnp
    >>> far = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> attention = HarmonicAttention(9.0, dim=2, dtype="float32")
    >>> int(DenseTokens(attention)(far, jnp.array([1.0, 0.0])))
    1
    """

    attention: HarmonicAttention
    name = "dense_tokens"
    dims = ()
    long_name = "tokens whose attention is summed densely"
    reference = "THEORY §7"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return jnp.sum(self.attention.lost(x, weights)).astype(x.dtype)


def warn_of_dense(result: xr.Dataset, points: int, what: str = "tokens") -> None:
    """Say how many of so many points had their attention summed densely, by the `DenseTokens` of a result.

    >>> warn_of_dense(xr.Dataset({"dense_tokens": ("layer", [0, 0])}), 8)
    """
    most = int(result["dense_tokens"].max()) if DenseTokens.name in result else 0
    if most:
        warnings.warn(
            f"harmonics lose the digits of up to {most} of {points} {what}, far from all others: "
            "their attention was summed densely",
            stacklevel=3,
        )
