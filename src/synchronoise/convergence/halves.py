"""The two halves of the layer map, Y = LN(X + α_1 Attn) and X' = LN(Y + α_2 G(Y)), apart   (THEORY §1).

A coupling chooses the increment G(Y) at the tokens Y of several processes at once, so it has to stand between them.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._arrays import Array, Factor, Float, PRNGKey, Tokens
from ..errors import UserError
from ..model import Transformer, step
from ..noise import Noise


class Increment(Noise):
    """A noise whose increment is known already: F = value, ξ = 1."""

    value: Tokens
    common = True

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return self.value

    def increment(self, key: PRNGKey, x: Tokens) -> Tokens:
        return self.value

    @property
    def in_law_only(self) -> bool:
        return True

    def floor(self, dtype: Any) -> float:
        return 0.0

    @property
    def route(self) -> str:
        return "given increment"


def drift(model: Transformer, key: PRNGKey, x: Tokens, h: Any) -> Tokens:
    """Y: the attention's half of a step of size h, by the model's α_1."""
    return step(key, x, eqx.tree_at(lambda whole: whole.noise, model, None), h)[0]


def kick(model: Transformer, key: PRNGKey, y: Tokens, increment: Tokens, h: Any) -> Tokens:
    """X': the noise's half of a step of size h, by the model's α_2, with its increment given."""
    parts = (None, Increment(increment))
    halves = eqx.tree_at(lambda m: (m.attention, m.noise), model, parts, is_leaf=lambda leaf: leaf is None)
    return step(key, y, halves, h)[0]


def mean_square(difference: Float[Array, "*batch n d"]) -> Float[Array, "*batch"]:
    """(1/N) Σ_i |x_i|² over the tokens.

    >>> float(mean_square(jnp.ones((3, 2))))
    2.0
    """
    return jnp.mean(jnp.sum(difference**2, axis=-1), axis=-1)


def require_float64() -> None:
    """Refuse to measure small errors in 32 bits."""
    if jax.dtypes.canonicalize_dtype("float64") != "float64":
        raise UserError(
            "dtype",
            got="float32 (JAX's 64-bit mode is off)",
            expected="float64",
            mend="call jax.config.update('jax_enable_x64', True) first",
        )
