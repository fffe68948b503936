"""What is measured of the tokens at one site: functions of one matrix of activations (torch), nothing kept.

Light statistics cost O(N d); the full set forms the N × N cosines once.  All but the norm are those of tokens divided
by their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

LIGHT = {
    "mean_cosine": "mean cosine of pairs of tokens",
    "rank_one_residual": "relative residual to rank one, |X - 1 mean(X)| / |X|, of normed tokens",
    "norm": "mean length of a token",
    "first_cosine": "mean cosine of the first token with the others",
    "first_norm": "length of the first token over the mean length of the others",
}
FULL = {
    "cosine_sd": "standard deviation of the cosine over pairs",
    "energy": "interaction energy E_beta of the normed tokens",
    "effective_rank": "effective rank (sum of eigenvalues)^2 / sum of squares, of the cosines",
    "stable_rank": "stable rank |X|_F^2 / |X|_2^2 of normed tokens",
    "near_identical": "share of pairs with cosine above 0.999",
    "clusters": "connected clusters of tokens with cosine above 0.999",
}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NEAR = 0.999
POWER_STEPS = 20  # for the largest eigenvalue: to rounding where tokens are near, to 2 % for independent ones


def token_statistics(
    x: torch.Tensor, *, special_first: bool, full: bool = True, beta: float = 1.0
) -> tuple[dict[str, float], list[float]]:
    """Statistics by name and, if `full`, the quantiles of the cosine, of tokens x (N × d); the first one apart.

    >>> values, _ = token_statistics(torch.eye(3), special_first=False)
    >>> [round(values[name], 5) for name in ("mean_cosine", "effective_rank", "clusters")]
    [0.0, 3.0, 3.0]
    """
    lengths = torch.linalg.vector_norm(x, dim=1)
    unit = x / lengths[:, None].clamp_min(torch.finfo(x.dtype).tiny)
    first, rest = unit[0], unit[1:]
    values = {
        "first_cosine": float((rest @ first).mean()),
        "first_norm": float(lengths[0] / lengths[1:].mean()),
    }
    if special_first:
        unit, lengths = rest, lengths[1:]
    n = len(unit)
    centre = unit.mean(dim=0)
    squared = float(centre @ centre)
    values |= {
        "mean_cosine": (n * squared - 1) / (n - 1),
        # In the mean of squares: 1 - |centre|² would lose the digits of merged tokens.
        "rank_one_residual": math.sqrt(float(torch.square(unit - centre).sum(1).mean())),
        "norm": float(lengths.mean()),
    }
    if not full:
        return values, []
    cosine = unit @ unit.T
    pairs = n * (n - 1)
    square_sum = float(torch.linalg.vector_norm(cosine)) ** 2
    # About the mean, and without the diagonal: a difference of squares has no digits once tokens are near.
    deviations = (cosine - values["mean_cosine"]).fill_diagonal_(0.0)
    near = (cosine > NEAR).fill_diagonal_(True)  # also where a token is zero
    top = float(torch.exp(beta * (cosine - 1)).sum())
    values |= {
        "cosine_sd": float(torch.linalg.vector_norm(deviations)) / math.sqrt(pairs),
        "energy": 0.5 * math.exp(beta) * (1 - top / n**2),
        "effective_rank": n**2 / square_sum,
        "stable_rank": n / _largest_eigenvalue(cosine),
        "near_identical": (float(near.sum()) - n) / pairs,
        "clusters": float(_clusters(near)),
    }
    return values, _quantiles(cosine)


def _largest_eigenvalue(cosine: torch.Tensor) -> float:
    # Near the mean direction, yet not orthogonal to the difference of two clusters of one size.
    vector = cosine @ torch.linspace(0.5, 1.5, len(cosine), dtype=cosine.dtype)
    for _ in range(POWER_STEPS):
        vector = cosine @ (vector / torch.linalg.vector_norm(vector))
    return float(torch.linalg.vector_norm(vector))


def _clusters(near: torch.Tensor) -> int:
    """Connected components of the graph of near tokens, from its edges: most often there are few."""
    first, second = (index.cpu().numpy() for index in near.nonzero(as_tuple=True))
    edges = coo_array((np.ones(first.size, bool), (first, second)), shape=tuple(near.shape))
    return int(connected_components(edges, directed=False)[0])


def _quantiles(cosine: torch.Tensor) -> list[float]:
    """Order statistics of the pairs; partitioned, not sorted, which would cost more than all the rest."""
    n = len(cosine)
    pairs = cosine.cpu().numpy()[np.triu_indices(n, 1)]
    places = [min(int(q * pairs.size), pairs.size - 1) for q in QUANTILES]
    return np.partition(pairs, places)[places].tolist()


def attention_entropy(weights: torch.Tensor) -> float:
    """Mean entropy of attention over heads and queries, relative to that of equal weights: 1 is a plain average.

    `weights` is heads × N × N; a query that sees one token only is left out.

    >>> attention_entropy(torch.full((1, 2, 2), 0.5))
    1.0
    """
    seen = (weights > 0).sum(dim=-1)
    entropy = torch.special.entr(weights).sum(dim=-1)
    several = seen > 1
    return float((entropy[several] / torch.log(seen[several])).mean())


ALL: Mapping[str, str] = {
    **LIGHT, **FULL, "attention_entropy": "entropy of attention relative to that of equal weights",
}  # fmt: skip
