"""Escape from metastable clusters: attention gathers the tokens in a few, noise makes them merge (THEORY §7)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .clusters import MergeAngles, check_delta, check_result, cluster_count, first_time, watch
from .config import LARGEST, configure
from .errors import UserError
from .model import Transformer
from .noise import ScaledNoise
from .observables import Positions
from .pictures import caption
from .plots_flow import escape_figure, save_figure
from .routes import attention_of, noise_of
from .runs import Job, prepare, provenance
from .simulation import FloorWarning
from .store import save

#: Metastable clusters on the circle: β = 7 gathers uniform tokens in about four (THEORY §7).
DEFAULTS = {"dim": 2, "beta": 7.0, "tokens": 32, "width": "16", "layers": 1000, "horizon": 20.0, "every": 5}

SETTLED_ROWS = 20  # the settling is run in so many parts, between which it can be interrupted


def escapes(
    given: Mapping[str, object], out: str | Path, *, strengths: Sequence[float] = (0.5, 1.0, 2.0), settle: float = 15.0,
    delta: float = 0.3, overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Escape times from the clusters of the deterministic flow, without noise and for each strength of the noise.

    The attention alone runs for the time ``settle``; its tokens are the start, with k clusters at δ.  From there the
    noise is ``strength`` times that of the configuration, and the escape is the first time with fewer than k clusters.
    Replicas that begin in one cluster are left out.  "mean" is E min(τ, T): no replica is lost to the horizon T.
    Writes `out` (the times) and a figure of the shares that have not escaped.
    """
    check_delta(delta)
    config = configure({**DEFAULTS, **given})
    names = {0.0: "no noise", **{strength: f"strength {strength:g}" for strength in strengths}}
    if len(set(names.values())) <= len(strengths) or not all(math.isfinite(s) and s > 0 for s in strengths):
        raise UserError("strengths", got=list(strengths), expected="different finite numbers > 0", mend="e.g. 0.5,1,2")
    if not (settle > 0 and math.isfinite(settle)):
        raise UserError("settle", got=settle, expected="a finite number > 0", mend="e.g. 15")
    attention, noise = attention_of(config), noise_of(config)
    if attention is None:
        raise UserError("escape needs attention: it gathers the clusters", mend="use --attention softmax")
    if noise is None:
        raise UserError("escape needs noise: it makes the clusters merge", mend="use --noise mlp")
    out = check_result(out, "escape", overwrite=overwrite)
    job = prepare({**DEFAULTS, **given})
    start = _settled(job, settle, progress)
    times, begun = {}, np.zeros(0)
    for strength, name in names.items():
        # No noise is strength 0, so that all of them are one compiled program.
        model = Transformer(attention, ScaledNoise(noise, strength), layers=config.layers, horizon=config.horizon)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FloorWarning)  # what is so close is one cluster, and stays it
            dataset = watch(Job(config, model, start), (MergeAngles(),), progress=progress)
        count = cluster_count(dataset["merge_angles"].values[:, :, 0], delta)
        begun = count[:, 0]
        if not (begun > 1).any():
            raise UserError("every replica has one cluster when the noise begins", mend="a shorter --settle or more β")
        times[name] = first_time(count < count[:, :1], dataset["time"].values)[begun > 1]
    result = xr.Dataset(
        {"escape_time": (("strength", "replica"), np.stack(list(times.values())), {"long_name": "escape time"})},
        {"strength": list(names), "replica": np.flatnonzero(begun > 1)},
    )
    save(result, out, {**provenance(job), "settle": settle, "delta": delta}, kind="escape")
    picture = save_figure(escape_figure(times, config.horizon, caption(config)), out)
    return {
        "clusters": float(begun[begun > 1].mean()),
        "replicas": int((begun > 1).sum()),
        "horizon": config.horizon,
        **{name: _summary(values, config.horizon) for name, values in times.items()},
        "file": str(out),
        "picture": picture,
    }


def _settled(job: Job, settle: float, progress: bool) -> np.ndarray:
    """The tokens that the attention alone makes of the start, (replica, token, dim)."""
    config = job.config
    every = max(1, math.ceil(config.layers * settle / config.horizon / SETTLED_ROWS))
    layers = every * SETTLED_ROWS
    if layers > LARGEST:
        raise UserError("settle", got=settle, expected=f"no more than {LARGEST} layers", mend="use a shorter --settle")
    alone = Transformer(job.model.attention, None, layers=layers, horizon=settle)
    still = config.model_copy(update={"every": every, "save_tokens": False})
    return watch(Job(still, alone, job.start), (Positions(),), progress=progress)["tokens"].values[:, -1]


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
