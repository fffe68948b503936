"""The picture of a run: its energy and the spread of its overlaps by layer, with the theory over them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import xarray as xr

from synchronoise import plots
from synchronoise.config import RunConfig, noise_terms
from synchronoise.observables import MOST_PAIRED, distinct_share
from synchronoise.routes import law_of
from synchronoise.store import write_atomically
from synchronoise.theory import pair_expectation

COARSE = 0.2  # of (T/L) κ(1)(d-1): beyond it a run of few layers is visibly not its limit
DRAWN_QUANTILES = [0.05, 0.5, 0.95]


def draw_run(config: RunConfig, dataset: xr.Dataset, path: str | Path) -> None:
    """Draw the result of a run into the PNG file `path`, whole or not at all.

    The energy of every replica, their mean ± 1 SE and, where there is one, the two-token prediction
    (`predicted_energy`); the histogram of all overlaps, and quantiles of the first replica.
    Raises `RunError` when the file cannot be written.
    """
    energy = dataset["energy"].astype(float)  # float32 has no room for squares of e^88
    shown = dataset.sel(quantile=DRAWN_QUANTILES).assign(
        energy_mean=energy.mean("replica"), overlap_share=dataset["overlap_histogram"].mean("replica")
    )
    if config.replicas > 1:
        shown["energy_se"] = energy.std("replica", ddof=1) / np.sqrt(config.replicas)
    words = [caption(config)]
    if config.tokens > MOST_PAIRED:
        words.append(f"energy and overlaps of the first {MOST_PAIRED} tokens")
    prediction = predicted_energy(config, dataset["time"].values)
    if prediction is not None:
        shown["energy_prediction"] = ("layer", prediction)
        one_layer = config.step * (config.dim - 1) * law_of(config).kernel().kappa_1
        if one_layer > COARSE:
            words.append(f"few layers: (T/L) κ(1)(d-1) = {one_layer:.2g} is not small, the limit L = ∞ may be far")
    content = io.BytesIO()
    plots.run_figure(shown, "\n".join(words)).savefig(content, format="png", dpi=200)
    write_atomically(path, content.getbuffer())


def predicted_energy(config: RunConfig, times: np.ndarray) -> np.ndarray | None:
    """E[E_β(μ_t)] = (1 - 1/N) E ½(e^β - e^{βρ_t}) of the limit L, m -> ∞ (THEORY §5, §6); None where it is silent.

    It holds for exchangeable tokens that only MLP layers move: no attention, and a uniform or equiangular start.

    >>> from synchronoise.config import configure
    >>> law = {"dim": 5, "tokens": 2, "sigma_u": 0.1, "sigma_w": 0.1, "attention": "none"}
    >>> predicted_energy(configure(law), np.array([5.0])).round(5).tolist()
    [0.22807]
    >>> predicted_energy(configure({}), np.array([5.0])) is None
    True
    """
    attention = config.attention != "none" and config.attention_scale != 0
    if attention or config.noise not in ("mlp", "field") or config.start not in ("uniform", "equiangular"):
        return None
    rho0 = config.overlap if config.start == "equiangular" else None
    pair = pair_expectation(law_of(config).kernel(), "energy", times, rho0, beta=config.beta)
    # The solver is accurate to an absolute error; what is below that is not a prediction.
    return np.where(pair.mean < 10 * pair.error, np.nan, distinct_share(config.tokens) * pair.mean)


def caption(config: RunConfig) -> str:
    """What was run, in a line or two: parameters under the paper's names.

    >>> from synchronoise.config import configure
    >>> caption(configure({"noise": "none"})).splitlines()[0]
    'no noise, softmax attention (β = 1, scale 1)'
    """
    width = "infinite width" if config.width == "inf" else f"width {config.width}"
    biases = f"(σ_U = {config.sigma_u:g}, σ_W = {config.sigma_w:g})"
    words = {
        "none": "no noise",
        "mlp": f"{config.activation} layers of {width} {biases}",
        "field": f"{config.activation} layers of infinite width {biases}",
        "private": "private noise {}",
        "vector": "one Brownian vector {}",
        "values": "random value matrices {}",
    }
    layers = " + ".join(words[name].format(f"σ = {sigma:g}") for name, sigma in noise_terms(config.noise))
    attention = "no attention"
    if config.attention != "none" and config.attention_scale != 0:
        attention = f"{config.attention} attention (β = {config.beta:g}, scale {config.attention_scale:g})"
    runs = "1 replica" if config.replicas == 1 else f"{config.replicas} replicas"
    return (
        f"{layers}, {attention}\nN = {config.tokens} tokens, d = {config.dim}, L = {config.layers}, "
        f"T = {config.horizon:g}, {runs} from {config.start}, seed {config.seed}, {config.dtype}"
    )
