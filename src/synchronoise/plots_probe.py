"""The figure of a probed transformer: what was measured by layer, with the prediction drawn over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from synchronoise.plots import BLUE, GREY, ORANGE, PAGE_WIDTH, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "mean_cosine": "mean cosine of pairs",
    "effective_rank": "effective rank",
    "norm": "length of a token",
    "energy": r"energy $E_\beta$",
}


def probe_figure(result: xr.Dataset, caption: str) -> Figure:
    """Mean cosine with its quantiles, effective rank, length and energy by layer; the prediction dashed over them.

    `result` has the measured statistics (with `*_se` where known) and `predicted_*` beside them, both optional but one.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in PANELS if name in result or f"predicted_{name}" in result]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_WIDTH, 2.1 * -(-len(names) // 2) + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(-(-len(names) // 2), 2, squeeze=False, sharex=True)
        for axis, name in zip(axes.flat, names, strict=False):
            _draw(axis, result, name)
            axis.set_ylabel(PANELS[name])
        for axis in list(axes.flat)[len(names) :]:
            axis.set_axis_off()
        for axis in axes[-1]:
            axis.set_xlabel("layer (after attention: half a layer before)")
        axes[0, 0].set_ylim(min(0.0, axes[0, 0].get_ylim()[0]), 1.02)
        handles: dict[str, Any] = {}
        for axis in axes.flat:
            handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
        figure.suptitle(caption, fontsize=8)
    return figure


def path_of(result: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Layer and value in the order in which the tokens pass: embedding, then the middle and the end of each block.

    >>> sites = {"layer": [0, 1], "site": ["embedding", "resid_mid", "resid_post"]}
    >>> values = [[0.0, float("nan"), float("nan")], [float("nan"), 0.1, 0.2]]
    >>> [row.tolist() for row in path_of(xr.Dataset({"a": (("layer", "site"), values)}, sites), "a")]
    [[0.0, 0.5, 1.0], [0.0, 0.1, 0.2]]
    """
    at, values = [], []
    for layer in result["layer"].values:
        for site, shift in (("embedding", 0.0), ("resid_mid", -0.5), ("resid_post", 0.0)):
            value = float(result[name].sel(layer=layer, site=site))
            if np.isfinite(value):
                at.append(float(layer) + shift)
                values.append(value)
    return np.array(at), np.array(values)


def _draw(axis: Axes, result: xr.Dataset, name: str) -> None:
    if name in result:
        layer, mean = path_of(result, name)
        if name == "mean_cosine" and "cosine_quantiles" in result:
            spread = result["cosine_quantiles"]
            spread = spread.sel(site="resid_post").fillna(spread.sel(site="embedding"))
            axis.fill_between(
                result["layer"], spread.isel(quantile=0), spread.isel(quantile=-1), color=GREY, alpha=0.5, linewidth=0,
                label="measured: 5 to 95 % of pairs",
            )  # fmt: skip
        if f"{name}_se" in result:
            error = path_of(result, f"{name}_se")[1]
            axis.errorbar(
                layer, mean, error, color=BLUE, fmt="o", markersize=2.5, linewidth=0.8, label="measured ± 1 SE"
            )
        else:
            axis.plot(layer, mean, "o", color=BLUE, markersize=2.5, label="measured")
    if f"predicted_{name}" in result:
        layer, value = path_of(result, f"predicted_{name}")
        axis.plot(layer, value, color=ORANGE, linewidth=1.2, label="predicted", zorder=3)
