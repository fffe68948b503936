"""Figures of clusters, of noises side by side and of escapes: they take results and draw them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from synchronoise.plots import BLUE, GREY, ORANGE, RED, STYLE
from synchronoise.store import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 7}
COLOURS = (BLUE, RED, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#000000")


def save_figure(figure: Figure, out: str | Path) -> str:
    """Write the figure beside a result, under its name ending in .png; the path."""
    path, content = Path(out).with_suffix(".png"), io.BytesIO()
    figure.savefig(content, format="png", dpi=200)
    write_atomically(path, content.getbuffer())
    return str(path)


def clusters_figure(dataset: xr.Dataset, shown: Sequence[float], caption: str) -> Figure:
    """Mean number of clusters against time at the angles shown, and against the angle at several times."""
    figure, (left, right) = _panels(2)
    deltas, time = dataset["delta"].values, dataset["time"].values
    for colour, angle in zip(cycle(COLOURS), shown, strict=False):
        mean = dataset["clusters"].sel(delta=angle).values
        left.plot(time, mean[:, 0], color=colour, label=f"δ = {angle:.3g}")
        left.plot(time, mean[:, 1], color=colour, linestyle=":", linewidth=0.9)
    left.set(xlabel="time t", ylabel="clusters (dotted: up to sign)", yscale="log")
    left.legend(**LEGEND)
    for colour, share in zip(COLOURS, (0.0, 0.1, 0.3, 1.0), strict=False):
        row = round(share * (time.size - 1))
        right.plot(deltas, dataset["clusters"].values[row, 0], color=colour, label=f"t = {time[row]:.3g}")
    right.set(xlabel="angle δ", ylabel="clusters", xscale="log", yscale="log")
    right.legend(**LEGEND)
    for axis in (left, right):
        axis.yaxis.set_major_formatter("{x:g}")
    figure.suptitle(caption, fontsize=7)
    return figure


def compare_figure(results: Mapping[str, xr.Dataset], floors: Mapping[str, float | None], caption: str) -> Figure:
    """Energy, clusters and share of synchronised replicas against time, one colour for each noise.

    Dashed: the two-token equation; dotted: the floor of the energy that it gives.
    """
    figure, (energy, clusters, merged) = _panels(3)
    for colour, (name, result) in zip(cycle(COLOURS), results.items(), strict=False):
        time = result["time"]
        mean, error = result["energy_mean"].values, result["energy_se"].values
        energy.plot(time, mean, color=colour)
        energy.fill_between(time, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)
        if "energy_prediction" in result:
            energy.plot(time, result["energy_prediction"], color=colour, linestyle=(0, (4, 2)), linewidth=1.2)
        floor = floors.get(name)
        if floor is not None:
            energy.axhline(floor, color=colour, linestyle=":", linewidth=0.9)
        clusters.plot(time, result["clusters_mean"], color=colour, label=name)
        merged.plot(time, result["synchronised"], color=colour)
    theory = any("energy_prediction" in result for result in results.values())
    energy.set(xlabel="time t", ylabel="energy\n(dashed: two-token equation)" if theory else "energy", ylim=(0, None))
    clusters.set(xlabel="time t", ylabel="clusters")
    merged.set(xlabel="time t", ylabel="share in one cluster", ylim=(-0.02, 1.02))
    clusters.legend(**LEGEND)
    figure.suptitle(caption, fontsize=7)
    return figure


def escape_figure(times: Mapping[str, np.ndarray], horizon: float, caption: str) -> Figure:
    """Share of the replicas that have not escaped against time, one curve for each strength of the noise."""
    figure, (axis,) = _panels(1)
    for colour, (name, escapes) in zip(cycle((GREY, *COLOURS)), times.items(), strict=False):
        steps = np.sort(np.append(0.0, escapes[np.isfinite(escapes)]))
        left = 1 - np.arange(steps.size) / escapes.size
        axis.step(np.append(steps, horizon), np.append(left, left[-1]), where="post", color=colour, label=name)
    axis.set(xlabel="time t", ylabel="share not escaped", xlim=(0, horizon), ylim=(0, 1.02))
    axis.legend(**LEGEND, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(caption, fontsize=7)
    return figure


def _panels(count: int) -> tuple[Figure, Any]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(min(2.6 * count, 7.1) if count > 1 else 5.2, 2.4), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots(1, count, squeeze=False)[0]
