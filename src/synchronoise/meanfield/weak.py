"""The weak form of (1.10), tested along a solution: what a step should do to the mean of every harmonic   (THEORY §4).

    d<μ, Y> = <μ, ∇Y · Attn_μ> dt + <μ, ∇Y · G(dt)> - κ(1) l(l+d-2)/2 <μ, Y> dt     (Itô; degree l)

The residual is what is left of <μ_t, Y> - <μ_0, Y>: of order √h, as that of Euler's scheme, whatever solves it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._arrays import Array, Float, PRNGKey, Tokens, Weights
from ..harmonics import degrees, harmonics
from ..model import Transformer
from ..spectral import moments
from ..sphere import tangent


def means(x: Tokens, weights: Weights, degree: int) -> Float[Array, " count"]:
    """<μ, Y_k> of weighted points for the harmonics up to a degree, in their order.

    >>> means(jnp.array([[0.0, 1.0]]), jnp.ones(1), 1).astype(int).tolist()
    [1, 0, 1]
    """
    return moments(x, weights[:, None], degree)[:, 0]


def predicted(
    key: PRNGKey, x: Tokens, weights: Weights, model: Transformer, h: Any, degree: int, kappa_1: Any
) -> Float[Array, " count"]:
    """What (1.10) says that one step adds to `means`, κ(1) that of the noise's own field."""
    direction = jnp.zeros_like(x)
    if model.attention is not None:
        direction = direction + h * model.attention(x, weights)
    if model.noise is not None:
        direction = direction + jnp.sqrt(h) * model.noise.field(key)(x)
    values, slopes = jax.jvp(lambda y: harmonics(y, degree, jnp), (x,), (tangent(x, direction),))
    n = degrees(x.shape[1], degree)
    laplacian = jnp.asarray(n * (n + x.shape[1] - 2), x.dtype)
    return weights @ slopes - 0.5 * h * kappa_1 * laplacian * (weights @ values)
