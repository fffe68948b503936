"""Figures of clusters, of noises side by side and of escapes: they take results and draw them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from synchronoise.plots import BLUE, GREY, ORANGE, RED, STYLE
from synchronoise.store import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (BLUE, RED, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#000000")


def save_figure(figure: Figure, out: str | Path) -> str:
    """Write the figure beside a result, under its name ending in .png; the path."""
    path, content = Path(out).with_suffix(".png"), io.BytesIO()
    figure.savefig(content, format="png", dpi=200)
    write_atomically(path, content.getbuffer())
    return str(path)


def clusters_figure(dataset: xr.Dataset, delta: float) -> Figure:
    """Number of clusters against time at several angles, and against the angle at several times (mean of replicas)."""
    figure, (left, right) = _panels(2)
    deltas, time = dataset["delta"].values, dataset["time"].values
    for colour, angle in zip(COLOURS, (delta / 4, delta, 4 * delta), strict=False):
        nearest = int(np.argmin(np.abs(np.log(deltas / angle))))
        mean = dataset["clusters"].values[:, :, nearest]
        left.plot(time, mean[:, 0], color=colour, label=f"δ = {deltas[nearest]:.3g}")
        left.plot(time, mean[:, 1], color=colour, linestyle=":", linewidth=0.9)
    left.set(xlabel="time t", ylabel="clusters (dotted: up to sign)", yscale="log")
    left.legend(frameon=False)
    for colour, share in zip(COLOURS, (0.0, 0.1, 0.3, 1.0), strict=False):
        row = round(share * (time.size - 1))
        right.plot(deltas, dataset["clusters"].values[row, 0], color=colour, label=f"t = {time[row]:.3g}")
    right.set(xlabel="angle δ", ylabel="clusters", xscale="log", yscale="log")
    right.legend(frameon=False)
    return figure


def compare_figure(results: Mapping[str, xr.Dataset], caption: str) -> Figure:
    """Energy, clusters and share of synchronised replicas against time, one colour for each noise."""
    figure, (energy, clusters, merged) = _panels(3)
    for colour, (name, result) in zip(COLOURS, results.items(), strict=False):
        time = result["time"]
        mean, error = result["energy_mean"].values, result["energy_se"].values
        energy.plot(time, mean, color=colour, label=name)
        energy.fill_between(time, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)
        if "energy_prediction" in result:
            energy.plot(time, result["energy_prediction"], color=colour, linestyle=(0, (4, 2)), linewidth=0.9)
        clusters.plot(time, result["clusters_mean"], color=colour)
        merged.plot(time, result["synchronised"], color=colour)
    energy.set(xlabel="time t", ylabel="energy (dashed: two-token equation)")
    clusters.set(xlabel="time t", ylabel="clusters")
    merged.set(xlabel="time t", ylabel="share in one cluster", ylim=(-0.02, 1.02))
    energy.legend(frameon=False)
    figure.suptitle(caption, fontsize=8)
    return figure


def escape_figure(times: Mapping[str, np.ndarray], horizon: float, caption: str) -> Figure:
    """Share of the replicas that have not escaped against time, one curve for each strength of the noise."""
    figure, (axis,) = _panels(1)
    for colour, (name, escapes) in zip((GREY, *COLOURS), times.items(), strict=False):
        steps = np.sort(np.append(0.0, np.minimum(escapes, horizon)))
        axis.step(steps, 1 - np.arange(steps.size) / escapes.size, where="post", color=colour, label=name)
    axis.set(xlabel="time t", ylabel="share not escaped", xlim=(0, horizon), ylim=(0, 1.02), title=caption)
    axis.legend(frameon=False)
    return figure


def _panels(count: int) -> tuple[Figure, Any]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(min(2.6 * count, 7.1) if count > 1 else 3.6, 2.4), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots(1, count, squeeze=False)[0]
