"""Spherical harmonics of the circle and of S², normalised to mean square 1 (NumPy and JAX).

With N_n the number of harmonics of degree n in dimension d and P_n the Gegenbauer polynomial with P_n(1) = 1
(cos nθ for d = 2, Legendre for d = 3), the harmonics Y_{n,k} here obey the addition theorem

    Σ_k Y_{n,k}(x) Y_{n,k}(y) = N_n P_n(<x, y>),     mean of Y_{n,k} Y_{n',k'} over the sphere = δ.

So a kernel κ = Σ_n c_n P_n (Funk-Hecke: `Kernel.gegenbauer_weights`) is Σ_{n,k} (c_n/N_n) Y_{n,k}(x) Y_{n,k}(y).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from synchronoise.errors import UserError

DIMENSIONS = (2, 3)


def degrees(dim: int, degree: int) -> np.ndarray:
    """The degree n of every harmonic up to `degree`, in the order of `harmonics`; d = 2 or 3.

    There are N_n = 2 (d = 2) or 2n + 1 (d = 3) harmonics of degree n >= 1, and one of degree 0.

    >>> degrees(3, 2).tolist()
    [0, 1, 1, 1, 2, 2, 2, 2, 2]
    """
    if dim not in DIMENSIONS:
        raise UserError("dim", got=dim, expected="2 or 3 for harmonics", mend="a feature bank serves every dim")
    counts = [1 if n == 0 else 2 if dim == 2 else 2 * n + 1 for n in range(degree + 1)]
    return np.repeat(np.arange(degree + 1), counts)


def harmonics(x: Any, degree: int, xp: Any = np) -> Any:
    """Y_{n,k}(x) for n = 0, ..., degree at unit rows x of shape (points, d), d = 2 or 3: (points, count).

    Columns go by degree: Y_{n,0}, then the cosines and the sines (d = 2: √2 cos nθ, √2 sin nθ).  Mean square 1 over
    the sphere, not ∫ Y² = 1.  THEORY §2.

    >>> harmonics(np.array([[0.0, 1.0]]), 1).round(12).tolist()
    [[1.0, 0.0, 1.414213562373]]
    """
    if x.shape[1] not in DIMENSIONS:
        degrees(x.shape[1], 0)
    cosines, sines = _powers(x[:, 0], x[:, 1], degree, xp)
    ones = xp.ones_like(x[:, :1])
    if x.shape[1] == 2:
        pairs = xp.stack([cosines[:, 1:], sines[:, 1:]], axis=2).reshape(x.shape[0], 2 * degree)
        return xp.concatenate([ones, sqrt(2) * pairs], axis=1)
    columns = []
    for n, q in enumerate(_legendre(x[:, 2:], degree, xp)):
        q = q[:, : n + 1]
        columns += [q[:, :1], sqrt(2) * q[:, 1:] * cosines[:, 1 : n + 1], sqrt(2) * q[:, 1:] * sines[:, 1 : n + 1]]
    return xp.concatenate(columns, axis=1)


def _powers(real: Any, imaginary: Any, degree: int, xp: Any) -> tuple[Any, Any]:
    """Real and imaginary parts of (x + iy)^m, m = 0, ..., degree, each (points, degree + 1)."""
    cosines, sines = [xp.ones_like(real)], [xp.zeros_like(real)]
    for _ in range(degree):
        c, s = cosines[-1], sines[-1]
        cosines.append(c * real - s * imaginary)
        sines.append(s * real + c * imaginary)
    return xp.stack(cosines, axis=1), xp.stack(sines, axis=1)


def _legendre(z: Any, degree: int, xp: Any):
    """For n = 0, 1, ... the normalised associated Legendre functions over sin^m, all orders m at once.

    q_{n,m} = a (z q_{n-1,m} - b q_{n-2,m}), a² = (4n²-1)/(n²-m²), b² = ((n-1)²-m²)/(4(n-1)²-1): stable upward in n.
    """
    order = np.arange(degree + 1)
    first = np.sqrt(np.cumprod(np.concatenate([[1.0], (2 * order[1:] + 1) / (2 * order[1:])])))
    before = here = z * xp.zeros(degree + 1, z.dtype)
    for n in range(degree + 1):
        below = order < n
        a = np.sqrt(np.where(below, 4.0 * n * n - 1, 0) / np.where(below, n * n - order**2, 1))
        b = np.sqrt(np.maximum((n - 1.0) ** 2 - order**2, 0) / max(4.0 * (n - 1) ** 2 - 1, 1)) * (n > 1)
        start = np.where(order == n, first, 0.0)
        a, b, start = (xp.asarray(values, z.dtype) for values in (a, b, start))
        before, here = here, a * (z * here - b * before) + start
        yield here
