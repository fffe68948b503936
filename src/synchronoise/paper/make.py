"""One call makes the paper's table and figures, and keeps what is already there."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from synchronoise import plots
from synchronoise.errors import UserError, did_you_mean
from synchronoise.paper import checks
from synchronoise.paper import table as tables
from synchronoise.paper.experiments import (
    BETA,
    FULL,
    GRIDS,
    QUICK,
    SCALES,
    WITHOUT_MLP,
    Run,
    Sizes,
    compute,
    figure1_runs,
    grid_runs,
)
from synchronoise.paper.folder import Folder
from synchronoise.progress import Progress
from synchronoise.store import environment, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("table", "fig1", "grid")
LABELS = {"relu": "ReLU", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "SiLU"}


def reproduce(
    what: str = "all",
    *,
    out: str | Path,
    activation: str | None = None,
    quick: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Make "table", "fig1", "grid" or "all" of the paper's table and figures in the folder `out` (THEORY §8).

    `activation` (relu, sigmoid, tanh, silu, or none: without MLP) makes one grid instead of five; `quick` makes tiny
    ones.  What is there with the same settings and versions is kept; `overwrite` replaces what was made with others.
    Every number is in `out`/summary.json, the simulations in `out`/data/.  Returns a short report.

    Raises `UserError` for an unknown name and a folder or file that is not ours, and `KeyboardInterrupt` when
    interrupted: finished simulations are kept, and the same call goes on from there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     reproduce("table", out=place)["table"]
    '96 of 96 values within the rounding of the print'
    """
    if what not in (*PARTS, "all"):
        raise UserError(f"unknown part {what!r}", mend=did_you_mean(what, (*PARTS, "all")))
    if activation is not None and activation not in GRIDS:
        raise UserError(f"no grid of {activation!r}", mend=did_you_mean(activation, GRIDS))
    if activation is not None and what not in ("grid", "all"):
        raise UserError(f"--activation chooses a grid, and {what} has none", mend="leave it out")
    parts = PARTS if what == "all" else (what,)
    grids = GRIDS if activation is None else (activation,)
    sizes, begun = QUICK if quick else FULL, time.monotonic()
    folder = Folder(out, overwrite=overwrite)
    report: dict[str, Any] = {"folder": str(folder.out)}
    if "table" in parts:
        report["table"] = _table(folder)
    wanted = {"fig1": figure1_runs(sizes, seed)} if "fig1" in parts else {}
    if "grid" in parts:
        wanted |= {name: grid_runs(name, sizes, seed) for name in grids}
    results, computed = _results(folder, {k: v for runs in wanted.values() for k, v in runs.items()}, progress)
    drawn = 0
    for name, runs in wanted.items():
        own = {key: results[key] for key in runs}
        if name == "fig1":
            drawn += folder.draw("figure1.png", list(runs), lambda runs=runs, own=own: _figure1(runs, own))
            folder.summary["figure1"] = _section(sizes, seed, checks.figure1(runs, own))
        else:
            drawn += _draw_grid(folder, name, runs, own)
            folder.summary.setdefault("grids", {})[name] = _section(sizes, seed, checks.grid(runs, own))
    if wanted.keys() >= {"fig1", "relu"}:
        drawn += _draw_overview(folder, wanted["fig1"], wanted["relu"], results)
    if folder.summary.get("grids"):
        folder.summary["checks"] = checks.expectations(folder.summary["grids"])
        report["checks"] = checks.verdict(folder.summary["checks"])
    folder.write_summary()
    report |= {
        "simulations": f"{computed} computed, {len(results) - computed} were there and identical",
        "figures": f"{drawn} drawn",
        "seconds": round(time.monotonic() - begun, 1),
        "peak_memory_gb": round(_peak_memory() / 1e9, 2),
    }
    return report


def _table(folder: Folder) -> str:
    rows = tables.table()
    write_atomically(folder.out / "table.csv", tables.as_csv(rows).encode())
    write_atomically(folder.out / "table.txt", tables.as_text(rows).encode())
    folder.summary["table"] = {"environment": environment(), "rows": rows}
    cells = [row[column]["within_rounding"] for row in rows for column in tables.COLUMNS]
    return f"{sum(cells)} of {len(cells)} values within the rounding of the print"


def _results(folder: Folder, runs: Mapping[str, Run], progress: bool) -> tuple[dict[str, xr.Dataset], int]:
    """All results, from the folder or computed; and how many had to be computed."""
    stored = {name: folder.read(name, run) for name, run in runs.items()}
    results = {name: result for name, result in stored.items() if result is not None}
    missing = [name for name in runs if name not in results]
    with Progress("paper", sum(runs[name].work for name in missing), "knumber", shown=progress) as bar:
        for count, name in enumerate(missing):
            try:
                result = compute(runs[name], bar.advance)
            except KeyboardInterrupt:
                done = f"{count} of {len(missing)} simulations were computed and are kept"
                raise KeyboardInterrupt(f"interrupted: {done}; the same command goes on from there") from None
            folder.keep(name, runs[name], result)
            results[name] = result
    return results, len(missing)


def _draw_grid(folder: Folder, name: str, runs: Mapping[str, Run], results: Mapping[str, xr.Dataset]) -> int:
    keys = list(runs)
    lines = [keys[i : i + len(SCALES)] for i in range(0, len(keys), len(SCALES))]
    panels = [[results[key] for key in line] for line in lines]
    first = [runs[line[0]] for line in lines]
    rows = [f"d = {run.dim}" + ("" if name == WITHOUT_MLP else f", σ = {run.sigma:g}") for run in first]
    columns = ["attention scale +1", "no attention", "attention scale −1"]
    one = first[0]
    layers = "no MLP" if name == WITHOUT_MLP else f"{LABELS[name]} MLP of width {one.width}"
    caption = (
        f"{layers}, N = {one.tokens} tokens, L = {one.layers}, T = {one.horizon:g}, β = {BETA:g}, "
        f"{one.replicas} runs from uniform starts"
    )
    return sum(
        folder.draw(f"grid_{name}_{kind}.png", keys, lambda draw=draw: draw(panels, rows, columns, caption))
        for kind, draw in (("overlaps", plots.overlap_grid), ("energies", plots.energy_grid))
    )


def _figure1(runs: Mapping[str, Run], results: Mapping[str, xr.Dataset]) -> Figure:
    one = next(iter(runs.values()))
    caption = (
        f"MLPs of width {one.width} without biases or attention, N = {one.tokens} tokens, d = {one.dim}, "
        f"L = {one.layers}, T = {one.horizon:g}, one run"
    )
    return plots.figure1({LABELS[run.activation]: results[name] for name, run in runs.items()}, caption)


def _draw_overview(
    folder: Folder, figure1: Mapping[str, Run], grid: Mapping[str, Run], results: Mapping[str, xr.Dataset]
) -> bool:
    """Figure 1 and, below it, the ensemble of the second dimension with biases, both without attention."""
    name, run = [(n, r) for n, r in grid.items() if r.sigma > 0 and r.attention_scale == 0][:2][-1]
    caption = f"{LABELS[run.activation]}, d = {run.dim}, σ = {run.sigma:g}, m = {run.width}, N = {run.tokens}"
    tokens = {
        f"{LABELS[r.activation]}, d = {r.dim}, σ = 0, m = {r.width}, N = {r.tokens}": results[n]
        for n, r in figure1.items()
    }
    return folder.draw("overview.png", [*figure1, name], lambda: plots.overview(tokens, results[name], caption))


def _section(sizes: Sizes, seed: int, numbers: dict[str, Any]) -> dict[str, Any]:
    return {"environment": environment(), "sizes": asdict(sizes), "seed": seed, **numbers}


def _peak_memory() -> float:
    """Bytes: Linux counts in KiB, macOS in bytes."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
