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

from .._arrays import Array, Factor, Float, Key, PRNGKey, Tokens
from ..banks import FrozenField
from ..errors import UserError
from ..model import Transformer, cast, step
from ..noise import Noise
from ..progress import Progress
from ..randomness import Role, replica_keys, role_key, step_key
from ..sphere import Start

SUBPOINTS = 8  # times per layer at which "all times" looks, the same at every level
REFINE = 8  # the reference has this many layers for one of the finest level
BATCH = 32  # replicas in one compiled call


class DepthErrors(NamedTuple):
    """The three errors of every replica, each of shape (replica, level)."""

    grid: np.ndarray
    successive: np.ndarray
    all_times: np.ndarray


class Given(Noise):
    """A frozen field whose coefficients over the step are known: F ξ with ξ given, shape (rank, d)."""

    field_: FrozenField
    coefficients: Array
    common = True
    in_law_only = False
    route = "given coefficients"

    def factor(self, key: PRNGKey, x: Tokens) -> Factor:
        return self.field_.functions(x)

    def increment(self, key: PRNGKey, x: Tokens) -> Tokens:
        return self.factor(key, x) @ self.coefficients

    def floor(self, dtype: Any) -> float:
        return self.field_.floor(dtype)


def depth_errors(
    model: Transformer, start: Start, levels: tuple[int, ...], *, replicas: int = 256, seed: int = 0,
    progress: bool = False,
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
    paper = Transformer(model.attention, model.noise, horizon=model.horizon, weights=model.weights)
    traced = cast((model, paper, start), "float64")
    found = []
    with Progress("depth", replicas, "replica", shown=progress) as bar:
        for first in range(0, replicas, BATCH):
            # Whole batches, so that there is one compiled shape; the surplus is thrown away.
            lanes = keys[np.minimum(np.arange(first, first + BATCH), replicas - 1)]
            errors = np.asarray(_depth_batch(traced, lanes, levels))
            now = min(BATCH, replicas - first)
            found.append(DepthErrors(*(errors[:now, kind] for kind in range(3))))
            bar.advance(now)
    return DepthErrors(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def require_float64() -> None:
    """Refuse to measure small errors in 32 bits."""
    if jax.dtypes.canonicalize_dtype("float64") != "float64":
        raise UserError(
            "dtype", got="float32 (JAX's 64-bit mode is off)", expected="float64",
            mend="call jax.config.update('jax_enable_x64', True) first",
        )  # fmt: skip


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

    first = ({level: x0 for level in paths}, jnp.zeros((len(levels), 3)))
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
    model: Transformer, x: Tokens, coefficients: Float[Array, "steps rank d"], layers: int, key: PRNGKey
) -> Float[Array, "steps n d"]:
    """The tokens after each of the steps of size T/layers with these coefficients; nothing is drawn from ``key``."""
    h = model.horizon / layers

    def one(x, xi):
        held = eqx.tree_at(lambda m: m.noise, model, Given(model.noise, xi))
        x, _ = step(key, x, held, h)
        return x, x

    return jax.lax.scan(one, x, coefficients)[1]


def mean_square(difference: Float[Array, "... n d"]) -> Float[Array, "..."]:
    """(1/N) Σ_i |x_i|² over the tokens."""
    return jnp.mean(jnp.sum(difference**2, axis=-1), axis=-1)
