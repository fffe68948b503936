"""Rates from coupled experiments: slopes, logarithms and two-parameter fits, with bootstrap intervals over replicas.

Errors are arrays of shape (replica, level): replicas are independent, levels share the randomness of their replica, so
an interval resamples whole replicas.  Every interval is at 95 %.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

RESAMPLES = 1000


class Estimate(NamedTuple):
    """A number with its bootstrap standard error and its 95 % interval."""

    value: float
    se: float
    low: float
    high: float


def resampled_means(errors: np.ndarray, resamples: int = RESAMPLES) -> np.ndarray:
    """Means over replicas, each replica drawn with replacement: the plain mean first, then ``resamples`` others.

    >>> resampled_means(np.array([[1.0], [3.0]]), 4).shape, float(resampled_means(np.array([[1.0], [3.0]]))[0, 0])
    ((5, 1), 2.0)
    """
    replicas = errors.shape[0]
    counts = np.random.default_rng(0).multinomial(replicas, np.full(replicas, 1 / replicas), resamples)
    return np.concatenate([np.ones((1, replicas)), counts]) @ errors.reshape(replicas, -1) / replicas


def estimate(values: np.ndarray) -> Estimate:
    """The estimate of a statistic from its value at every row of `resampled_means`."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Estimate(float(values[0]), float(values[1:].std(ddof=1)), float(low), float(high))


def slope(levels: np.ndarray, errors: np.ndarray) -> Estimate:
    """s of mean error ~ level^s: least squares of log mean error on log level.

    >>> exact = slope(np.array([1, 2, 4]), np.array([[1.0, 0.5, 0.25], [3.0, 1.5, 0.75]]))
    >>> round(exact.value, 12), round(exact.high - exact.low, 12)
    (-1.0, 0.0)
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return estimate(_line(np.log(levels), np.log(resampled_means(errors)))[1])


def logarithm(levels: np.ndarray, errors: np.ndarray) -> Estimate:
    """b of level · mean error = a + b log level, by least squares: positive where the rate is log L / L.

    >>> levels = np.array([8, 16, 32])
    >>> round(logarithm(levels, (1 + 2 * np.log(levels)) / levels * np.ones((3, 1))).value, 12)
    2.0
    """
    return estimate(_line(np.log(levels), levels * resampled_means(errors))[1])


def _line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intercept and slope of y (..., level) on x."""
    centred = x - x.mean()
    steep = y @ centred / (centred @ centred)
    return y.mean(axis=-1) - steep * x.mean(), steep


class GridFit(NamedTuple):
    """error = a/L + b/m, and the share R² of the variance of log error over the grid that it explains."""

    a: float
    b: float
    r_squared: float

    def __call__(self, layers: np.ndarray | float | int, width: np.ndarray | float | int) -> np.ndarray:
        """The fitted mean square error at these layers and widths (m = ∞ included)."""
        return np.asarray(self.a / np.asarray(layers) + self.b / np.asarray(width))

    def enough(self, token_error: float | int) -> tuple[int, int]:
        """The cheapest (L, m), by L · m, whose root-mean-square token error is at most ``token_error``.

        a/L + b/m = δ² at least L · m means a/L = b/m = δ²/2.

        >>> GridFit(2.0, 8.0, 1.0).enough(0.5)
        (16, 64)
        """
        half = token_error**2 / 2
        return int(np.ceil(self.a / half)), int(np.ceil(self.b / half))


def grid_fit(layers: np.ndarray, widths: np.ndarray, error: np.ndarray) -> GridFit:
    """Fit a/L + b/m to ``error`` of shape (layers, widths), by least squares of the logarithms.

    >>> layers, widths = np.array([8, 16]), np.array([32, np.inf])
    >>> fit = grid_fit(layers, widths, 2 / layers[:, None] + 3 / widths)
    >>> round(fit.a, 6), round(fit.b, 6), round(fit.r_squared, 6)
    (2.0, 3.0, 1.0)
    """
    target = np.log(error)
    basis = np.stack(np.broadcast_arrays(1 / layers[:, None], 1 / widths), axis=-1)

    def residual(logs: np.ndarray) -> np.ndarray:
        return (np.log(basis @ np.exp(logs)) - target).ravel()

    found = least_squares(residual, np.log(error.mean() / basis.mean(axis=(0, 1)) / 2))
    a, b = np.exp(found.x)
    return GridFit(float(a), float(b), float(1 - np.sum(found.fun**2) / np.sum((target - target.mean()) ** 2)))
