"""Exact Wasserstein distances W_2 of weighted points, for the distance along great circles.

    W_2²(μ, ν) = min over couplings of Σ_ij π_ij angle(x_i, y_j)².

On the circle by quantiles; elsewhere equally many points of equal weight are an assignment (SciPy), and others need
the extra `ot` (POT).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..errors import UserError


def wasserstein2(
    x: np.ndarray, y: np.ndarray, x_weights: np.ndarray | None = None, y_weights: np.ndarray | None = None
) -> float:
    """W_2² of two weighted sets of unit rows, (n, d) and (k, d); weights default to equal ones.

    The square of the distance, in squared angles (angles are up to π/2 times their chords).

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> round(wasserstein2(x, -x) / np.pi**2, 12)  # a quarter turn for each
    0.25
    """
    a = np.full(len(x), 1 / len(x)) if x_weights is None else np.asarray(x_weights, float) / np.sum(x_weights)
    b = np.full(len(y), 1 / len(y)) if y_weights is None else np.asarray(y_weights, float) / np.sum(y_weights)
    if x.shape[1] == 2:
        return _circle(np.arctan2(x[:, 1], x[:, 0]), np.arctan2(y[:, 1], y[:, 0]), a, b)
    chords = np.sqrt(np.maximum(np.sum(x**2, 1)[:, None] + np.sum(y**2, 1) - 2 * x @ y.T, 0))
    cost = (2 * np.arcsin(np.minimum(chords / 2, 1))) ** 2
    if len(x) == len(y) and x_weights is None and y_weights is None:
        return float(cost[linear_sum_assignment(cost)].mean())
    try:
        import ot
    except ImportError:
        raise UserError(
            "exact W_2 of weighted points beyond the circle needs POT", mend="pip install 'synchronoise[ot]'"
        ) from None
    return np.asarray(ot.emd2(a, b, cost, numItermax=10_000_000)).item()


def _circle(theta: np.ndarray, phi: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """min over s of ∫ |F⁻¹(u) - G⁻¹(u - s)|² du, quantiles over the whole line: convex in s, so by golden section."""
    order, other = np.argsort(theta), np.argsort(phi)
    theta, a, phi, b = theta[order], a[order], phi[other], b[other]
    # Levels at which either quantile jumps; F⁻¹ is constant between two of them.
    first, second = np.cumsum(a), np.cumsum(b)
    first, second = first / first[-1], second / second[-1]

    def cost(shift: float) -> float:
        ends = np.sort(np.concatenate([first, (second + shift) % 1.0]))
        begins = np.concatenate([[0.0], ends[:-1]])
        middle, width = (ends + begins) / 2, ends - begins
        at = middle - shift
        turns = np.floor(at)
        one = theta[np.minimum(np.searchsorted(first, middle), len(theta) - 1)]
        two = phi[np.minimum(np.searchsorted(second, at - turns), len(phi) - 1)] + 2 * np.pi * turns
        return float(width @ (one - two) ** 2)

    low, high, ratio = -1.5, 1.5, (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(70):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = cost(right)
    return min(at_left, at_right)
