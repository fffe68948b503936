"""Escape from metastable clusters: attention gathers the tokens in a few, noise makes them merge (THEORY §7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from .clusters import MergeAngles, check_result, cluster_count, first_time, watch
from .config import RunConfig, configure
from .errors import UserError
from .model import Transformer
from .observables import Positions
from .plots_flow import escape_figure, save_figure
from .runs import Job, attention_of, noise_of, prepare, provenance
from .simulation import simulate
from .store import save

#: Metastable clusters on the circle: β = 7 gathers uniform tokens in about four (THEORY §7).
DEFAULTS = {"dim": 2, "beta": 7.0, "tokens": 32, "width": "16", "layers": 1000, "horizon": 20.0, "every": 5}


def escapes(
    given: Mapping[str, object], out: str | Path, *, strengths: Sequence[float] = (0.5, 1.0, 2.0), settle: float = 15.0,
    delta: float = 0.3, overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Escape times from the clusters of the deterministic flow, without noise and for each strength of the noise.

    The attention alone runs for the time ``settle``; its tokens are the start, with k clusters at δ.  From there the
    noise is ``strength`` times that of the configuration (√(T/L) becomes strength √(T/L)), and the escape is the first
    time with fewer than k clusters.  Replicas that begin in one cluster are left out.  "mean" is E min(τ, T): no
    replica is lost to the horizon T.  Writes `out` (the times) and a figure of the shares that have not escaped.
    """
    config = configure({**DEFAULTS, **given})
    if any(not (math.isfinite(s) and s > 0) for s in strengths) or not (settle > 0 and math.isfinite(settle)):
        raise UserError(
            "strengths and settle", got=[*strengths, settle], expected="finite numbers > 0", mend="change it"
        )
    attention = attention_of(config)
    if attention is None:
        raise UserError("escape needs attention: it gathers the clusters", mend="use --attention softmax")
    out = check_result(out, "escape", overwrite=overwrite)
    job = prepare({**DEFAULTS, **given})
    start = _settled(job, settle, progress)
    times = {"no noise": _escape_times(config, Transformer(attention, None, **_sizes(config)), start, delta, progress)}
    for strength in strengths:
        model = Transformer(attention, noise_of(config), **_sizes(config), alpha_2=_scaled(strength, config.horizon))
        times[f"strength {strength:g}"] = _escape_times(config, model, start, delta, progress)
    kept = cluster_count(_edges(start), delta) > 1
    if not kept.any():
        raise UserError("every replica has one cluster when the noise begins", mend="use a shorter --settle or more β")
    times = {name: values[kept] for name, values in times.items()}
    result = xr.Dataset(
        {"escape_time": (("strength", "replica"), np.stack(list(times.values())), {"long_name": "escape time"})},
        {"strength": [0.0, *strengths], "replica": np.flatnonzero(kept)},
    )
    save(result, out, {**provenance(job), "settle": settle, "delta": delta}, kind="escape")
    caption = f"{config.attention} attention, β = {config.beta:g}, d = {config.dim}, N = {config.tokens}"
    picture = save_figure(escape_figure(times, config.horizon, caption), out)
    return {
        "clusters": float(cluster_count(_edges(start), delta)[kept].mean()),
        "replicas": int(kept.sum()),
        "horizon": config.horizon,
        **{name: _summary(values, config.horizon) for name, values in times.items()},
        "file": str(out),
        "picture": picture,
    }


def _sizes(config: RunConfig) -> dict[str, Any]:
    return {"layers": config.layers, "horizon": config.horizon}


@lru_cache
def _scaled(strength: float, horizon: float):
    """α_2 of a noise times a number; the same function each time, so that it is compiled once."""
    return lambda layers: strength * jnp.sqrt(horizon / layers)


def _settled(job: Job, settle: float, progress: bool) -> np.ndarray:
    """The tokens that the attention alone makes of the start, (replica, token, dim)."""
    config = job.config
    layers = max(1, round(config.layers * settle / config.horizon))
    alone = Transformer(job.model.attention, None, layers=layers, horizon=settle)
    still = config.model_copy(update={"every": layers})
    return watch(Job(still, alone, job.start), (Positions(),), progress=progress)["tokens"].values[:, -1]


def _escape_times(config: RunConfig, model: Transformer, start: np.ndarray, delta: float, progress: bool) -> np.ndarray:
    dataset = simulate(
        model, start, replicas=config.replicas, seed=config.seed, observers=(MergeAngles(),), every=config.every,
        dtype=config.dtype, progress=progress,
    )  # fmt: skip
    count = cluster_count(dataset["merge_angles"].values[:, :, 0], delta)
    return first_time(count < count[:, :1], dataset["time"].values)


def _edges(start: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(MergeAngles()(jnp.asarray(x), None))[0] for x in start])


def _summary(times: np.ndarray, horizon: float) -> dict[str, Any]:
    """The share that escaped, E min(τ, T) with its standard error, and quantiles (None beyond the horizon)."""
    capped = np.minimum(times, horizon)
    quantiles = {q: float(np.quantile(times, q, method="higher")) for q in (0.25, 0.5, 0.75)}
    return {
        "escaped": float(np.isfinite(times).mean()),
        "mean": float(capped.mean()),
        "se": float(capped.std(ddof=1) / math.sqrt(capped.size)) if capped.size > 1 else None,
        "quantiles": {str(q): value if math.isfinite(value) else None for q, value in quantiles.items()},
    }
