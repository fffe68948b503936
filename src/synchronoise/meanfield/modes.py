"""`synchronoise modes`: what attention alone makes of a nearly uniform measure on the circle, and what noise then does.

From the uniform measure mode k grows at k² I_k(β)/β (unnormalised attention) or that over I_0(β) (softmax); its argmax
is the metastable number of clusters.  Common noise makes them merge   (THEORY §7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ive

from ..clusters import MergeAngles, cluster_count
from ..config import RunConfig
from ..errors import UserError
from ..model import Transformer
from ..progress import Progress
from ..routes import attention_of
from ..runs import prepare
from ..sphere import Uniform
from .initial import nodes
from .lagrangian import check_scope, lagrangian
from .run import field_of

DEFAULTS: dict[str, Any] = {
    "dim": 2, "beta": 5.0, "sigma_u": 0.3, "width": "inf", "tokens": 128, "layers": 600, "horizon": 30.0,
    "replicas": 30, "every": 6, "dtype": "float64",
}  # fmt: skip
LARGEST_MODE = 8
POINTS = 1024  # of the quadrature that carries a single mode
SMALL = 1e-4  # its amplitude, and the growth over the step at which its rate is measured
SEEN = 0.5  # amplitude from which a single mode forms clusters
RULE = "connected components of tokens closer than a quarter of the distance of k clusters"


def growth(beta: float, kind: str, modes: int = LARGEST_MODE) -> np.ndarray:
    """k² I_k(β)/β, k = 1, ..., for "unnormalised" attention; that over I_0(β) for "softmax"; V = I.

    >>> int(growth(5.0, "softmax").argmax()) + 1, int(growth(7.0, "unnormalised").argmax()) + 1
    (3, 4)
    """
    k = np.arange(1, modes + 1)
    scale = ive(0, beta) if kind == "softmax" else np.exp(-beta)
    return k**2 * ive(k, beta) / (beta * scale)


def modes(given: Mapping[str, object], *, progress: bool = False) -> dict[str, Any]:
    """Growth rates measured and exact; clusters from the fastest mode and from random starts; when noise merges them.

    ``given`` are names of `RunConfig`; ``replicas`` random starts of ``tokens`` tokens.  Raises `UserError` beyond the
    circle, and for attention without these rates.
    """
    config = prepare({**DEFAULTS, **given}).config
    if config.dim != 2 or config.attention not in ("softmax", "unnormalised") or config.attention_scale != 1:
        raise UserError(
            "modes", got=f"dim {config.dim}, {config.attention}, scale {config.attention_scale:g}",
            expected="dim 2, softmax or unnormalised attention of scale 1", mend="leave them out",
        )  # fmt: skip
    if config.beta <= 0 or config.redraw:
        raise UserError("modes", got=f"beta {config.beta:g}, redraw {config.redraw}", expected="beta > 0, no redraw")
    exact = growth(config.beta, config.attention)
    fastest = growth(config.beta, config.attention, 64).argmax().item() + 1
    angle = np.pi / (2 * fastest)
    with Progress("modes", 3, "part", shown=progress) as bar:
        measured = [measured_growth(config, k) for k in range(1, LARGEST_MODE + 1)]
        single = _counts(config, None, angle, mode=fastest)[0, -1]
        bar.advance(1)
        alone = _counts(config, None, angle)
        bar.advance(1)
        noise = field_of(config)
        merged = None if noise is None else _counts(config, noise, angle)
        bar.advance(1)
    result: dict[str, Any] = {
        "beta": config.beta, "attention": config.attention, "modes": list(range(1, LARGEST_MODE + 1)),
        "growth": measured, "growth_exact": exact.tolist(),
        "largest_deviation": float(np.max(np.abs(np.array(measured) / exact - 1))), "fastest_mode": fastest,
        "clusters_from_fastest_mode": int(single), "rule": RULE, "angle": angle,
        "clusters_from_random": _tally(alone[:, -1]), "most_clusters_from_random": _tally(alone.max(axis=1)),
    }  # fmt: skip
    if merged is not None:
        # A diffuse start is connected too: what counts is the last time with more than one.
        several = merged > 1
        last = merged.shape[1] - np.argmax(several[:, ::-1], axis=1)
        done = (np.where(several.any(axis=1), last, 0) * config.every * config.step)[~several[:, -1]]
        result |= {
            "merged": len(done), "starts": config.replicas, "horizon": config.horizon,
            "time_to_one_cluster": np.quantile(done, [0.25, 0.5, 0.75]).tolist() if len(done) else None,
            "times": sorted(done.tolist()),
        }  # fmt: skip
    return result


def _tally(counts: np.ndarray) -> dict[str, int]:
    """How often each number occurs."""
    return dict(sorted(Counter(map(str, counts.tolist())).items()))


def measured_growth(config: RunConfig, mode: int) -> float:
    """The growth rate of one small mode of the density 1 + ε cos kθ, over one short step of the tokens' map."""
    x = nodes(2, POINTS)
    wave = np.cos(mode * np.arctan2(x[:, 1], x[:, 0]))
    weights = (1 + SMALL * wave) / POINTS
    step = SMALL / float(growth(config.beta, config.attention).max())
    model = Transformer(attention_of(config), None, layers=1, horizon=step)
    moved = lagrangian(model, x, weights, replicas=1, observers=(), save_tokens=True, dtype=config.dtype)
    end = moved["tokens"].values[0, -1]
    before, after = weights @ wave, weights @ np.cos(mode * np.arctan2(end[:, 1], end[:, 0]))
    return float((after / before - 1) / step)


def _counts(config: RunConfig, noise: Any, angle: float, mode: int | None = None) -> np.ndarray:
    """Numbers of clusters (replica, observed layer) from random starts, or from one mode of amplitude `SEEN`."""
    model = Transformer(attention_of(config), noise, layers=config.layers, horizon=config.horizon)
    check_scope(model)
    how: dict[str, Any] = {
        "observers": (MergeAngles(),),
        "every": config.every,
        "dtype": config.dtype,
        "seed": config.seed,
    }
    if mode is None:
        run = lagrangian(model, Uniform(config.tokens, 2), replicas=config.replicas, **how)
    else:
        x = nodes(2, 32 * mode)
        weights = 1 + SEEN * np.cos(mode * np.arctan2(x[:, 1], x[:, 0]))
        run = lagrangian(model, x, weights, replicas=1, **how)
    return cluster_count(run["merge_angles"].values[:, :, 0], angle)
