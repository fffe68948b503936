"""Convergence in law: the mean pair energy of two tokens against depth, at several widths   (THEORY §3, §5).

Fresh layers of any width have covariance κ, so as L grows every width has the same law, the two-token diffusion: width
matters for paths, not for averages.  The error at L layers is about A(1 + c/m)/L.  It is read from paired differences
between L and 2L layers: the coarse layer's hidden neurons are those of the first of its two fine layers, and its output
normals are (ξ¹ + ξ²)/√2, where ξʲ are the fine ones carried over by the optimal coupling at the realised tokens.
Given the past both are standard normal, so each level has exactly its own law.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Array, Float, Key, PRNGKey, Scalar, Tokens
from ..model import Transformer, cast
from ..noise import semidefinite_cholesky
from ..progress import Progress
from ..randomness import Role, lanes, replica_keys, role_key, step_key
from ..sphere import Start, half_square_chords
from .halves import drift, kick

BATCH = 4096  # replicas in one compiled call

Square = Float[Array, "2 2"]


class PairedEnergies(NamedTuple):
    """½(e^β - e^{βρ}) of two tokens at time T in L and in 2L layers, by replica."""

    coarse: np.ndarray
    fine: np.ndarray


def paired_energies(
    model: Transformer, start: Start, *, beta: float | int = 1.0, replicas: int = 4096, seed: int = 0,
    progress: Progress | None = None,
) -> PairedEnergies:  # fmt: skip
    """The pair energies of a model of two tokens in its L layers and in 2L, coupled; float32.

    >>> from synchronoise import MLP, DrawnMLP, Transformer, Uniform
    >>> model = Transformer(None, DrawnMLP(MLP("relu", dim=5), 1), layers=4, horizon=1.0)
    >>> paired_energies(model, Uniform(tokens=2, dim=5), replicas=6).fine.shape
    (6,)
    """
    traced = cast((model, start, beta), "float32")
    keys = replica_keys(seed, replicas)
    batch = min(replicas, BATCH)
    found = []
    for first in range(0, replicas, batch):
        together = keys[lanes(first, batch, replicas)]
        now = min(batch, replicas - first)
        found.append([np.asarray(part, float)[:now] for part in _batch(traced, together)])
        if progress is not None:
            progress.advance(now)
    return PairedEnergies(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


@eqx.filter_jit
def _batch(traced: Any, keys: Key[Array, " replica"]) -> tuple[Array, Array]:
    return jax.vmap(partial(_one_replica, *traced))(keys)


def _one_replica(model: Any, start: Start, beta: Scalar, key: PRNGKey) -> tuple[Scalar, Scalar]:
    h = model.horizon / model.layers
    x0 = start(role_key(step_key(key, 0), Role.START), jnp.float32)

    def one_layer(layer: Array, carry: tuple[Tokens, Tokens]) -> tuple[Tokens, Tokens]:
        coarse, fine = carry
        y = drift(model, key, coarse, h)
        wide = _root(model, step_key(key, 2 * layer), y)
        normals = jnp.zeros_like(y)
        for half in range(2):
            address = step_key(key, 2 * layer + half)
            z = drift(model, key, fine, h / 2)
            narrow = _root(model, address, z)
            xi = jax.random.normal(role_key(address, Role.OUTPUT), z.shape, z.dtype)
            fine = kick(model, key, z, narrow @ xi, h / 2)
            normals += rotation(wide.T @ narrow) @ xi
        return kick(model, key, y, wide @ normals / math.sqrt(2), h), fine

    coarse, fine = jax.lax.fori_loop(0, model.layers, one_layer, (x0, x0))
    return _energy(coarse, beta), _energy(fine, beta)


def _root(model: Any, address: PRNGKey, tokens: Tokens) -> Square:
    """A 2×2 factor with the covariance of the noise's own."""
    factor = model.noise.factor(address, tokens)
    return semidefinite_cholesky(factor @ factor.T)


def rotation(matrix: Square) -> Square:
    """The orthogonal O that makes tr Oᵀ M largest: the polar factor of a 2×2 matrix, of any rank.

    >>> rotation(jnp.array([[0.0, -2.0], [3.0, 0.0]])).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    (a, b), (c, d) = matrix
    proper, mirrored = jnp.hypot(a + d, c - b), jnp.hypot(a - d, c + b)
    turn = jnp.stack([jnp.stack([a + d, b - c]), jnp.stack([c - b, a + d])])
    mirror = jnp.stack([jnp.stack([a - d, b + c]), jnp.stack([b + c, d - a])])
    best = jnp.maximum(proper, mirrored)
    chosen = jnp.where(proper >= mirrored, turn, mirror) / jnp.where(best > 0, best, 1)
    return jnp.where(best > 0, chosen, jnp.eye(2, dtype=matrix.dtype))


def _energy(x: Tokens, beta: Scalar) -> Scalar:
    return -0.5 * jnp.exp(beta) * jnp.expm1(-beta * half_square_chords(x)[0, 1])
