"""Figures of the mean-field limit: densities in space and time, globes, energies, and distances against N."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .plots import BLUE, GREY, ORANGE, PAGE_WIDTH, RED, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, RED, "#009E73", ORANGE, "#CC79A7")
FAINTEST = 1e-2  # densities below it, of the uniform one, look alike


def circle_figure(result: xr.Dataset, caption: str) -> Figure:
    """The density by angle and time (logarithmic, against the uniform one), and the energy."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (left, right) = _figure(1, 2, caption)
        density = result["mass"].values * result.sizes["cell"]
        image = left.imshow(
            density.T, origin="lower", aspect="auto", cmap="viridis", norm=_norm(density), interpolation="nearest",
            extent=(0, float(result["time"][-1]) or 1e-3, 0, 360),  # a run may stop at once
        )  # fmt: skip
        left.set(xlabel="time t", ylabel="angle (degrees)", yticks=[0, 90, 180, 270, 360])
        figure.colorbar(image, ax=left, label="density / uniform", extend="min")
        _energy(right, result)
    return figure


def sphere_figure(result: xr.Dataset, globes: np.ndarray, shown: np.ndarray, caption: str) -> Figure:
    """Globes at a few times, both halves, above the energy."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, grid = _figure(1, 1, caption, rows=(1.25, 1.0), columns=len(shown))
        norm = _norm(globes[np.isfinite(globes)])
        image: Any = None
        for column, (row, pair) in enumerate(zip(shown, globes, strict=True)):
            axis = figure.add_subplot(grid[0, column])
            image = axis.imshow(np.concatenate(list(pair), axis=0), cmap="viridis", norm=norm)
            axis.set_axis_off()
            axis.set_title(f"t = {float(result['time'][row]):.3g}")
        figure.colorbar(image, ax=figure.axes, label="density / uniform", extend="min", shrink=0.8)
        _energy(figure.add_subplot(grid[1, :]), result)
        figure.text(0.01, 0.75, "front and back", rotation=90, va="center", fontsize=7)
    return figure


def energy_figure(result: xr.Dataset, caption: str) -> Figure:
    """The energy of one realisation, of the mean over noises, and the bound."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (axis,) = _figure(1, 1, caption)
        _energy(axis, result)
    return figure


def chaos_figure(result: xr.Dataset, caption: str) -> Figure:
    """Distances against N at the start, at T and the largest between, with the rates; covariances of two tokens."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (left, right) = _figure(1, 2, caption)
        tokens = result["tokens"].values.astype(float)
        names = {"start": "to the SPDE, t = 0", "end": "to the SPDE, t = T", "largest": "largest over time",
                 "two_end": "two systems, one noise, t = T", "independent": "independent noises, t = T"}  # fmt: skip
        marks = ("o", "s", "^", "D", "v")
        for colour, mark, (kind, label) in zip((*COLOURS[:4], GREY), marks, names.items(), strict=True):
            line = result.sel(kind=kind)
            dashed = "--" if kind == "largest" else "-"  # most often that at T, whose line it would hide
            left.plot(tokens, line["mean"], dashed, color=colour, marker=mark, markersize=3, label=label)
            left.fill_between(tokens, line["low"], line["high"], color=colour, alpha=0.12, linewidth=0)
        first = float(result["mean"].sel(kind="start")[0])
        exponent, logarithm = result.attrs["exponent"], result.attrs["logarithm"]
        rate = tokens**exponent * (np.log(tokens) if logarithm else 1.0)
        words = f"$N^{{{exponent:.3g}}}$" + (r" $\log N$" if logarithm else "")
        left.plot(tokens, 0.6 * first * rate / rate[0], color="black", linestyle=":", label=f"rate {words}")
        _logarithmic(left, tokens, r"mean of $W_2^2$, with its 95 % band")
        left.set_ylim(bottom=0.1 * float(result["low"].min()))
        left.legend(frameon=False, ncols=2, fontsize=6)
        at, names = result["chaos_tokens"].values, {"given": "given the noise", "any": "unconditional"}
        for colour, (kind, label) in zip(COLOURS, names.items(), strict=False):
            size, se = result["covariance"].sel(which=kind), result["covariance_se"].sel(which=kind)
            right.errorbar(at, size, 2 * se, color=colour, marker="o", markersize=3, capsize=2, label=f"{label} ± 2 SE")
        given = result["covariance"].sel(which="given").values
        right.plot(at, 0.6 * given[0] * at[0] / at, color="black", linestyle=":", label="slope -1")
        _logarithmic(right, at, r"|Cov$(X_1, X_2)$| of two tokens")
        right.set_ylim(bottom=0.1 * float(given.min()))
        right.legend(frameon=False)
    return figure


def corollary_figure(result: xr.Dataset, caption: str) -> Figure:
    """Every mean W_2² of the grid against the fit a/L + b/m + c/N."""
    import matplotlib
    from matplotlib.ticker import LogLocator, NullFormatter

    with matplotlib.rc_context(STYLE):
        figure, (axis,) = _figure(1, 1, caption)
        fit, error, interval = result["fit"], result["error"].mean("replica"), result["interval"]
        ends = [0.7 * float(fit.min()), 1.4 * float(fit.max())]
        axis.plot(ends, ends, color="black", linestyle=":", label="a/L + b/m + c/N")
        for colour, tokens in zip(cycle(COLOURS), result["tokens"].values, strict=False):
            for marker, layers in zip(cycle("os^Dv"), result["layers"].values, strict=False):
                for size, width in enumerate(result["width"].values):
                    cell = {"tokens": tokens, "layers": layers, "width": width}
                    mean, (low, high) = float(error.sel(cell)), interval.sel(cell).values
                    axis.errorbar(
                        float(fit.sel(cell)), mean, [[mean - low], [high - mean]], color=colour, marker=marker,
                        markersize=3 + 2.5 * size, linestyle="none", capsize=2,
                        label=None if size else f"N = {tokens}, L = {layers}",
                    )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="fit a/L + b/m + c/N", ylabel=r"mean of $W_2^2$ at T, 95 %")
        for along in (axis.xaxis, axis.yaxis):
            along.set_major_locator(LogLocator(subs=(1, 2, 5)))
            along.set_major_formatter("{x:g}")
            along.set_minor_formatter(NullFormatter())
        widths = ", ".join(map(str, result["width"].values))
        axis.legend(frameon=False, fontsize=7, title=f"marks from small to large: m = {widths}", title_fontsize=7)
    return figure


def _logarithmic(axis: Axes, tokens: np.ndarray, quantity: str) -> None:
    axis.set(xscale="log", yscale="log", xlabel="tokens N", ylabel=quantity)
    axis.set_xticks(tokens, [str(int(n)) for n in tokens])
    axis.minorticks_off()


def _energy(axis: Axes, result: xr.Dataset) -> None:
    time = result["time"].values
    axis.plot(time, result["energy"].values, color=BLUE, label="this realisation")
    if "energy_mean" in result:
        at, mean, se = result["time_of_mean"].values, result["energy_mean"].values, result["energy_se"].values
        axis.plot(at, mean, color=ORANGE, label="mean over noises ± 1 SE")
        axis.fill_between(at, mean - se, mean + se, color=ORANGE, alpha=0.3, linewidth=0)
        if "energy_bound" in result:
            axis.plot(at, result["energy_bound"].values, color=RED, linestyle=(0, (4, 2)), label="bound of Theorem 1.4")
    axis.set(xlabel="time t", ylabel=r"energy $E_\beta$")
    axis.set_ylim(bottom=0, top=1.6 * float(np.nanmax(result["energy"].values)) or 1.0)  # β = 0 has no energy
    axis.legend(frameon=False)


def _norm(density: np.ndarray) -> Any:
    from matplotlib.colors import LogNorm

    return LogNorm(vmin=max(FAINTEST, min(float(density.min()), 0.5)), vmax=max(2.0, float(density.max())))


def _figure(
    height: int, panels: int, caption: str, rows: tuple[float, ...] = (), columns: int = 1
) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (PAGE_WIDTH if panels > 1 or rows else 0.8 * PAGE_WIDTH, 5.2 if rows else 3.2 * height)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(caption, fontsize=8, wrap=True)
    if rows:
        return figure, figure.add_gridspec(len(rows), columns, height_ratios=rows)
    return figure, figure.subplots(1, panels, squeeze=False)[0]
