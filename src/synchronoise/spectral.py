"""Sums over harmonics on the circle and S² in memory O(points + harmonics): moments of points, series at points (JAX).

With the harmonics Y_k of `harmonics`, k = 1, ..., K up to a degree,

    moments    M_k = Σ_i Y_k(x_i) f_i,         series    g_i = Σ_k Y_k(x_i) a_k.

The n × K matrix of the Y_k(x_i) is never held: blocks of points walk through the harmonics by a recurrence that needs
two of them at a time, and no transcendental function.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ive

from ._arrays import Array, Float, Tokens
from .harmonics import degrees

BLOCK = 2048  # points that walk together: their few rows stay in the cache


class Walk(NamedTuple):
    """The harmonics one (order m, degree n) at a time: q c and q s with c + i s = (x_1 + i x_2)^m and

        q <- a x_3 q - b q_before + start,    (c, s) <- (c, s) times (x_1, x_2) where ``turn``.

    On the circle q is the constant ``start``; on S² it is the Legendre recurrence upward in n for each m.
    """

    turn: Any
    a: Any
    b: Any
    start: Any
    cosine: Any  #: the index of q c among the harmonics
    sine: Any  #: the index of q s; the number of harmonics where m = 0 has none


@cache
def walk(dim: int, degree: int) -> Walk:
    """The steps through all harmonics up to ``degree``, d = 2 or 3 (`UserError` else)."""
    count = degrees(dim, degree).size
    if dim == 2:
        n = np.arange(degree + 1)
        start = np.where(n == 0, 1.0, np.sqrt(2))
        still = np.zeros(degree + 1)
        return Walk(
            n > 0, still, still, start, _index(np.maximum(2 * n - 1, 0)), _index(np.where(n == 0, count, 2 * n))
        )
    n, m = (index.T[np.tri(degree + 1, dtype=bool).T] for index in np.indices((degree + 1, degree + 1)))
    first = np.sqrt(np.cumprod(np.concatenate([[1.0], (2.0 * n + 1)[n == m][1:] / (2.0 * n)[n == m][1:]])))
    above = n > m
    a = np.sqrt(np.where(above, 4.0 * n * n - 1, 0) / np.where(above, n * n - m * m, 1))
    b = a * np.sqrt(np.where(above, (n - 1.0) ** 2 - m * m, 0) / np.maximum(4.0 * (n - 1) ** 2 - 1, 1))
    start = np.where(above, 0.0, first[m] * np.where(m == 0, 1.0, np.sqrt(2)))
    sine = np.where(m == 0, count, n * n + n + m)
    return Walk((n == m) & (m > 0), a, b, start, _index(n * n + m), _index(sine))


def _index(numbers: np.ndarray) -> np.ndarray:
    """Of 32 bits: one program then serves both modes of JAX."""
    return numbers.astype(np.int32)


@partial(jax.jit, static_argnames="degree")
def moments(x: Tokens, columns: Float[Array, "n c"], degree: int) -> Float[Array, "count c"]:
    """M_k = Σ_i Y_k(x_i) f_i, the rows f_i of ``columns``: what `harmonics`(x, degree).T @ columns is.

    >>> moments(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.ones((2, 1)), 1).astype(int).tolist()
    [[2], [1], [1]]
    """
    path = walk(x.shape[1], degree)
    blocks = (_blocks(x), _blocks(columns))

    def one_block(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        points, values = block[0], block[1].T

        def step(state: Any, row: Walk) -> tuple[Any, Array]:
            state, pair = _step(points, state, row)
            return state, jnp.stack([values @ part for part in pair])

        return total + jax.lax.scan(step, _begin(points), _rows(path, x.dtype))[1], None

    zero = jnp.zeros((path.turn.size, 2, columns.shape[1]), x.dtype)
    found = jax.lax.scan(one_block, zero, blocks)[0]
    # The sine of order 0 goes to a row beyond the last, which is cut off.
    count = degrees(x.shape[1], degree).size
    whole = jnp.zeros((count + 1, columns.shape[1]), x.dtype)
    return whole.at[path.cosine].set(found[:, 0]).at[path.sine].set(found[:, 1])[:count]


@partial(jax.jit, static_argnames="degree")
def series(x: Tokens, coefficients: Float[Array, "count c"], degree: int) -> Float[Array, "n c"]:
    """g_i = Σ_k Y_k(x_i) a_k, the rows a_k of ``coefficients``: what `harmonics`(x, degree) @ coefficients is.

    >>> series(jnp.array([[0.0, 1.0]]), jnp.array([[3.0], [0.0], [0.0]]), 1).tolist()
    [[3.0]]
    """
    path = walk(x.shape[1], degree)
    padded = jnp.concatenate([coefficients, jnp.zeros_like(coefficients[:1])])
    steps = (_rows(path, x.dtype), padded[path.cosine], padded[path.sine])

    def one_block(points: Tokens) -> Array:
        def step(carry: Any, row: Any) -> tuple[Any, None]:
            state, total = carry
            state, (cosine, sine) = _step(points, state, row[0])
            return (state, total + row[1][:, None] * cosine + row[2][:, None] * sine), None

        zero = jnp.zeros((coefficients.shape[1], points.shape[0]), x.dtype)
        return jax.lax.scan(step, (_begin(points), zero), steps)[0][1].T

    return jax.lax.map(one_block, _blocks(x)).reshape(-1, coefficients.shape[1])[: x.shape[0]]


def _blocks(rows: Float[Array, "n c"]) -> Float[Array, "blocks size c"]:
    """The rows in equal blocks, zeros at the end."""
    n, c = rows.shape
    size = min(n, BLOCK)
    count = -(-n // size)
    return jnp.pad(rows, ((0, count * size - n), (0, 0))).reshape(count, size, c)


def _rows(path: Walk, dtype: Any) -> Walk:
    return Walk(*(jnp.asarray(part, dtype if part.dtype.kind == "f" else None) for part in path))


def _begin(points: Tokens) -> tuple[Array, ...]:
    one, zero = jnp.ones_like(points[:, 0]), jnp.zeros_like(points[:, 0])
    return one, zero, zero, zero


def _step(points: Tokens, state: tuple[Array, ...], row: Walk) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
    c, s, q, before = state
    x, y = points[:, 0], points[:, 1]
    c, s = jnp.where(row.turn, c * x - s * y, c), jnp.where(row.turn, s * x + c * y, s)
    height = points[:, 2] if points.shape[1] == 3 else 0.0
    q, before = row.a * height * q - row.b * before + row.start, q
    return (c, s, q, before), (q * c, q * s)


def exponential_weights(beta: float, dim: int, degree: int) -> np.ndarray:
    """c_0, ..., c_degree of e^{βu - |β|} = Σ_n c_n P_n(u), P_n(1) = 1: Funk and Hecke for d = 2, 3   (THEORY §7).

    d = 2: I_0 and 2 I_n;  d = 3: (2n+1) i_n, the modified spherical Bessel functions; all times e^{-|β|}, and (-1)^n
    for β < 0.

    >>> weights = exponential_weights(5.0, 3, 40)
    >>> bool(np.isclose(weights.sum(), 1.0))
    True
    """
    n = np.arange(degree + 1)
    size = abs(beta)
    if dim == 2:
        weights = ive(n, size) * np.where(n == 0, 1, 2)
    elif size == 0:
        weights = np.where(n == 0, 1.0, 0.0)
    else:
        weights = (2 * n + 1) * np.sqrt(np.pi / (2 * size)) * ive(n + 0.5, size)
    return np.where((beta < 0) & (n % 2 == 1), -weights, weights)


def exponential_degree(beta: float, dim: int, dtype: Any) -> int:
    """The degree beyond which the weights of e^{βu - |β|} sum to less than a quarter of the dtype's rounding.

    >>> exponential_degree(5.0, 2, "float64"), exponential_degree(5.0, 2, "float32")
    (24, 14)
    """
    most = int(20 + 4 * abs(beta) ** 0.5 * 6 + abs(beta))
    tail = np.cumsum(np.abs(exponential_weights(beta, dim, most))[::-1])[::-1]
    return int(np.argmax(tail < np.finfo(dtype).eps / 4)) - 1 if tail[0] > 0 else 0


__all__ = ["exponential_degree", "exponential_weights", "moments", "series", "walk"]
