"""A phase map on paper and on disk.  It computes nothing; Matplotlib is imported when a figure is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from synchronoise.errors import UserError
from synchronoise.store import check_output, environment, load, save
from synchronoise.theory.maps import VERDICTS, PhaseMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    "dim": "dimension d",
    "sigma_u": "σ_U",
    "sigma_w": "σ_W",
    "gain": "gain g of φ",
    "attention_scale": "attention scale a",
    "beta": "β",
}
TITLES = {"lambda_1": "λ₁", "lambda_bar": "λ̄", "sharp_rate": "sharp rate of the mean energy"}
COLOURS = ("#D55E00", "#E69F00", "#56B4E9", "#0072B2")  # one for each of VERDICTS
LOGARITHMIC = ("dim", "gain", "beta")


def phase_figure(phase: PhaseMap) -> Figure:
    """The verdict, λ_1, λ̄ and the sharp rate over the two parameters, with the solved zero lines (THEORY §6).

    Full dots: λ_1 = 0, open dots: λ̄ = 0 (both with the attention's pull, if there is one).

    >>> from synchronoise.theory.maps import phase_map
    >>> len(phase_figure(phase_map("sigma_u=0:1:2", "sigma_w=0:1:2", dim=8)).axes)
    7
    """
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(7.1, 5.6), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    attention = "" if phase.fixed["attention"] == "none" else ", with attention"
    for axis, name in zip(axes, ("verdict", *TITLES), strict=True):
        values = phase.fields[name]
        if name == "verdict":
            colours = ListedColormap(COLOURS)
            axis.pcolormesh(phase.x, phase.y, values, cmap=colours, norm=BoundaryNorm(np.arange(5) - 0.5, 4))
            present = [k for k in range(len(VERDICTS)) if (values == k).any()]
            handles = [Patch(color=COLOURS[k], label=VERDICTS[k]) for k in present]
            axis.legend(handles=handles, loc="upper right", fontsize=6.5, framealpha=0.9)
            axis.set_title("verdict", fontsize=9)
        else:
            _signed(axis, phase, values)
            axis.set_title(TITLES[name] + attention, fontsize=9)
        _zero_lines(axis, phase)
        for which, parameter in (("x", phase.x_name), ("y", phase.y_name)):
            axis.set(**{f"{which}label": LABELS[parameter]})
            if parameter in LOGARITHMIC:
                axis.set(**{f"{which}scale": "log"})
    given = phase.fixed if phase.fixed["attention"] != "none" else _without_attention(phase.fixed)
    parameters = ", ".join(f"{LABELS.get(k, k)} = {_short(v)}" for k, v in given.items())
    figure.suptitle(f"{parameters}\nfull dots: λ₁ = 0, open dots: λ̄ = 0; blue negative, red positive", fontsize=8)
    return figure


def save_phase_map(phase: PhaseMap, out: str | Path) -> dict[str, Any]:
    """Write the map to `out` (netCDF) and its figure beside it (PNG); what was written, for printing.

    >>> import tempfile
    >>> from synchronoise.theory.maps import phase_map
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_phase_map(phase_map("sigma_u=0:1:2", "sigma_w=0:1:2", dim=8), f"{folder}/map.nc")["axes"]
    ['sigma_u', 'sigma_w']
    """
    out = Path(out)
    made_by = {"phase_map": [phase.x_name, phase.y_name], "fixed": phase.fixed, "environment": environment()}
    save(phase.dataset(), out, made_by, kind="map")
    figure = out.with_suffix(".png")
    phase_figure(phase).savefig(figure, dpi=200)
    return {"axes": [phase.x_name, phase.y_name], "file": str(out), "figure": str(figure)}


def check_map_output(out: str | Path, *, overwrite: bool) -> None:
    """Refuse, before anything is computed, an output that `save_phase_map` should not write.

    Raises `UserError` as `check_output` does; `overwrite` replaces an earlier map and nothing else.

    >>> check_map_output("map.png", overwrite=False)
    Traceback (most recent call last):
    synchronoise.errors.UserError: output 'map.png': got '.png', expected a name ending in .nc; use --out map.nc
    """
    out = Path(out)
    if overwrite and out.exists():
        load(out, kind="map")
    else:
        check_output(out)
    figure = out.with_suffix(".png")
    if figure.is_dir() or (figure.exists() and not overwrite):
        raise UserError(f"{figure}, the figure beside {out.name}, exists", mend="--out names another file")


def _signed(axis: Axes, phase: PhaseMap, values: np.ndarray) -> None:
    from matplotlib.colors import SymLogNorm

    size = float(np.max(np.abs(values))) or 1.0
    top = 10.0 ** np.floor(np.log10(size))
    norm = SymLogNorm(linthresh=size / 30, vmin=-size, vmax=size)
    mesh = axis.pcolormesh(phase.x, phase.y, values, cmap="RdBu_r", norm=norm)
    axis.figure.colorbar(mesh, ax=axis, pad=0.02, ticks=[-top, -top / 10, 0.0, top / 10, top], format="%g")


def _zero_lines(axis: Axes, phase: PhaseMap) -> None:
    # Points, not a curve: a line may have several branches.
    for name, face in (("lambda_1", "black"), ("lambda_bar", "white")):
        points = phase.zeros[name]
        axis.plot(points[:, 0], points[:, 1], "o", color="black", markerfacecolor=face, markersize=3.5)


def _without_attention(fixed: dict) -> dict:
    return {k: v for k, v in fixed.items() if not k.startswith("attention") and k != "beta"}


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
