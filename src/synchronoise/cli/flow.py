"""Commands that watch the flow of the tokens: exponents, clusters, compare, escape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from synchronoise.cli.common import (
    LawFlags,
    Overwrite,
    SetupFlags,
    WatchFlags,
    allow_dtype,
    app,
    flag,
    given,
    numbers,
    report,
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FlowFlags(LawFlags):
    """What the tangent flow of the tokens depends on."""

    attention: Annotated[str | None, flag("attention", "none")] = None
    attention_scale: Annotated[float | None, flag("attention_scale")] = None
    heads: Annotated[int | None, flag("heads")] = None
    redraw: Annotated[int | None, flag("redraw")] = None
    noise: Annotated[str | None, flag("noise")] = None
    tokens: Annotated[int | None, flag("tokens", "1, with attention 3")] = None
    width: Annotated[str | None, flag("width", "inf")] = None
    layers: Annotated[int | None, flag("layers", "a small step")] = None
    horizon: Annotated[float | None, flag("horizon", "200 steps; with attention until it settles")] = None
    replicas: Annotated[int | None, flag("replicas", "128")] = None
    seed: Annotated[int | None, flag("seed")] = None


@app.command
def exponents(
    *,
    flags: FlowFlags = FlowFlags(),
    full: Annotated[bool, Parameter(help="All tokens, from a uniform start.", negative=())] = False,
) -> None:
    """Measure the Lyapunov exponents of the running flow beside their closed form, as one JSON object.

    One token without attention; with attention the synchronised state of --tokens equal ones.
    """
    from synchronoise.config import configure, refuse_idle
    from synchronoise.exponents import exponents_report

    typed = given(flags)
    refuse_idle(typed, configure({"attention": "none", **typed}), energy=False)
    allow_dtype("float64")
    report(exponents_report(typed, full=full, progress=True), as_json=True)


@app.command
def clusters(
    *,
    flags: WatchFlags = WatchFlags(),
    delta: Annotated[float, Parameter(help="Tokens at angles below it are in one cluster.")] = 0.1,
    gram_rank: Annotated[bool, Parameter(help="Also the rank of the Gram matrix.", negative=())] = False,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("clusters.nc"),
    overwrite: Overwrite = False,
) -> None:
    """Count clusters against time: sizes, times to two and to one, antipodal pairs, attractor, as one JSON object."""
    from synchronoise.clusters import count_clusters
    from synchronoise.config import configure, refuse_idle

    typed = given(flags)
    config = configure(typed)
    refuse_idle(typed, config, energy=False)
    allow_dtype(config.dtype)
    result = count_clusters(typed, out, delta=delta, gram_rank=gram_rank, overwrite=overwrite, progress=True)
    report(result, as_json=True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompareFlags(SetupFlags):
    """What a simulation depends on, with more replicas of few tokens."""

    replicas: Annotated[int | None, flag("replicas", "2048/N, at least 16")] = None


@app.command
def compare(
    what: Literal["noises"],
    /,
    *,
    flags: CompareFlags = CompareFlags(),
    noises: Annotated[str, Parameter(help="Comma-separated: mlp, field, private, vector, values.")] = (
        "mlp,private,vector,values"
    ),
    delta: Annotated[float, Parameter(help="Tokens at angles below it are in one cluster.")] = 0.1,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("compare.nc"),
    overwrite: Overwrite = False,
) -> None:
    """Run the same start and attention under several noises of one speed; energies beside the theory, as JSON.

    There is a theory without attention, and for two tokens.

    Parameters
    ----------
    what
        noises.
    """
    from synchronoise.compare import compare_noises
    from synchronoise.config import configure, refuse_idle

    typed, names = given(flags), [name.strip() for name in noises.split(",")]
    config = configure(typed)
    refuse_idle(typed, config)
    allow_dtype(config.dtype)
    report(compare_noises(typed, out, noises=names, delta=delta, overwrite=overwrite, progress=True), True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EscapeFlags(WatchFlags):
    """What a simulation depends on, with defaults that have metastable clusters."""

    dim: Annotated[int | None, flag("dim", "2")] = None
    beta: Annotated[float | None, flag("beta", "7.0")] = None
    tokens: Annotated[int | None, flag("tokens", "32")] = None
    width: Annotated[str | None, flag("width", "16")] = None
    layers: Annotated[int | None, flag("layers", "1000")] = None
    horizon: Annotated[float | None, flag("horizon", "20.0")] = None
    every: Annotated[int | None, flag("every", "5")] = None


@app.command
def escape(
    *,
    flags: EscapeFlags = EscapeFlags(),
    strengths: Annotated[str, Parameter(help="Of the noise, comma-separated.")] = "0.5,1,2",
    settle: Annotated[float, Parameter(help="Time of attention alone before the noise begins.")] = 15.0,
    delta: Annotated[float, Parameter(help="Tokens at angles below it are in one cluster.")] = 0.3,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("escape.nc"),
    overwrite: Overwrite = False,
) -> None:
    """Escape times from the metastable clusters of attention alone, for several strengths of the noise, as JSON."""
    from synchronoise.config import configure, refuse_idle
    from synchronoise.escape import escapes

    typed = given(flags)
    config = configure(typed)
    refuse_idle(typed, config)
    allow_dtype(config.dtype)
    chosen = {"strengths": numbers("strengths", strengths), "settle": settle, "delta": delta}
    report(escapes(typed, out, **chosen, overwrite=overwrite, progress=True), as_json=True)
