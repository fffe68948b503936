"""Initial measures μ_0 of the mean-field limit: densities against the uniform measure, quadratures (THEORY §4).

A measure is a function that maps unit rows (k, d) to its density there, up to a factor; None is the uniform
one.  Weighted tokens on a quadrature of μ_0 are the Lagrangian solver's start, and its only error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from ..errors import UserError

Density = Callable[[np.ndarray], Any] | None


class VonMisesFisher:
    """Density Σ_c s_c e^{k_c(<m_c,x> - 1)} / Z_c of a mixture of von Mises-Fisher laws, Z_c the mean over the sphere.

    ``means`` m: (c, d), normalised; ``concentrations`` k >= 0 and ``shares`` s (equal by default): (c,).  With k = 0
    it is uniform, and its width is about 1/√k.

    >>> peak = VonMisesFisher([[1.0, 0.0]], [4.0])
    >>> bool(peak(np.array([[1.0, 0.0]]))[0] > 10 * peak(np.array([[-1.0, 0.0]]))[0])
    True
    """

    def __init__(self, means: Any, concentrations: Any, shares: Any = None):
        self.means = np.atleast_2d(np.asarray(means, float))
        self.concentrations = np.atleast_1d(np.asarray(concentrations, float))
        count = len(self.means)
        self.shares = np.full(count, 1 / count) if shares is None else np.asarray(shares, float)
        lengths = np.linalg.norm(self.means, axis=1, keepdims=True)
        if not (len(self.concentrations) == len(self.shares) == count) or not lengths.all():
            raise UserError(
                "mixture", got=f"{count} means, {len(self.concentrations)} concentrations, {len(self.shares)} shares",
                expected="as many of each, no mean zero",
            )  # fmt: skip
        if (self.concentrations < 0).any() or (self.shares < 0).any():
            raise UserError("mixture", got="a number below 0", expected="concentrations and shares >= 0")
        self.means = self.means / lengths

    def __call__(self, x: np.ndarray) -> np.ndarray:
        u = np.linspace(-1, 1, 20_001)[:-1] + 5e-5
        measure = (1 - u**2) ** ((self.means.shape[1] - 3) / 2)
        z = [np.sum(measure * np.exp(k * (u - 1))) / measure.sum() for k in self.concentrations]
        return np.exp(self.concentrations * (x @ self.means.T - 1)) @ (self.shares / z)


def nodes(dim: int, count: int) -> np.ndarray:
    """``count`` points spread evenly over the sphere: equal angles (d = 2), a Fibonacci spiral (d = 3), else Sobol'
    points sent through the normal quantile and LN.  Shape (count, d).

    >>> nodes(2, 4).round(3).tolist()
    [[0.707, 0.707], [-0.707, 0.707], [-0.707, -0.707], [0.707, -0.707]]
    """
    half = np.arange(count) + 0.5
    if dim == 2:
        angle = 2 * np.pi * half / count
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dim == 3:
        z, angle = 1 - 2 * half / count, np.pi * (1 + 5**0.5) * half
        flat = np.sqrt(1 - z**2)
        return np.stack([flat * np.cos(angle), flat * np.sin(angle), z], axis=1)
    power = int(np.ceil(np.log2(max(count, 2))))
    cube = qmc.Sobol(dim, scramble=False).random_base2(power)[:count]
    points = ndtri(cube + 0.5 ** (power + 1))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def quadrature(density: Density, dim: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (count, d) and weights (count,) of sum 1 for a density on the sphere (None: uniform).

    Raises `UserError` for a density that is not finite and >= 0 at the points, or zero at all of them.

    >>> x, w = quadrature(VonMisesFisher([[0.0, 0.0, 1.0]], [2.0]), 3, 2000)
    >>> round(float(w @ x[:, 2]), 4)  # coth 2 - 1/2
    0.5373
    """
    if count < 1:
        raise UserError("points", got=count, expected="an integer >= 1", mend="use 4096")
    x = nodes(dim, count)
    weights = np.ones(count) if density is None else np.asarray(density(x), float)
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise UserError(
            "density", got=f"values of shape {weights.shape}", expected="finite numbers >= 0, one for each point"
        )
    return x, weights / weights.sum()
