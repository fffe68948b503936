"""The Lagrangian solver: weighted tokens on a quadrature of μ_0 follow the stochastic flow exactly   (THEORY §4).

Given the common noise μ_t is the push-forward of μ_0, and the empirical measure of weighted tokens is an exact
solution: the only error in space is the quadrature of μ_0, and the measure may concentrate as much as it likes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from ..banks import HarmonicField
from ..errors import UserError
from ..model import Transformer
from ..noise import DrawnMLP, Noise, SumNoise, VectorNoise
from ..randomness import replica_keys
from ..simulation import simulate
from ..sphere import Start


def check_scope(model: Transformer, *, field: bool = False) -> None:
    """Refuse what has no SPDE with common noise; with ``field`` also noises that two sets of points cannot share.

    Raises `UserError` with the reason.
    """
    if model.attention is not None and not model.attention.symmetric:
        raise UserError(
            f"{type(model.attention).__name__} depends on the order of the tokens, not on their measure alone",
            mend="use softmax, unnormalised, l2 or sinkhorn attention",
        )
    if model.noise is not None and not model.noise.common:
        raise UserError(
            f"{type(model.noise).__name__} is private: its limit has a Laplacian of its own and no common flow",
            mend="use a common noise",
        )
    if field and model.noise is not None:
        model.noise.field(replica_keys(0, 1)[0])


def speed(noise: Noise | None) -> float:
    """κ(1) of the field that is used, E |G(x)|²/d: what the Laplacian of (1.10) is multiplied by, twice.

    >>> from synchronoise import MLP, DrawnMLP
    >>> speed(DrawnMLP(MLP("relu", dim=4), 8)) == MLP("relu", dim=4).kernel().kappa_1
    True
    """
    if noise is None:
        return 0.0
    if isinstance(noise, SumNoise):
        return sum(speed(part) for part in noise.parts)
    if isinstance(noise, HarmonicField):
        return noise.kappa_1
    if isinstance(noise, VectorNoise):
        return float(noise.sigma) ** 2
    if isinstance(noise, DrawnMLP):
        return noise.mlp.kernel().kappa_1
    raise UserError(f"{type(noise).__name__} has no κ(1) that is the same everywhere", mend="use harmonics or DrawnMLP")


def lagrangian(model: Transformer, x: np.ndarray | Start, weights: np.ndarray | None = None, **how: Any) -> xr.Dataset:
    """Solve (1.10) from Σ_i w_i δ_{x_i}: `simulate` of the weighted tokens, with its keywords (``replicas`` = noises).

    Interrupted it raises, unless asked for what is done (``partial=True``).  Equal weights (or None) are the token
    simulation itself, bit for bit.  Raises `UserError` for attention that depends on the order and for private noise.

    >>> from synchronoise import MLP, DrawnMLP, SoftmaxAttention
    >>> from synchronoise.meanfield import quadrature
    >>> model = Transformer(SoftmaxAttention(), DrawnMLP(MLP("relu", dim=5), 4), layers=4, horizon=1.0)
    >>> lagrangian(model, *quadrature(None, 5, 64), replicas=2)["energy"].shape
    (2, 5)
    """
    check_scope(model)
    if weights is not None and np.ptp(weights) > 0:
        model = Transformer(
            model.attention, model.noise, layers=model.layers, horizon=model.horizon, weights=weights,
            alpha_1=model.alpha_1, alpha_2=model.alpha_2,
        )  # fmt: skip
    return simulate(model, x, **{"partial": False, **how})


__all__ = ["check_scope", "lagrangian", "speed"]
