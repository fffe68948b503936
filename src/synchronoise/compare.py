"""Noises side by side: the same start, attention and one-token speed κ(1), another noise (THEORY §3, §5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .clusters import MergeAngles, check_delta, check_result, cluster_count, watch
from .config import RunConfig, configure, noise_terms
from .errors import UserError, did_you_mean
from .observables import Energy, distinct_share
from .pictures import caption
from .plots_flow import compare_figure, save_figure
from .routes import law_of
from .runs import prepare, provenance
from .store import save
from .theory import (
    PairAttention,
    PairLaw,
    field_noise,
    pair_expectation,
    private_noise,
    stationary_overlap,
    value_noise,
    vector_noise,
)

# Few tokens are cheap, and their late mean energy is carried by rare pairs: many replicas.
PAIRED_REPLICAS = 2048
COMPARED = ("mlp", "field", "private", "vector", "values")


def pair_law_of(config: RunConfig) -> PairLaw | None:
    """The two-token law of a configuration in the limit; None where there is none (THEORY §5).

    Without attention (and without random values) it serves every pair of N tokens, with softmax or unnormalised
    attention two tokens alone.

    >>> from synchronoise.config import configure
    >>> pair_law_of(configure({"tokens": 3})) is None
    True
    """
    terms = noise_terms(config.noise)
    attention = "none" if config.attention_scale == 0 else config.attention
    interacting = attention != "none" or "values" in dict(terms)
    if config.noise == "none" or config.redraw or (interacting and config.tokens != 2):
        return None
    if attention not in ("none", "softmax", "unnormalised"):
        return None
    build = {
        "mlp": lambda sigma: field_noise(kernel),
        "field": lambda sigma: field_noise(kernel),
        "private": private_noise,
        "vector": vector_noise,
        "values": lambda sigma: value_noise(config.beta, sigma),
    }
    kernel = law_of(config).kernel()
    noises = tuple(build[name](sigma) for name, sigma in terms)
    return PairLaw(config.dim, noises, PairAttention(attention, config.attention_scale, config.beta))


def stationary_energy(law: PairLaw, beta: float, tokens: int) -> float | None:
    """(1 - 1/N) E ½(e^β - e^{βρ}) in the stationary law of the overlap: the floor of E_β; None where tokens merge.

    >>> from synchronoise.theory import PairLaw, private_noise
    >>> round(stationary_energy(PairLaw(3, (private_noise(1.0),)), 1.0, 2), 4)  # uniform: ½ ½ (e - sinh 1)
    0.3858
    """
    stationary = stationary_overlap(law)
    if stationary is None:
        return None
    edges = np.concatenate([[0.0], 0.5 * (stationary.cumulative[1:] + stationary.cumulative[:-1]), [1.0]])
    pair = 0.5 * (math.exp(beta) - np.exp(beta * stationary.overlap))
    return float(distinct_share(tokens) * pair @ np.diff(edges))


def compare_noises(
    given: Mapping[str, object], out: str | Path, *, noises: Sequence[str] = ("mlp", "private", "vector", "values"),
    delta: float = 0.1, overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run one configuration under several noises of the one-token speed κ(1) of its MLP; write `out` and one figure.

    ``private``, ``vector`` and ``values`` get the deviation √κ(1) (values: the speed of merged tokens, |m_i| = 1).  For
    each noise: the energy at the end with its standard error, what the two-token equation says of it and of its floor
    (None where they are silent), the clusters at δ, and the share of replicas in one cluster.
    """
    check_delta(delta)
    for name in noises:
        if name not in COMPARED:
            raise UserError(f"unknown noise {name!r}", mend=did_you_mean(name, COMPARED))
    if len(set(noises)) < len(noises):
        raise UserError("noises", got=list(noises), expected="different ones", mend="name each of them once")
    usual = configure(given)
    given = {"replicas": max(usual.replicas, PAIRED_REPLICAS // usual.tokens), **given}
    config = configure(given)
    speed = law_of(config).kernel().kappa_1
    out = check_result(out, "comparison", overwrite=overwrite)
    results, report, combined = {}, {}, xr.Dataset()
    for name in noises:
        noise = name if name in ("mlp", "field") else f"{name}:{math.sqrt(speed)!r}"
        job = prepare({**given, "noise": noise})
        dataset = watch(job, (Energy(beta=config.beta), MergeAngles()), progress=progress)
        results[name] = shown = _with_theory(dataset, job.config, delta)
        law = pair_law_of(job.config)
        report[name] = {
            "energy": float(shown["energy_mean"][-1]),
            "energy_se": float(shown["energy_se"][-1]) if config.replicas > 1 else None,
            "predicted_energy": float(shown["energy_prediction"][-1]) if "energy_prediction" in shown else None,
            "floor": None if law is None else stationary_energy(law, config.beta, config.tokens),
            "clusters": float(shown["clusters_mean"][-1]),
            "synchronised": float(shown["synchronised"][-1]),
        }
        combined = combined.assign({f"{kind}_{name}": values for kind, values in shown.data_vars.items()})
    save(combined, out, {**provenance(prepare(given)), "noises": list(noises)}, kind="comparison")
    floors = {name: numbers["floor"] for name, numbers in report.items()}
    words = f"noises of the speed κ(1) = {speed:.4g} of {caption(configure({**given, 'noise': 'mlp'}))}"
    picture = save_figure(compare_figure(results, floors, words), out)
    return {"speed": speed, "time": config.horizon, "noises": report, "file": str(out), "picture": picture}


def _with_theory(dataset: xr.Dataset, config: RunConfig, delta: float) -> xr.Dataset:
    """The means over replicas that are drawn, and the two-token equation where it holds."""
    count = cluster_count(dataset["merge_angles"].values[:, :, 0], delta)
    energy, replicas = dataset["energy"].astype(float), dataset.sizes["replica"]
    law = pair_law_of(config)
    shown = xr.Dataset(
        {
            "energy_mean": energy.mean("replica"),
            "energy_se": energy.std("replica", ddof=1 if replicas > 1 else 0) / math.sqrt(replicas),
            "clusters_mean": ("layer", count.mean(axis=0)),
            "synchronised": ("layer", (count == 1).mean(axis=0)),
        },
        {"time": dataset["time"], "layer": dataset["layer"]},
    )
    if law is not None and config.start in ("uniform", "equiangular"):
        rho0 = config.overlap if config.start == "equiangular" else None
        pair = pair_expectation(law, "energy", shown["time"].values, rho0, beta=config.beta)
        shown["energy_prediction"] = ("layer", distinct_share(config.tokens) * pair.mean)
    return shown
