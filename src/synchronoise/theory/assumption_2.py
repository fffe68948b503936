"""Assumption 2: d/dt E_β <= ε E_β under attention alone, from below by search and from above by proof (THEORY §6).

E_β = ½ Σ_ij w_i w_j (e^β - e^{β<x_i,x_j>}).  Tokens move at P_i v_i, v the output of the attention, so
d/dt E_β = -β Σ_ij w_i w_j e^{βρ_ij} <P_i x_j, v_i>, where P_i x_j = x_j - ρ_ij x_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from synchronoise.kernel import Real
from synchronoise.theory.two_point import PairAttention

Velocity = Callable[[np.ndarray, np.ndarray], np.ndarray]


def attention_velocity(attention: PairAttention, value: np.ndarray | None = None) -> Velocity:
    """v_i = V Σ_j p_ij x_j for tokens (n, d) of weights (n,); V = `value`, or the scale of `attention` times I.

    Softmax: p_ij ∝ w_j e^{β<x_i,x_j>}; unnormalised: p_ij = w_j e^{β<x_i,x_j>}.

    >>> import numpy as np
    >>> attention_velocity(PairAttention("softmax", 2.0))(np.eye(2)[:1], np.ones(1)).tolist()
    [[2.0, 0.0]]
    """

    def velocity(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if attention.kind == "none":
            return np.zeros_like(x)
        p = w * np.exp(attention.beta * (x @ x.T))
        if attention.kind == "softmax":
            p = p / p.sum(axis=1, keepdims=True)
        mean = p @ x
        return attention.scale * mean if value is None else mean @ value.T

    return velocity


def energy_growth(velocity: Velocity, beta: Real, x: np.ndarray, w: np.ndarray) -> float:
    """(d/dt E_β) / E_β of weighted tokens that move with the attention alone; `x` (n, d) unit, `w` sums to 1.

    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> v = attention_velocity(PairAttention("softmax", 1.0, 1.0))
    >>> energy_growth(v, 1.0, x, np.array([0.5, 0.5])).__round__(6)
    -0.313035
    """
    gap = 0.5 * np.sum((x[:, None] - x[None, :]) ** 2, axis=-1)
    pairs = w[:, None] * w[None, :] * np.exp(-beta * gap)  # times e^β, which cancels
    energy = -0.5 * np.sum(w[:, None] * w[None, :] * np.expm1(-beta * gap))
    v = velocity(x, w)
    # <x_j - x_i + (1-ρ_ij) x_i, v_i>
    along = v @ x.T - np.sum(v * x, axis=1)[:, None] + gap * np.sum(v * x, axis=1)[:, None]
    return float(-beta * np.sum(pairs * along) / energy)


@dataclass(frozen=True)
class Assumption2:
    """What is known of the best ε: `lower` from a search, `upper` proven or None, `status` in words."""

    lower: float
    upper: float | None
    status: str


def assumption_2(
    attention: PairAttention, beta: Real, dim: int, *, value: np.ndarray | None = None, seed: int = 0
) -> Assumption2:
    """The ε of d/dt E_β <= ε E_β for softmax or unnormalised attention with Q^T K = β_a I (THEORY §6).

    `beta` > 0 is the energy's; `value` a full V in place of the scale.  `upper` is proven where β_a = `beta`:
    with V = aI + W, a >= 0 and b = |W| in operator norm, ε <= 2(1+β) b for softmax (and for W = -bI, a = 0,
    also ε <= 4b); for unnormalised V = -bI, ε <= 4 e^β b.  `lower` is the largest growth found over weighted
    configurations of at most four tokens: the best ε is no smaller.

    >>> assumption_2(PairAttention("softmax", 1.0, 1.0), 1.0, 5).upper
    0.0
    """
    if attention.kind == "none":
        return Assumption2(0.0, 0.0, "no attention: ε = 0")
    size = dim if value is not None else min(dim, 3)
    lower = growth_by_search(attention_velocity(attention, value), float(beta), size, seed=seed)
    upper = proven_epsilon(attention, float(beta), value)
    if upper is None:
        return Assumption2(lower, None, "not proven: the best ε is at least the lower value, found by search")
    if upper == 0:
        return Assumption2(lower, 0.0, "ε = 0: the attention never raises the energy")
    return Assumption2(lower, upper, "proven upper bound; the best ε lies between lower and upper")


def proven_epsilon(attention: PairAttention, beta: Real, value: np.ndarray | None = None) -> float | None:
    """The proven upper bound of ε in `assumption_2`, or None.

    >>> proven_epsilon(PairAttention("softmax", -0.5, 1.0), 1.0)
    2.0
    """
    if attention.kind == "none":
        return 0.0
    if attention.beta != beta:
        return None
    if value is None:
        if attention.scale >= 0:
            return 0.0
        factor = min(4.0, 2 * (1 + beta)) if attention.kind == "softmax" else 4 * np.exp(beta)
        return float(-attention.scale * factor)
    if attention.kind != "softmax":
        return None
    # The best a: |V - aI| is convex in a, and the bound holds for every a >= 0.
    scales = np.linspace(0.0, 2 * np.linalg.norm(value, 2), 2001)
    rest = [np.linalg.norm(value - a * np.eye(value.shape[0]), 2) for a in scales]
    return float(2 * (1 + beta) * min(rest))


def growth_by_search(velocity: Velocity, beta: float, dim: int, *, seed: int = 0, starts: int = 12) -> float:
    """The largest (d/dt E_β)/E_β found over weighted configurations of 2 to 4 tokens: a lower bound of the best ε.

    `velocity(x, w)` -> v, arrays (n, d), is any attention.  Local searches from random starts, spread out and
    nearly merged, weights even and lopsided.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)

    def unpack(z: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = z[: n * dim].reshape(n, dim)
        w = np.exp(z[n * dim :] - z[n * dim :].max())
        return x / np.linalg.norm(x, axis=1, keepdims=True), w / w.sum()

    def decay(z: np.ndarray, n: int) -> float:
        growth = energy_growth(velocity, beta, *unpack(z, n))
        return -growth if np.isfinite(growth) else 1e3  # all tokens equal: no energy left to grow

    best = -np.inf
    for start in range(starts):
        n = 2 + start % 3
        centre, spread = rng.normal(size=dim), (1e-2, 0.3, 3.0)[start // 3 % 3]
        tokens = centre / np.linalg.norm(centre) + spread * rng.normal(size=(n, dim))
        z = np.concatenate([tokens.ravel(), 2 * rng.normal(size=n)])
        with np.errstate(all="ignore"):
            result = minimize(decay, z, args=(n,), options={"maxiter": 40})
        # A search may run into merged tokens, where the quotient is only rounding.
        x, _ = unpack(result.x, n)
        if np.linalg.norm(x[:, None] - x[None, :], axis=-1).max() > 1e-4:
            best = max(best, -float(result.fun))
    return best
