"""Figures: they take results and draw them, and compute nothing.

Colours are Okabe and Ito's, which colour-blind readers can tell apart.  Matplotlib is imported when a figure is
made, without a display and without touching the caller's settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#bbbbbb"
PAGE_WIDTH = 7.1  # inches: the text width of a page
STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7.5, "axes.linewidth": 0.6, "lines.linewidth": 1.0, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "mathtext.fontset": "dejavusans",
}  # fmt: skip


def _styled(make: Callable[..., Figure]) -> Callable[..., Figure]:
    """The figure in our style, with the caller's settings as they were."""

    @wraps(make)
    def styled(*arguments: Any) -> Figure:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return make(*arguments)

    return styled


@_styled
def figure1(results: Mapping[str, xr.Dataset], caption: str) -> Figure:
    """The first two coordinates of every token over the layers, one row for each result, named by its key."""
    figure, axes = _figure(len(results), 2, height=1.7)
    for row, (name, result) in zip(axes, results.items(), strict=True):
        for index, axis in enumerate(row):
            draw_coordinate(axis, result, index)
            axis.set_ylabel(f"{name}\ncoordinate {index + 1}" if index == 0 else f"coordinate {index + 1}")
    _label_layers(axes, results[next(iter(results))])
    figure.suptitle(caption, fontsize=8)
    return figure


@_styled
def overview(tokens: Mapping[str, xr.Dataset], ensemble: xr.Dataset, caption: str) -> Figure:
    """The first coordinate of every token, for each of two results by name, above one ensemble: overlaps and energy."""
    figure, axes = _figure(2, 2, height=1.9, sharex=False)
    for axis, (name, result) in zip(axes[0], tokens.items(), strict=True):
        draw_coordinate(axis, result, 0)
        axis.set_ylabel("coordinate 1 of each token")
        axis.set_title(name)
    left, right = axes[1]
    image = draw_overlaps(left, ensemble)
    draw_energy(right, ensemble)
    left.set_ylabel(r"overlap $\langle x_i, x_j\rangle$")
    right.set_ylabel(r"energy $E_\beta$")
    for axis in axes[1]:
        axis.set_title(caption)
    bar = left.inset_axes((0.5, 0.52, 0.44, 0.05))
    figure.colorbar(image, cax=bar, orientation="horizontal", label="share of pairs in a bin of 0.04", extend="min")
    right.legend(frameon=False, loc="lower left")
    drawn, labels = left.get_legend_handles_labels()
    left.legend(drawn[:2], labels[:2], frameon=False, loc="lower left")
    _label_layers(axes[:1], next(iter(tokens.values())))
    _label_layers(axes, ensemble)
    return figure


@_styled
def overlap_grid(
    results: Sequence[Sequence[xr.Dataset]], rows: Sequence[str], columns: Sequence[str], caption: str
) -> Figure:
    """How the overlaps of pairs are spread, by layer: one panel for each result."""
    figure, axes = _figure(len(rows), len(columns), height=1.22)
    flat = [result for row in results for result in row]
    images = [draw_overlaps(axis, result) for axis, result in zip(axes.flat, flat, strict=True)]
    _label_grid(figure, axes, results, rows, columns, r"overlap $\langle x_i, x_j\rangle$", caption)
    figure.colorbar(images[0], ax=axes, label="share of pairs in a bin of 0.04", aspect=60, pad=0.015, extend="min")
    _legend(figure, axes)
    return figure


@_styled
def energy_grid(
    results: Sequence[Sequence[xr.Dataset]], rows: Sequence[str], columns: Sequence[str], caption: str
) -> Figure:
    """The energy by layer with the theory drawn over it: one panel for each result."""
    figure, axes = _figure(len(rows), len(columns), height=1.22)
    flat = [result for row in results for result in row]
    for axis, result in zip(axes.flat, flat, strict=True):
        draw_energy(axis, result)
        _corner(axis, result.attrs["note"])
    _label_grid(figure, axes, results, rows, columns, r"energy $E_\beta$", caption)
    _legend(figure, axes)
    return figure


@_styled
def run_figure(result: xr.Dataset, caption: str) -> Figure:
    """One run by layer: its energy on the left, the spread of its overlaps on the right."""
    figure, axes = _figure(1, 2, height=2.2)
    left, right = axes[0]
    draw_energy(left, result)
    left.set_ylabel(r"energy $E_\beta$")
    image = draw_overlaps(right, result)
    right.set_ylabel(r"overlap $\langle x_i, x_j\rangle$")
    figure.colorbar(image, ax=right, label="share of pairs in a bin of 0.04", extend="min")
    _label_layers(axes, result)
    _legend(figure, axes, columns=3)
    figure.suptitle(caption, fontsize=8)
    return figure


def draw_coordinate(axis: Axes, result: xr.Dataset, index: int) -> None:
    """One coordinate of every token of the first replica, by layer."""
    axis.plot(result["layer"], result["tokens"][0, :, :, index], color=BLUE, linewidth=0.4, alpha=0.7)
    axis.set_ylim(-1.02, 1.02)


def draw_overlaps(axis: Axes, result: xr.Dataset):
    """The share of pairs by overlap and layer (all replicas), and the 5, 50, 95 % quantiles of the single run."""
    from matplotlib.colors import LogNorm

    image = axis.pcolormesh(
        result["layer"], result["overlap"], result["overlap_share"].T,
        norm=LogNorm(1e-3, 1), cmap="Blues", shading="nearest", rasterized=True,
    )  # fmt: skip
    low, median, high = result["overlap_quantiles"][0].values.T
    axis.plot(result["layer"], median, color=ORANGE, linewidth=1.0, label="single run: median")
    for edge in (low, high):
        axis.plot(
            result["layer"], edge, color=ORANGE, linewidth=0.6, linestyle=(0, (3, 1)), label="single run: 5 %, 95 %"
        )
    axis.set_ylim(-1, 1)
    return image


def draw_energy(axis: Axes, result: xr.Dataset) -> None:
    """Energies of all replicas, the single run, their mean with its standard error, and the theory there is."""
    layer, mean = result["layer"].values, result["energy_mean"].values
    axis.plot(layer, result["energy"].values[0], color=ORANGE, linewidth=0.9, label="single run", zorder=2)
    if "energy_se" in result:
        axis.plot(layer, result["energy"].values.T, color=GREY, linewidth=0.4, zorder=1)
        axis.plot([], [], color=GREY, linewidth=0.8, label=f"{result.sizes['replica']} runs")
        error = result["energy_se"].values
        axis.fill_between(layer, mean - error, mean + error, color=BLUE, alpha=0.25, linewidth=0, zorder=3)
        axis.plot(layer, mean, color=BLUE, linewidth=1.2, label="mean ± 1 SE", zorder=4)
    theory = {
        "energy_prediction": ("two-token equation (limit)", "black", (0, (4, 2)), 1.0),
        "energy_bound": ("bound of Theorem 1.4 (limit)", RED, ":", 1.3),
    }
    for name, (label, color, line, width) in theory.items():
        if name in result:
            axis.plot(layer, result[name], color=color, linestyle=line, linewidth=width, label=label, zorder=5)
    _scale_energy(axis, result)
    if "floor_energy" in result.attrs:
        bottom = axis.get_ylim()[0]
        axis.axhspan(bottom, result.attrs["floor_energy"], color="#eeeeee", zorder=0, label="rounding")


def _scale_energy(axis: Axes, result: xr.Dataset) -> None:
    """A linear axis from 0, or a logarithmic one where the mean falls below a quarter of its start.

    Room is left below for words.
    """
    mean, top = result["energy_mean"].values, float(result["energy"].max())
    if not (mean > 0).any():  # equal tokens, or β < 0: the axis chooses for itself
        return
    lowest = float(mean[mean > 0].min())
    if lowest >= 0.25 * mean[0]:
        axis.set_ylim(0, 1.12 * top)
        return
    from matplotlib.ticker import LogLocator, NullLocator

    decades = math.log10(top / lowest)
    axis.set_yscale("log")
    axis.set_ylim(lowest * (lowest / top) ** (0.7 if decades < 1.5 else 0.4 if decades < 6 else 0.25), 3 * top)
    axis.yaxis.set_major_locator(LogLocator(numticks=5))
    axis.yaxis.set_minor_locator(LogLocator(subs=range(2, 10), numticks=50) if decades < 6 else NullLocator())
    # Over a decade or so the powers of ten alone are too few to read a value off.
    labelled = (2, 5) if decades < 1.5 else ()
    axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in map(str, labelled) else "")
    axis.tick_params(axis="y", which="minor", labelsize=7)


def _figure(rows: int, columns: int, *, height: float, sharex: bool = True):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH, height * rows + 0.75), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex)


def _legend(figure: Figure, axes: Any, columns: int = 5) -> None:
    """One legend below all panels, each label once, in rows of equal length."""
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        drawn, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    rows = -(-len(handles) // columns)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=-(-len(handles) // rows), frameon=False
    )


def _corner(axis: Axes, text: str) -> None:
    axis.text(0.03, 0.06, text, transform=axis.transAxes, fontsize=7, color="#222222", zorder=6,
              bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1})  # fmt: skip


def _label_grid(figure, axes, results, rows, columns, quantity: str, caption: str) -> None:
    for axis, column in zip(axes[0], columns, strict=True):
        axis.set_title(column)
    for line, row in zip(axes, rows, strict=True):
        line[0].set_ylabel(f"{row}\n{quantity}")
    _label_layers(axes, results[0][0])
    figure.suptitle(caption, fontsize=8)


def _label_layers(axes, result: xr.Dataset) -> None:
    from matplotlib.ticker import MaxNLocator

    last, horizon = int(result["layer"][-1]), float(result["time"][-1])
    for axis in axes[-1]:
        axis.set_xlabel(
            f"layer (time t = {horizon / last:.4g} layer)"
            if last < horizon
            else f"layer (time t = layer / {last / horizon:.4g})"
        )
        axis.set_xlim(0, last)
        axis.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
