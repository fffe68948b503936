"""The sphere S^{d-1}: projection, distances, and where tokens start."""

import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, Float, Gram, PRNGKey, Tokens
from .errors import UserError

# Numbers that the differences of all pairs may take at once: more goes in blocks of rows.
DIFFERENCES = 2**22


def layer_norm(v: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """LN(v) = v / |v|: the radial projection on the unit sphere (THEORY §1).

    Not the layer normalisation of PyTorch, which also subtracts the mean and has length √d.

    >>> import jax.numpy as jnp
    >>> layer_norm(jnp.array([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]

    NaN where |v|² leaves the range of the dtype: dividing by an infinite length would give a silent zero.
    """
    square = jnp.sum(v * v, axis=-1, keepdims=True)
    limits = jnp.finfo(square.dtype)
    return v / jnp.sqrt(jnp.where((square >= limits.tiny) & (square <= limits.max), square, jnp.nan))


def tangent(x: Float[Array, "... d"], v: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """P_x v = v - <x, v> x: the part of v tangent to the sphere at x (THEORY §3).

    >>> import jax.numpy as jnp
    >>> tangent(jnp.array([1.0, 0.0]), jnp.array([2.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    return v - jnp.sum(x * v, axis=-1, keepdims=True) * x


def gram(x: Tokens) -> Gram:
    """The overlaps <x_i, x_j>.  Right inside attention and κ; use `half_square_chords` to read 1 - ρ."""
    return x @ x.T


def half_square_chords(x: Tokens, y: Tokens | None = None) -> Gram:
    """ε_ij = |x_i - y_j|²/2 = 1 - <x_i, y_j>, computed from differences: accurate as they merge; y = x by default.

    ``1 - gram(x)`` loses everything below about 1e-16 (float64) or 1e-7 (float32); this does not.

    >>> import jax.numpy as jnp
    >>> half_square_chords(jnp.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    others = x if y is None else y

    def row(one: Float[Array, " d"]) -> Float[Array, " n"]:
        difference = one - others
        return 0.5 * jnp.sum(difference * difference, axis=-1)

    # Many rows at once would hold their n·d differences each.
    rows = max(1, DIFFERENCES // others.size)
    return jax.vmap(row)(x) if len(x) <= rows else jax.lax.map(row, x, batch_size=rows)


def leaders(x: Tokens) -> Array:
    """For every token the first token that is bitwise equal to it (itself when there is none before).

    Matrix products round their last rows in another order than the others, so two equal tokens would
    drift apart by one unit in the last place; copying the leader's result keeps them equal.  Rows are
    compared through a 64-bit hash of their bits, so the cost is n·d + n² integer operations (n log n
    beyond 512 tokens).

    >>> import jax.numpy as jnp
    >>> leaders(jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).tolist()
    [0, 1, 0]
    """
    n = x.shape[0]
    x = jnp.where(x == 0, 0, x)  # -0.0 equals 0.0
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(n, -1)
    # Odd multipliers from a fixed integer sequence: two independent multiply-shift hashes.
    multipliers = np.random.default_rng(2604_26898).integers(0, 2**32, (2, words.shape[1]), dtype=np.uint32) | 1
    mixed = words ^ (words >> 15)
    first, second = (jnp.sum(mixed * row, axis=1, dtype=jnp.uint32) for row in multipliers)
    if n <= 512:
        same = (first[:, None] == first) & (second[:, None] == second)
        return jnp.min(jnp.where(same, jnp.arange(n), n), axis=1)  # `argmax` of a mask is slow on CPUs
    # Sorted with the index as the last key, the first index leads its run.
    first, second, order = jax.lax.sort((first, second, jnp.arange(n)), num_keys=3, is_stable=False)
    new_run = jnp.concatenate([jnp.ones(1, bool), (first[1:] != first[:-1]) | (second[1:] != second[:-1])])
    run_start = jax.lax.cummax(jnp.where(new_run, jnp.arange(n), 0))
    return jnp.zeros(n, order.dtype).at[order].set(order[run_start], unique_indices=True)


class Start(eqx.Module):
    """Where tokens start: a function of a key.  Abstract; an array of tokens is a start as well."""

    tokens: eqx.AbstractVar[int]
    dim: eqx.AbstractVar[int]

    def __check_init__(self):
        if self.dim < 2:
            raise UserError("dim", got=self.dim, expected="an integer >= 2", mend="use --dim 2 or more")
        if self.tokens < 1:
            raise UserError("tokens", got=self.tokens, expected="an integer >= 1", mend="use --tokens 1 or more")

    def __call__(self, key: PRNGKey, dtype: Any) -> Tokens:
        raise NotImplementedError


class Uniform(Start):
    """Tokens iid uniform on the sphere; the first tokens are the same for any number of them.

    >>> import jax, jax.numpy as jnp
    >>> few, many = (Uniform(n, 3)(jax.random.key(0), jnp.float32) for n in (2, 9))
    >>> bool((few == many[:2]).all())
    True
    """

    tokens: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __call__(self, key: PRNGKey, dtype: Any) -> Tokens:
        return layer_norm(jax.random.normal(key, (self.tokens, self.dim), dtype))


class Clusters(Start):
    """Tokens near ``clusters`` iid uniform centres: LN(centre + spread · normal / √d), dealt in turn."""

    tokens: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    clusters: int = eqx.field(static=True, default=2)
    spread: float = 0.1

    def __check_init__(self):
        if not 1 <= self.clusters <= self.tokens:
            raise UserError(
                "clusters",
                got=self.clusters,
                expected=f"an integer from 1 to tokens={self.tokens}",
                mend="change either",
            )
        if isinstance(self.spread, float | int) and self.spread < 0:
            raise UserError("spread", got=self.spread, expected="a number >= 0", mend="use --spread 0.1")

    def __call__(self, key: PRNGKey, dtype: Any) -> Tokens:
        centre_key, spread_key = jax.random.split(key)
        centres = layer_norm(jax.random.normal(centre_key, (self.clusters, self.dim), dtype))
        scatter = jax.random.normal(spread_key, (self.tokens, self.dim), dtype) / math.sqrt(self.dim)
        return layer_norm(centres[jnp.arange(self.tokens) % self.clusters] + self.spread * scatter)


class Equiangular(Start):
    """All overlaps equal to ``overlap``, turned by a random rotation (THEORY §7).

    The Gram matrix (1-ρ) I + ρ 11ᵀ must be positive semi-definite of rank at most d:
    -1/(n-1) <= ρ <= 1, and n <= d (n <= d + 1 at ρ = -1/(n-1)).
    """

    tokens: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    overlap: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        n, rho = self.tokens, self.overlap
        lowest = -1.0 if n == 1 else -1.0 / (n - 1)
        if not lowest - 1e-12 <= rho <= 1:
            raise UserError(
                "overlap",
                got=rho,
                expected=f"a number from {lowest:.6g} to 1 for {n} tokens",
                mend="change --overlap",
            )
        rank = 1 if rho == 1 else n - (abs(rho - lowest) <= 1e-12)
        if rank > self.dim:
            raise UserError(
                "dim",
                got=self.dim,
                expected=f"at least {rank} for {n} tokens of equal overlap {rho}",
                mend="use fewer tokens",
            )

    def __call__(self, key: PRNGKey, dtype: Any) -> Tokens:
        n, d = self.tokens, self.dim
        values, vectors = np.linalg.eigh((1 - self.overlap) * np.eye(n) + self.overlap * np.ones((n, n)))
        keep = min(n, d)
        corner = np.zeros((n, d))
        corner[:, :keep] = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :keep]
        rotation = jnp.linalg.qr(jax.random.normal(key, (d, d), dtype))[0]
        return layer_norm(jnp.asarray(corner, dtype) @ rotation)


def tokens_from_file(path: str | Path) -> tuple[np.ndarray, float]:
    """Tokens from a ``.npy`` or ``.csv`` file, one per row: (unit rows, largest deviation of a row from length 1).

    A ``.npy`` file is read without pickle, so it can run no code.  Raises `UserError` for a file that is
    missing, empty, not numbers, of fewer than 2 columns, or has a row that is zero or not finite.
    """
    path = Path(path)
    mend = "give one token per row, at least 2 columns of finite numbers"
    if not path.is_file():
        raise UserError("start file", got=str(path), expected="an existing .npy or .csv file", mend="check the path")
    try:
        if path.suffix == ".npy":
            rows = np.load(path, allow_pickle=False)
        elif path.suffix == ".csv":
            if not path.read_text().strip():
                raise UserError("start file", got="an empty file", expected="rows of numbers", mend=mend)
            rows = np.loadtxt(path, delimiter=",", ndmin=2)
        else:
            raise UserError("start file", got=path.name, expected="a name ending in .npy or .csv", mend="convert it")
        rows = np.asarray(rows, dtype=np.float64)
    except UserError:
        raise
    except (ValueError, TypeError, EOFError, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"start file {path.name} is not a table of numbers ({reason})", mend=mend) from None
    if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 2:
        raise UserError("start file", got=f"shape {rows.shape}", expected="(tokens, dim) with dim >= 2", mend=mend)
    lengths = np.linalg.norm(rows, axis=1)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if bad.size:
        raise UserError(
            "start file",
            got=f"row {bad[0]} of length {lengths[bad[0]]}",
            expected="finite rows that are not zero",
            mend=mend,
        )
    return rows / lengths[:, None], float(np.abs(lengths - 1).max())
