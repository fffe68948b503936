"""Figures of convergence: errors against depth and width, with their bands and the theory's slopes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .plots import BLUE, GREY, ORANGE, PAGE_WIDTH, RED, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREEN, PURPLE, SKY, BLACK = "#009E73", "#CC79A7", "#56B4E9", "#222222"
COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY)
AXIS = {"layers": "layers L", "width": "width m"}
KINDS = {
    "grid": "to the limit, grid times",
    "successive": "L against 2L, grid times",
    "all_times": "to the limit, all times",
    "coupled": "coupled",
    "independent": "independent noises",
}


def rates_figure(result: xr.Dataset, caption: str) -> Figure:
    """Errors of every kind against the level, logarithmic, each with its 95 % band and a line of slope -1."""
    import matplotlib

    axis_name = "layers" if "layers" in result.dims else "width"
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = _figure(1, caption)
        for kind, colour in zip(result["kind"].values, COLOURS, strict=False):
            _band(axis, result.sel(kind=kind), axis_name, colour, KINDS[str(kind)])
        _slope_one(axis, result.isel(kind=0), axis_name)
        _label(axis, axis_name, r"mean of $\max_t \frac{1}{N}\sum_i |X_i - \bar X_i|^2$")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def limits_figure(result: xr.Dataset, caption: str) -> Figure:
    """The error on the grid in both orders: against L for each m, and against m for each L, over the fit a/L + b/m."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, caption)
        for axis, along, across, symbol in ((axes[0], "layers", "width", "m"), (axes[1], "width", "layers", "L")):
            for value, colour in zip(result[across].values, cycle(COLOURS), strict=False):
                line = result.sel({across: value})
                if along == "width":
                    line = line.sel(width=np.isfinite(line["width"]))
                name = r"$\infty$" if np.isinf(value) else f"{value:g}"
                _band(axis, line, along, colour, f"{symbol} = {name}", joined=False)
                axis.plot(line[along], line["fit"], color=colour, linestyle=(0, (4, 2)), linewidth=0.8)
            _label(axis, along, r"mean of $\max_t \frac{1}{N}\sum_i |X_i - \bar X_i|^2$")
            axis.legend(frameon=False, title="dashed: a/L + b/m", ncols=2, loc="lower left")
    return figure


def law_figure(result: xr.Dataset, caption: str) -> Figure:
    """The mean pair energy against L for each width with the two-token value, and its paired differences."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (left, right) = _figure(2, caption)
        for width, colour in zip(result["width"].values, cycle(COLOURS), strict=False):
            line = result.sel(width=width)
            name = "m = $\\infty$" if np.isinf(width) else f"m = {width:g}"
            left.errorbar(
                line["layers"],
                line["energy"],
                2 * line["energy_se"],
                color=colour,
                marker="o",
                markersize=3,
                label=name,
            )
            _band(right, line, "layers", colour, name)
        left.axhline(float(result["two_token_value"]), color=BLACK, linestyle=(0, (4, 2)), label="two-token equation")
        left.set_xscale("log", base=2)
        left.set_xlabel(AXIS["layers"])
        left.set_ylabel("mean pair energy at T (± 2 SE)")
        left.legend(frameon=False)
        _slope_one(right, result.isel(width=-1), "layers")
        _label(right, "layers", "energy at L minus energy at 2L")
        right.legend(frameon=False)
    return figure


def path_figure(paths: Mapping[int, np.ndarray], errors: Mapping[int, float], horizon: float, caption: str) -> Figure:
    """One path at growing L: a coordinate of the first token over time, and the path's own error against L."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (left, right) = _figure(2, caption)
        *levels, finest = sorted(paths)
        for level, colour in zip(levels, cycle(COLOURS), strict=False):
            x = paths[level][:, 0, 0]
            time = np.linspace(0, horizon, len(x))
            left.step(time, x, where="post", color=colour, linewidth=0.7, label=f"L = {level}")
        x = paths[finest][:, 0, 0]
        left.plot(np.linspace(0, horizon, len(x)), x, color=BLACK, linewidth=1.1, label="limit")
        left.set_xlabel("time t")
        left.set_ylabel("coordinate 1 of token 1")
        left.legend(frameon=False, ncols=2)
        right.plot(list(errors), list(errors.values()), color=BLUE, marker="o", markersize=3, label="this path")
        _label(right, "layers", r"$\max_k \frac{1}{N}\sum_i |X_i - \bar X_i|^2$")
        right.legend(frameon=False)
    return figure


def _figure(columns: int, caption: str) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH if columns > 1 else 4.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(caption, fontsize=8)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _band(axis: Axes, line: xr.Dataset, along: str, colour: str, name: str, *, joined: bool = True) -> None:
    style = "-" if joined else ""
    axis.plot(line[along], line["mean"], color=colour, marker="o", markersize=3, linestyle=style, label=name)
    axis.fill_between(line[along], line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)


def _slope_one(axis: Axes, line: xr.Dataset, along: str) -> None:
    levels = line[along].values.astype(float)
    anchor = float(line["mean"][0]) * 0.6
    axis.plot(levels, anchor * levels[0] / levels, color=BLACK, linestyle=":", linewidth=0.9, label="slope -1")


def _label(axis: Axes, along: str, quantity: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel(AXIS[along])
    axis.set_ylabel(quantity)
