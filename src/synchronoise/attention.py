"""Attention as a drift of the tokens, one class each (THEORY §1).

Every attention is called as ``attention(x, weights=None, at=None)`` and returns Attn_X at the points
``at`` (default: at the tokens themselves).  Its parameters are fixed over the layers.  Tokens may carry
weights w_j; without them every token weighs the same.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, Float, Tokens, Weights
from .errors import UserError


class Attention(eqx.Module):
    """Attn_X(x) = Σ_j a(x, X_j) V X_j.  Abstract: a subclass chooses the mixing matrix.

    ``bilinear`` is QᵀK and ``value`` is V, each a d×d matrix or a number c that stands for c·I.
    ``symmetric`` says that permuting the tokens permutes the output, so that equal tokens stay equal.
    """

    bilinear: eqx.AbstractVar[Any]
    value: eqx.AbstractVar[Any]
    symmetric: ClassVar[bool]

    @abstractmethod
    def mixing(self, logits: Float[Array, "k n"], weights: Weights | None) -> Float[Array, "k n"]:
        """The matrix a(x_i, X_j) from the logits <Q x_i, K X_j>."""

    def logits(self, x: Tokens, at: Float[Array, "k d"]) -> Float[Array, "k n"]:
        """<Q x, K X_j> for each row x of ``at``."""
        return _times(at, self.bilinear) @ x.T

    def __call__(
        self, x: Tokens, weights: Weights | None = None, at: Float[Array, "k d"] | None = None
    ) -> Float[Array, "k d"]:
        mixed = self.mixing(self.logits(x, x if at is None else at), weights) @ x
        return _times(mixed, jnp.transpose(self.value) if jnp.ndim(self.value) == 2 else self.value)


def _times(x: Array, matrix: Any) -> Array:
    """x·matrix for rows x; a number stands for a multiple of the identity."""
    return x @ matrix if jnp.ndim(matrix) == 2 else x * matrix


class SoftmaxAttention(Attention):
    """Attn_X(x) = Σ_j w_j e^{<Qx, K X_j>} V X_j / Σ_j w_j e^{<Qx, K X_j>}   (THEORY §1).

    ``beta`` and ``scale`` mean QᵀK = β I and V = scale · I (the paper's choice; "attention scale" +1, -1, 0);
    matrices Q, K (any equal number of rows) and V (d×d) take their place when given.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> SoftmaxAttention(beta=0.0)(x).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    bilinear: Any
    value: Any
    symmetric = True

    def __init__(self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)

    def mixing(self, logits: Float[Array, "k n"], weights: Weights | None) -> Float[Array, "k n"]:
        return jax.nn.softmax(logits if weights is None else logits + jnp.log(weights), axis=-1)


class UnnormalisedAttention(Attention):
    """Attn_X(x) = Σ_j w_j e^{<Qx, K X_j>} V X_j with Σ w_j = 1 (w_j = 1/n by default; "USA", THEORY §1).

    Parameters as in `SoftmaxAttention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> UnnormalisedAttention(beta=0.0)(x).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    bilinear: Any
    value: Any
    symmetric = True

    def __init__(self, beta: float = 1.0, scale: float = 1.0, *, query=None, key=None, value=None):
        self.bilinear, self.value = _parameters(beta, scale, query, key, value)

    def mixing(self, logits: Float[Array, "k n"], weights: Weights | None) -> Float[Array, "k n"]:
        share = 1.0 / logits.shape[-1] if weights is None else weights
        return share * jnp.exp(logits)


def _parameters(beta, scale, query, key, value):
    """(QᵀK, V): the matrices when they are given, else the numbers β and scale."""
    for name, number in (("beta", beta), ("attention scale", scale)):
        if not np.isfinite(number):
            raise UserError(name, got=number, expected="a finite number", mend="change it")
    if (query is None) != (key is None):
        raise UserError("query and key", got="one of them", expected="both or neither", mend="give both matrices")
    bilinear = float(beta) if query is None else np.asarray(query).T @ np.asarray(key)
    value = float(scale) if value is None else np.asarray(value)
    for name, matrix in (("QᵀK", bilinear), ("value", value)):
        if np.ndim(matrix) not in (0, 2) or (np.ndim(matrix) == 2 and len(set(np.shape(matrix))) != 1):
            raise UserError(name, got=f"shape {np.shape(matrix)}", expected="(dim, dim)", mend="give a square matrix")
    return bilinear, value
