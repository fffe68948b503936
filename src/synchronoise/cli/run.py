"""Commands about one run: init, simulate, rerun, show; and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from synchronoise.cli.common import Json, Overwrite, RunFlags, allow_dtype, app, given, report
from synchronoise.errors import RunError, UserError


@app.command
def init(path: Path, /, *, flags: RunFlags = RunFlags(), overwrite: Overwrite = False) -> None:
    """Write a commented file that describes a run, for `synchronoise simulate`.

    Parameters
    ----------
    path
        The TOML file to write, for example run.toml.
    """
    from synchronoise.config import configure, to_toml
    from synchronoise.store import write_atomically

    if path.exists() and not overwrite:
        raise UserError(f"{path} exists", mend="--overwrite replaces it")
    write_atomically(path, to_toml(configure(given(flags))).encode())
    print(f"wrote {path}; run it with: synchronoise simulate {path}")


@app.command
def simulate(
    path: Path | None = None,
    /,
    *,
    flags: RunFlags = RunFlags(),
    out: Annotated[Path | None, Parameter(help="The result [default: the file's name, or run, with .nc]")] = None,
    overwrite: Overwrite = False,
    resume: Annotated[bool, Parameter(help="Continue an interrupted run.", negative=())] = False,
    dry_run: Annotated[bool, Parameter(help="Say what would run, its memory and its layers' time.", negative=())] = (
        False
    ),
    json: Json = False,
) -> None:
    """Run an ensemble, layer by layer, into a result file and a picture.

    The finite transformer, or its limit with `--width inf`: energies, quantiles and histogram of the
    overlaps.

    Parameters
    ----------
    path
        A TOML file that describes the run (`synchronoise init` writes one); flags beside it win.
    """
    from synchronoise import runs
    from synchronoise.config import read_toml, refuse_idle

    typed = given(flags)
    job = runs.prepare({**(read_toml(path) if path else {}), **typed}, source=str(path or ""))
    refuse_idle(typed, job.config)
    allow_dtype(job.config.dtype)
    if dry_run:
        report(runs.plan(job), json)
        return
    out = out or Path(path.with_suffix(".nc").name if path else "run.nc")
    report(runs.produce(job, out, overwrite=overwrite, resume=resume, progress=True), json)


@app.command
def rerun(path: Path, /, *, json: Json = False) -> None:
    """Run what a result file says again and compare every number.

    Parameters
    ----------
    path
        A file that `synchronoise simulate` wrote.
    """
    from synchronoise import runs

    allow_dtype(runs.recorded(path)[2].dtype)
    report(runs.rerun(path, progress=True), json)


@app.command
def show(path: Path, /, *, json: Json = False) -> None:
    """Print what made a result: its configuration, seed, versions and route.

    Parameters
    ----------
    path
        A file that any command wrote.
    """
    from synchronoise.store import load

    report(load(path, kind=None)[1], json)


@app.command
def doctor(*, json: Json = False) -> None:
    """Check the installation: versions, devices, precision, and that it computes what is known exactly."""
    from synchronoise.doctor import examine

    findings = examine()
    report(findings, json)
    if not findings["healthy"]:
        raise RunError("this installation computes wrong numbers: reinstall with the versions of constraints.txt")
