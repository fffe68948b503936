"""The command `synchronoise`: argument parsing, and nothing else.

Every command imports what it needs when it runs, so that help is immediate.  Results go to stdout, progress
and warnings to stderr.  Exit status: 0 done, 1 failed, 2 asked for wrongly, 130 interrupted.  A mistake is
one line.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, Token

from synchronoise.errors import RunError, UserError
from synchronoise.options import OPTIONS

app = App(
    name="synchronoise",
    help="Stochastic scaling limits of deep transformers, and their synchronization by noise.",
    help_format="plaintext",
    version=lambda: version("synchronoise"),
    suppress_keyboard_interrupt=False,
)
app.register_install_completion_command()


def flag(name: str, default: str = "") -> Parameter:
    """The flag of an option; left out, its value is None and the default of the configuration, or this one, holds."""
    option = OPTIONS[name]
    return Parameter(
        help=f"{option.help} ({option.expects})",
        show_default=default or str(option.default),
        converter=_whole if type(option.default) is int else None,
    )


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """An integer as it is written; the parser alone would cut 2.5 down to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"got {tokens[0].value!r}, expected an integer.") from None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LawFlags:
    """What the law of the tokens depends on, apart from their number and start."""

    activation: Annotated[str | None, flag("activation")] = None
    dim: Annotated[int | None, flag("dim")] = None
    sigma_u: Annotated[float | None, flag("sigma_u")] = None
    sigma_w: Annotated[float | None, flag("sigma_w")] = None
    beta: Annotated[float | None, flag("beta")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunFlags(LawFlags):
    """What a simulation depends on."""

    attention: Annotated[str | None, flag("attention")] = None
    attention_scale: Annotated[float | None, flag("attention_scale")] = None
    heads: Annotated[int | None, flag("heads")] = None
    redraw: Annotated[int | None, flag("redraw")] = None
    noise: Annotated[str | None, flag("noise")] = None
    tokens: Annotated[int | None, flag("tokens")] = None
    width: Annotated[str | None, flag("width")] = None
    layers: Annotated[int | None, flag("layers")] = None
    horizon: Annotated[float | None, flag("horizon")] = None
    start: Annotated[str | None, flag("start")] = None
    clusters: Annotated[int | None, flag("clusters")] = None
    spread: Annotated[float | None, flag("spread")] = None
    overlap: Annotated[float | None, flag("overlap")] = None
    replicas: Annotated[int | None, flag("replicas")] = None
    seed: Annotated[int | None, flag("seed")] = None
    dtype: Annotated[str | None, flag("dtype")] = None
    every: Annotated[int | None, flag("every")] = None
    save_tokens: Annotated[bool | None, flag("save_tokens")] = None
    chunk: Annotated[int | None, flag("chunk")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConvergeFlags(LawFlags):
    """What a coupled experiment depends on, apart from its levels; each experiment has small sizes of its own."""

    dim: Annotated[int | None, flag("dim", "3; law: 16")] = None
    sigma_u: Annotated[float | None, flag("sigma_u", "0; law: 0.3")] = None
    sigma_w: Annotated[float | None, flag("sigma_w", "0; law: 0.3")] = None
    attention: Annotated[str | None, flag("attention", "softmax; law: none")] = None
    attention_scale: Annotated[float | None, flag("attention_scale")] = None
    tokens: Annotated[int | None, flag("tokens", "4; law: 2")] = None
    horizon: Annotated[float | None, flag("horizon", "1")] = None
    layers: Annotated[int | None, flag("layers", "32; only of width")] = None
    start: Annotated[str | None, flag("start")] = None
    overlap: Annotated[float | None, flag("overlap")] = None
    replicas: Annotated[int | None, flag("replicas", "256; law: 65536")] = None
    seed: Annotated[int | None, flag("seed")] = None


Json = Annotated[bool, Parameter(name="--json", help="One JSON object on stdout.", negative=())]
Overwrite = Annotated[bool, Parameter(help="Replace an existing output.", negative=())]


def given(flags: LawFlags) -> dict[str, object]:
    """The options that were typed, and only those."""
    return {name: value for name, value in asdict(flags).items() if value is not None}


def report(values: Mapping[str, Any], as_json: bool) -> None:
    """Print a result: one JSON object, or a line for each of its entries."""
    if as_json:
        print(json.dumps(values, allow_nan=False))
        return
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {value if isinstance(value, str) else json.dumps(value)}")


def allow_dtype(dtype: str) -> None:
    """Switch JAX to 64 bits for a float64 run: the command owns its process, the library never does it.

    `JAX_ENABLE_X64=0` in the environment is respected; a float64 run is then refused.
    """
    if dtype == "float64" and "JAX_ENABLE_X64" not in os.environ:
        import jax

        jax.config.update("jax_enable_x64", True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PairFlags(LawFlags):
    """What the law of two tokens depends on."""

    attention: Annotated[
        Literal["none", "softmax", "unnormalised"] | None, Parameter(help="Attention of the tokens (none).")
    ] = None
    attention_scale: Annotated[float | None, flag("attention_scale")] = None


def pair_law(flags: PairFlags) -> dict[str, Any]:
    """The checked options of two tokens; without --attention there is none."""
    from synchronoise.config import configure

    config = configure({"attention": "none", **given(flags)})
    if config.attention == "none" and flags.attention_scale is not None:
        raise UserError("--attention-scale without attention changes nothing", mend="add --attention softmax")
    names = ("activation", "dim", "sigma_u", "sigma_w", "beta", "attention", "attention_scale")
    return {name: getattr(config, name) for name in names}


@app.command
def theory(
    *,
    flags: PairFlags = PairFlags(),
    map: Annotated[
        tuple[str, str] | None,
        Parameter(
            help="Phase map over two of dim, sigma_u, sigma_w, gain, attention_scale, beta; or sigma_u=0:1:21.",
            negative=(),
        ),
    ] = None,
    certify: Annotated[
        bool, Parameter(help="Proven intervals and signs of λ_1, λ̄ and λ̄' instead (extra `certify`).", negative=())
    ] = False,
    out: Annotated[Path | None, Parameter(help="The file of a map (map.nc); its figure goes beside it.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Exponents and rates, as one JSON object, or a phase map of them.

    The kernel's values κ(1) and κ'(1), the Lyapunov spectrum, the rates of the energy, the fate of two tokens, and
    in words whether tokens synchronise.  With --attention also what attention changes.
    """
    if map is None and (out is not None or overwrite):
        raise UserError("--out and --overwrite are about a map", mend="add --map X Y, or leave them out")
    if certify:
        from synchronoise.theory.certify import certificate

        law = pair_law(flags)
        if map is not None or law["attention"] != "none":
            raise UserError("--certify is about the noise alone at one point", mend="leave out --map and --attention")
        result = certificate(*(law[name] for name in ("activation", "dim", "sigma_u", "sigma_w", "beta")))
        report(result, as_json=True)
        refused = [entry["refused"] for entry in result.values() if "refused" in entry]
        if refused:
            raise RunError("; ".join(refused))
        return
    if map is None:
        from synchronoise.theory import theory_report

        report(theory_report(**pair_law(flags)), as_json=True)
        return
    from synchronoise.plots_theory import check_map_output, save_phase_map
    from synchronoise.theory.maps import phase_map

    out = out or Path("map.nc")
    check_map_output(out, overwrite=overwrite)
    phase = phase_map(*map, progress=True, **pair_law(flags))
    report(save_phase_map(phase, out), as_json=True)


@app.command
def pair(
    *,
    flags: PairFlags = PairFlags(),
    observable: Annotated[str, Parameter(help="overlap, distance2, log_distance, energy, exceedance or quantiles.")] = (
        "energy"
    ),
    times: Annotated[str, Parameter(help="Comma-separated.")] = "0.5,2,5",
    rho0: Annotated[float | None, Parameter(help="Overlap at time 0; without it two uniform tokens.")] = None,
    uniform: Annotated[bool, Parameter(help="Two uniform tokens (the default).", negative=())] = False,
    noise: Annotated[Literal["mlp", "none"], Parameter(help="The MLP's Gaussian field, or only the noises below.")] = (
        "mlp"
    ),
    private: Annotated[float, Parameter(help="Deviation of noise of each token's own.")] = 0.0,
    vector: Annotated[float, Parameter(help="Deviation of one Brownian vector for all.")] = 0.0,
    values: Annotated[float, Parameter(help="Deviation of random value matrices.")] = 0.0,
    threshold: Annotated[float, Parameter(help="Of exceedance, P(overlap > threshold).")] = 0.9,
    levels: Annotated[str, Parameter(help="Of quantiles, comma-separated.")] = "0.05,0.25,0.5,0.75,0.95",
) -> None:
    """E f(ρ_t) for the overlap of two tokens, without Monte Carlo, as one JSON object."""
    from synchronoise.theory import pair_report

    if uniform and rho0 is not None:
        raise UserError("--uniform and --rho0 are two starts", mend="give one of them")
    noises = {"mlp": noise == "mlp", "private": private, "vector": vector, "values": values}
    asked = {"threshold": threshold, "levels": numbers("levels", levels)}
    result = pair_report(observable, numbers("times", times), rho0, **pair_law(flags), **noises, **asked)
    report(result, as_json=True)


def numbers(name: str, text: str) -> list[float]:
    """The comma-separated numbers of a flag."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(name, got=text, expected="comma-separated numbers", mend=f"e.g. --{name} 0.5,2,5") from None


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
    from synchronoise.exponents import exponents_report

    allow_dtype("float64")
    report(exponents_report(given(flags), full=full), as_json=True)


@app.command
def clusters(
    *,
    flags: RunFlags = RunFlags(),
    delta: Annotated[float, Parameter(help="Tokens at angles below it are in one cluster.")] = 0.1,
    gram_rank: Annotated[bool, Parameter(help="Also the rank of the Gram matrix.", negative=())] = False,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("clusters.nc"),
    overwrite: Overwrite = False,
) -> None:
    """Count clusters against time: sizes, times to two and to one, antipodal pairs, attractor, as one JSON object."""
    from synchronoise.clusters import count_clusters
    from synchronoise.config import configure

    allow_dtype(configure(given(flags)).dtype)
    result = count_clusters(given(flags), out, delta=delta, gram_rank=gram_rank, overwrite=overwrite, progress=True)
    report(result, as_json=True)


@app.command
def compare(
    what: Literal["noises"],
    /,
    *,
    flags: RunFlags = RunFlags(),
    noises: Annotated[str, Parameter(help="Comma-separated: mlp, field, private, vector, values.")] = (
        "mlp,private,vector,values"
    ),
    delta: Annotated[float, Parameter(help="Tokens at angles below it are in one cluster.")] = 0.1,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("compare.nc"),
    overwrite: Overwrite = False,
) -> None:
    """Run the same start and attention under several noises of one speed; energies beside the theory, as JSON.

    Parameters
    ----------
    what
        noises.
    """
    from synchronoise.compare import compare_noises
    from synchronoise.config import configure

    allow_dtype(configure(given(flags)).dtype)
    names = noises.split(",")
    report(compare_noises(given(flags), out, noises=names, delta=delta, overwrite=overwrite, progress=True), True)


@app.command
def escape(
    *,
    flags: RunFlags = RunFlags(),
    strengths: Annotated[str, Parameter(help="Of the noise, comma-separated.")] = "0.5,1,2",
    settle: Annotated[float, Parameter(help="Time of attention alone before the noise begins.")] = 15.0,
    delta: Annotated[float, Parameter(help="Tokens at angles below it are in one cluster.")] = 0.3,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("escape.nc"),
    overwrite: Overwrite = False,
) -> None:
    """Escape times from the metastable clusters of attention alone, for several strengths of the noise, as JSON.

    Defaults here: dim 2, beta 7, 32 tokens, width 16, 1000 layers, horizon 20.
    """
    from synchronoise.config import configure
    from synchronoise.escape import escapes

    allow_dtype(configure(given(flags)).dtype)
    chosen = {"strengths": numbers("strengths", strengths), "settle": settle, "delta": delta}
    report(escapes(given(flags), out, **chosen, overwrite=overwrite, progress=True), as_json=True)


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
    dry_run: Annotated[bool, Parameter(help="Say what would run, its memory and time.", negative=())] = False,
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
    from synchronoise.config import read_toml

    values = {**(read_toml(path) if path else {}), **given(flags)}
    job = runs.prepare(values, source=str(path or ""))
    allow_dtype(job.config.dtype)
    if dry_run:
        report(runs.plan(job), json)
        return
    out = out or Path(path.with_suffix(".nc").name if path else "run.nc")
    report(runs.produce(job, out, overwrite=overwrite, resume=resume, progress=True), json)


@app.command
def paper(
    what: Literal["table", "fig1", "grid", "all"],
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder of the results, new or of an earlier such run.")],
    activation: Annotated[str | None, Parameter(help="One grid: relu, sigmoid, tanh, silu, or none.")] = None,
    quick: Annotated[bool, Parameter(help="Tiny sizes, to see that it works.", negative=())] = False,
    seed: Annotated[int | None, flag("seed")] = None,
    overwrite: Annotated[bool, Parameter(help="Replace results of other settings.", negative=())] = False,
    json: Json = False,
) -> None:
    """Make the paper's table and figures, with the theory over them; what is there already is kept.

    Parameters
    ----------
    what
        table, fig1, grid (all five, or the one of --activation), or all of it.
    """
    from synchronoise.paper import reproduce

    values = {"activation": activation, "quick": quick, "overwrite": overwrite, "progress": True}
    report(reproduce(what, out=out, seed=0 if seed is None else seed, **values), json)


@app.command
def converge(
    what: Literal["depth", "width", "limits", "law"],
    /,
    *,
    flags: ConvergeFlags = ConvergeFlags(),
    levels: Annotated[str | None, Parameter(help="Layers, or widths for `width`: comma-separated.")] = None,
    widths: Annotated[str | None, Parameter(help="Widths of `limits` and `law`, e.g. 16,64,inf.")] = None,
    token_error: Annotated[float, Parameter(help="limits: root-mean-square error per token that is wanted.")] = 0.1,
    path: Annotated[bool, Parameter(help="depth: one path as L grows, no mean.", negative=())] = False,
    quick: Annotated[bool, Parameter(help="Fewer levels and replicas, wider bands.", negative=())] = False,
    out: Annotated[Path | None, Parameter(help="The result [default: converge-WHAT.nc]; a figure goes beside it.")] = (
        None
    ),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure how the transformer converges to its limit on the same randomness: rates with intervals, and a verdict.

    The defaults take a few minutes.

    Parameters
    ----------
    what
        depth: error against layers L.  width: against the width m.  limits: both, and how deep and wide is enough.
        law: mean energy of two tokens, at several widths.
    """
    from synchronoise.convergence.experiments import experiment
    from synchronoise.convergence.report import produce, table

    axes = {name: tuple(numbers(name, text)) for name, text in (("levels", levels), ("widths", widths)) if text}
    chosen = experiment(what, given(flags), quick=quick, **axes)
    allow_dtype("float64")
    out = out or Path(f"converge-{what}.nc")
    result = produce(chosen, out, overwrite=overwrite, token_error=token_error, path=path, progress=True)
    if json:
        report(result, as_json=True)
    else:
        print(table(result))


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
        A file that `synchronoise simulate` wrote.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # σ on an ASCII terminal, a file name that is no UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"synchronoise: warning: {message}\n"
    sys.exit(status(arguments))


def status(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; here every error a person can cause becomes one line and an exit status."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_none")
        sys.stdout.flush()
    except CycloptsError as error:
        error.verbose = False
        return _say(" ".join(str(error).split()) + " See --help.", 2)
    except UserError as error:
        return _say(str(error), 2)
    except RunError as error:
        return _say(str(error), 1)
    except MemoryError:
        return _say("out of memory; use fewer --replicas or --tokens, or a smaller --width", 1)
    except KeyboardInterrupt as interrupt:
        return _say(str(interrupt) or "interrupted", 130)
    except OSError as error:
        if error.filename is None:
            # The reader of our output has gone (`| head`), or its disk is full: let Python's exit flush elsewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else _say(f"{error.filename or 'output'}: {error.strerror}", 1)
    return 0


def _say(message: str, status: int) -> int:
    print(f"synchronoise: {message}", file=sys.stderr)
    return status
