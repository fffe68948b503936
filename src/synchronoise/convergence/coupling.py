"""The adapted layerwise coupling of a finite MLP with the limit's field, in width and in depth   (THEORY §3).

At one layer, at the realised tokens Y, the MLP's increment is F ξ (F: N×r given its hidden layer).  Let A Aᵀ = κ(Gram)
and let Aᵀ F = P Σ Qᵀ be the thin singular value decomposition.  Then

    w = P Qᵀ ξ + (I - P Pᵀ) η,  η fresh,        E tr (A w - F ξ)(A w - F ξ)ᵀ = W_2² of the two Gaussians, d times,

and w is standard normal whatever the rank of F and of A (few neurons, merged tokens): A w is the Gaussian field at Y.
With Aᵀ F in place of K^{1/2} F nothing is inverted, and for A the Cholesky factor the field at the limit's tokens Ȳ,
given its values A w, is B w + C ζ with [A 0; B C] the Cholesky factor of κ at (Y, Ȳ): kriging without a pseudo-inverse.

The limit takes ``refine`` fine steps per layer.  Their normals w_j = η_j + P(Qᵀ ξ - Pᵀ η)/√refine, η = Σ η_j/√refine,
are iid and sum to w √refine: a Brownian bridge to what the layer fixed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Array, Factor, Float, Key, PRNGKey, Tokens
from ..errors import UserError
from ..model import Transformer, cast
from ..noise import GaussianField, semidefinite_cholesky
from ..progress import Progress
from ..randomness import Role, lanes, replica_keys, role_key, step_key
from ..sphere import Start
from .halves import drift, kick, mean_square, require_float64


class Coupled(NamedTuple):
    """One coupled experiment by replica: errors, and where the two halves end."""

    error: np.ndarray  #: max over layers of (1/N) Σ_i |X_i - X̄_i|², shape (replica,)
    independent: np.ndarray  #: the same against a limit driven by noise of its own
    finite: np.ndarray  #: X after the last layer, (replica, token, dim)
    limit: np.ndarray  #: X̄ at the same time


def optimal(factor: Factor, target: Float[Array, "n k"]) -> tuple[Float[Array, "k s"], Float[Array, "r s"]]:
    """P and Q of targetᵀ factor = P Σ Qᵀ: normals ξ of ``factor`` go to P Qᵀ ξ + (I - P Pᵀ) η of ``target``.

    It attains the W_2 distance of N(0, F Fᵀ) and N(0, A Aᵀ), for any ranks (THEORY §3).

    >>> p, q = optimal(jnp.eye(2), 3 * jnp.eye(2))
    >>> (p @ q.T).round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    p, _, q = jnp.linalg.svd(target.T @ factor, full_matrices=False)
    return p, q.T


def coupled(
    model: Transformer, start: Start, *, refine: int = 1, replicas: int = 256, seed: int = 0,
    progress: Progress | None = None,
) -> Coupled:  # fmt: skip
    """E max_l (1/N) Σ |X - X̄|² of the model coupled with its limit at ``refine`` steps per layer, by replica; float64.

    ``refine`` = 1 compares with the Euler scheme of the same depth: the error of the width alone.  The model's own
    noise and scalings drive X; the limit's kernel is that of the noise's `MLP`, its scalings are the paper's.

    >>> from synchronoise import MLP, DrawnMLP, Transformer, Uniform
    >>> with jax.enable_x64(True):
    ...     model = Transformer(None, DrawnMLP(MLP("relu", dim=3), 16), layers=4, horizon=1.0)
    ...     coupled(model, Uniform(tokens=2, dim=3), replicas=5).error.shape
    (5,)
    """
    require_float64()
    law = getattr(model.noise, "mlp", None)
    if law is None:
        raise UserError("noise", got=type(model.noise).__name__, expected="one with an MLP's law, in `mlp`")
    paper = Transformer(
        model.attention, GaussianField(law), layers=model.layers, horizon=model.horizon, weights=model.weights
    )
    keys = replica_keys(seed, replicas)
    traced = cast((model, paper, start), "float64")
    batch = min(replicas, 64)
    found = []
    for first in range(0, replicas, batch):
        together = keys[lanes(first, batch, replicas)]
        now = min(batch, replicas - first)
        found.append([np.asarray(part)[:now] for part in _batch(traced, together, jnp.asarray(refine))])
        if progress is not None:
            progress.advance(now)
    return Coupled(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


@eqx.filter_jit
def _batch(traced: Any, keys: Key[Array, " replica"], refine: Array) -> tuple[Array, ...]:
    return jax.vmap(partial(_one_replica, *traced, refine))(keys)


def _one_replica(model: Any, paper: Any, start: Start, refine: Array, key: PRNGKey) -> tuple[Array, ...]:
    """One replica; the depth and ``refine`` are traced, so that one compiled loop serves a whole column of a grid."""
    h = model.horizon / model.layers
    x0 = start(role_key(step_key(key, 0), Role.START), jnp.float64)
    n, d = x0.shape
    root = jnp.sqrt(refine)

    def normals(layer: Array, j: Array, row: int) -> Tokens:
        address = role_key(step_key(key, layer * refine + j), Role.COUPLED)
        return jax.random.normal(address, (3 * n, d), x0.dtype)[row * n : (row + 1) * n]

    def one_layer(layer: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        x, limit, other, worst = carry
        y = drift(model, key, x, h)
        first = step_key(key, layer * refine)
        factor = model.noise.factor(first, y)
        xi = jax.random.normal(role_key(first, Role.OUTPUT), (factor.shape[1], d), x.dtype)
        p, q = optimal(factor, semidefinite_cholesky(paper.noise.covariance(y)))
        eta = jax.lax.fori_loop(0, refine, lambda j, total: total + normals(layer, j, 0), jnp.zeros_like(x)) / root
        bridge = p @ (q.T @ xi - p.T @ eta) / root

        def fine_step(j: Array, limit: Tokens) -> Tokens:
            at = drift(paper, key, limit, h / refine)
            joint = semidefinite_cholesky(paper.noise.covariance(jnp.concatenate([y, at])))[n:]
            field = joint[:, :n] @ (normals(layer, j, 0) + bridge) + joint[:, n:] @ normals(layer, j, 1)
            return kick(paper, key, at, field, h / refine)

        at = drift(paper, key, other, h)
        x = kick(model, key, y, factor @ xi, h)
        limit = jax.lax.fori_loop(0, refine, fine_step, limit)
        other = kick(
            paper, key, at, semidefinite_cholesky(paper.noise.covariance(at)) @ normals(layer, jnp.array(0), 2), h
        )
        errors = jnp.stack([mean_square(x - limit), mean_square(x - other)])
        return x, limit, other, jnp.maximum(worst, errors)

    x, limit, _, worst = jax.lax.fori_loop(0, model.layers, one_layer, (x0, x0, x0, jnp.zeros(2)))
    return worst[0], worst[1], x, limit
