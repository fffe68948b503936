"""Convergence in depth: every level sees one frozen field, and coarse steps sum the fine increments (THEORY §3).

For levels L and a reference of ``refine`` × the largest L layers, on the same field and start,

    grid times       E max_k (1/N) Σ_i |X^L_i(k) - X̄_i(kT/L)|²                             ~ 1/L,
    successive       E max_k (1/N) Σ_i |X^L_i(k) - X^{2L}_i(2k)|²   (no reference in it)   ~ 1/L,
    all times        E sup_t (1/N) Σ_i |X^L_i(⌊Lt/T⌋) - X̄_i(t)|²,  `SUBPOINTS` a layer     ~ log L / L.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Array, Float, Key, PRNGKey, Tokens
from ..errors import UserError
from ..model import Transformer, cast
from ..progress import Progress
from ..randomness import Role, lanes, replica_keys, role_key, step_key
from ..sphere import Start
from .halves import drift, kick, mean_square, require_float64

SUBPOINTS = 8  # times per layer at which "all times" looks, the same at every level
REFINE = 8  # the reference has this many layers for one of the finest level
BATCH = 32  # replicas in one compiled call


class DepthErrors(NamedTuple):
    """The three errors of every replica, each of shape (replica, level)."""

    grid: np.ndarray
    successive: np.ndarray
    all_times: np.ndarray


def depth_errors(
    model: Transformer, start: Start, levels: tuple[int, ...], *, replicas: int = 256, seed: int = 0,
    progress: Progress | None = None,
) -> DepthErrors:  # fmt: skip
    """E max (1/N) Σ |X^L - X̄|² by replica for each L of ``levels``, one field and start per replica; float64.

    The levels follow the model's own scalings α_1(L), α_2(L), the reference those of the paper, so a model scaled
    wrongly is seen not to converge.  The model's noise is a `FrozenField`, its ``layers`` are not used.  Raises
    `UserError` for levels that are not increasing multiples of the first, or in JAX's 32-bit mode.

    >>> from synchronoise import MLP, Transformer, Uniform
    >>> from synchronoise.banks import HarmonicField
    >>> with jax.enable_x64(True):
    ...     model = Transformer(None, HarmonicField(MLP("tanh", dim=2), 4), horizon=1.0)
    ...     depth_errors(model, Uniform(tokens=2, dim=2), (2, 4), replicas=2).grid.shape
    (2, 2)
    """
    require_float64()
    _check(levels)
    keys = replica_keys(seed, replicas)
    traced = cast((model, _paper(model), start), "float64")
    found = []
    for first in range(0, replicas, BATCH):
        # Whole batches, so that there is one compiled shape; the surplus is thrown away.
        together = keys[lanes(first, BATCH, replicas)]
        errors = np.asarray(_depth_batch(traced, together, levels))
        now = min(BATCH, replicas - first)
        found.append(DepthErrors(*(errors[:now, kind] for kind in range(3))))
        if progress is not None:
            progress.advance(now)
    return DepthErrors(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def depth_paths(model: Transformer, start: Start, levels: tuple[int, ...], *, seed: int = 0) -> dict[int, np.ndarray]:
    """One path of every level and of the reference (the last key) on one field: {L: tokens (L + 1, n, d)}; float64.

    >>> from synchronoise import MLP, Transformer, Uniform
    >>> from synchronoise.banks import HarmonicField
    >>> with jax.enable_x64(True):
    ...     model = Transformer(None, HarmonicField(MLP("tanh", dim=2), 4), horizon=1.0)
    ...     list(depth_paths(model, Uniform(tokens=2, dim=2), (2, 4)))
    [2, 4, 32]
    """
    require_float64()
    _check(levels)
    traced = cast((model, _paper(model), start), "float64")
    return {level: np.asarray(path) for level, path in _paths(traced, replica_keys(seed, 1)[0], levels).items()}


def _paper(model: Transformer) -> Transformer:
    """The model with the paper's scalings."""
    return Transformer(model.attention, model.noise, horizon=model.horizon, weights=model.weights)


@eqx.filter_jit
def _paths(traced: Any, key: PRNGKey, levels: tuple[int, ...]) -> dict[int, Array]:
    model, paper, start = traced
    finest = max(levels) * REFINE
    x0 = start(role_key(step_key(key, 0), Role.START), jnp.float64)
    fine = jax.vmap(lambda j: _coefficients(model.noise, step_key(key, j)))(jnp.arange(finest))
    paths = {
        level: _advance(paper if level == finest else model, x0, _sums(fine, level), level, key)
        for level in (*levels, finest)
    }
    return {level: jnp.concatenate([x0[None], path]) for level, path in paths.items()}


def _check(levels: tuple[int, ...]) -> None:
    finest = max(levels) * REFINE
    bad = [level for level in levels if level < 1 or level % max(levels[0], 1) or finest % (2 * level)]
    if len(levels) < 2 or list(levels) != sorted(set(levels)) or bad:
        raise UserError(
            "levels", got=list(levels), expected="increasing numbers of layers, each twice the one before",
            mend="use --levels 8,16,32,64,128,256",
        )  # fmt: skip


@eqx.filter_jit
def _depth_batch(traced: Any, keys: Key[Array, " replica"], levels: tuple[int, ...]) -> Float[Array, "replica 3 level"]:
    return jax.vmap(partial(_one_replica, *traced, levels))(keys)


def _one_replica(
    model: Transformer, paper: Transformer, start: Start, levels: tuple[int, ...], key: PRNGKey
) -> Float[Array, "3 level"]:
    """All levels of one replica, block by block of the coarsest layer, so that few coefficients are held at once."""
    blocks, finest = levels[0], max(levels) * REFINE
    within = finest // blocks
    paths = sorted({*levels, *(2 * level for level in levels), finest})
    x0 = start(role_key(step_key(key, 0), Role.START), jnp.float64)

    def block(carry, index):
        ends, worst = carry
        fine = jax.vmap(lambda j: _coefficients(model.noise, step_key(key, j)))(index * within + jnp.arange(within))
        seen = {
            level: _advance(paper if level == finest else model, ends[level], _sums(fine, level // blocks), level, key)
            for level in paths
        }
        errors = []
        for level in levels:
            path, before = seen[level], jnp.concatenate([ends[level][None], seen[level][:-1]])
            every = within // path.shape[0]
            at_grid = seen[finest][every - 1 :: every]
            stride = every // SUBPOINTS
            inside = seen[finest][stride - 1 :: stride].reshape(-1, SUBPOINTS, *x0.shape)
            errors.append(
                jnp.stack([
                    mean_square(path - at_grid).max(),
                    mean_square(path - seen[2 * level][1::2]).max(),
                    mean_square(before[:, None] - inside).max(),
                ])
            )  # fmt: skip
        ends = {level: path[-1] for level, path in seen.items()}
        return (ends, jnp.maximum(worst, jnp.stack(errors))), None

    first = (dict.fromkeys(paths, x0), jnp.zeros((len(levels), 3)))
    (_, worst), _ = jax.lax.scan(block, first, jnp.arange(blocks))
    return worst.T


def _coefficients(field: Any, key: PRNGKey) -> Float[Array, "rank d"]:
    """ξ of one fine step, at the address that `Noise.increment` uses."""
    return jax.random.normal(role_key(key, Role.OUTPUT), (field.rank, field.mlp.dim), jnp.float64)


def _sums(fine: Float[Array, "steps rank d"], count: int) -> Float[Array, "count rank d"]:
    """The coefficients of ``count`` coarse steps, standard normal again."""
    stride = fine.shape[0] // count
    return fine.reshape(count, stride, *fine.shape[1:]).sum(axis=1) / np.sqrt(stride)


def _advance(
    model: Any, x: Tokens, coefficients: Float[Array, "steps rank d"], layers: int, key: PRNGKey
) -> Float[Array, "steps n d"]:
    """The tokens after each of the steps of size T/layers with these coefficients; nothing is drawn from ``key``."""
    h = model.horizon / layers

    def one(x: Tokens, xi: Array) -> tuple[Tokens, Tokens]:
        y = drift(model, key, x, h)
        x = kick(model, key, y, model.noise.factor(key, y) @ xi, h)
        return x, x

    return jax.lax.scan(one, x, coefficients)[1]
