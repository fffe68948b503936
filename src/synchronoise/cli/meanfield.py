"""Commands of the mean-field limit: spde, modes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from synchronoise.cli.common import Json, Overwrite, RunFlags, allow_dtype, app, given, report


@app.command
def spde(
    *,
    flags: RunFlags = RunFlags(),
    solver: Annotated[
        Literal["auto", "eulerian", "lagrangian"], Parameter(help="A grid, or weighted tokens.")
    ] = "auto",
    cells: Annotated[int | None, Parameter(help="Cells of the grid [default: 512 for dim 2, 3000 for dim 3]")] = None,
    out: Annotated[Path, Parameter(help="The result; a picture goes beside it.")] = Path("spde.nc"),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Solve the mean-field limit under one common noise: densities, energy, and the mean energy over many noises.

    Defaults here: dim 2, beta 5, width inf, 4096 points, 400 layers, horizon 4, every 4, 1 replica, float64.
    """
    from synchronoise.meanfield.run import DEFAULTS
    from synchronoise.meanfield.run import spde as solve_spde

    values = given(flags)
    allow_dtype(str(values.get("dtype", DEFAULTS["dtype"])))
    report(solve_spde(values, out, solver=solver, cells=cells, overwrite=overwrite, progress=True), json)


@app.command
def modes(*, flags: RunFlags = RunFlags(), json: Json = False) -> None:
    """Growth of the modes of a uniform measure on the circle under attention, its clusters, and when noise merges them.

    Defaults here: dim 2, beta 5, sigma-u 0.3, width inf, 128 tokens, 600 layers, horizon 30, 30 random starts.
    """
    from synchronoise.meanfield.modes import modes as measure

    allow_dtype("float64")
    report(measure(given(flags), progress=True), json)
