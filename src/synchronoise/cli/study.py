"""Commands that test the theorems: paper, converge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from synchronoise.cli.common import Json, LawFlags, Overwrite, allow_dtype, app, flag, given, numbers, report
from synchronoise.errors import UserError
from synchronoise.options import converge_default


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


# Beside the flags of a law: what each experiment has.
HAS = {
    "depth": ("levels", "path", "quick"),
    "width": ("levels", "quick"),
    "limits": ("levels", "widths", "token_error", "quick"),
    "law": ("levels", "widths", "quick"),
    "tokens": ("levels", "quick"),
    "corollary": ("levels", "widths"),
}


def _flag(name: str) -> Parameter:
    return flag(name, converge_default(name))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConvergeFlags(LawFlags):
    """What a coupled experiment depends on, apart from its levels; each experiment has small sizes of its own."""

    beta: Annotated[float | None, _flag("beta")] = None
    dim: Annotated[int | None, _flag("dim")] = None
    sigma_u: Annotated[float | None, _flag("sigma_u")] = None
    sigma_w: Annotated[float | None, _flag("sigma_w")] = None
    attention: Annotated[str | None, _flag("attention")] = None
    attention_scale: Annotated[float | None, _flag("attention_scale")] = None
    tokens: Annotated[int | None, _flag("tokens")] = None
    horizon: Annotated[float | None, _flag("horizon")] = None
    layers: Annotated[int | None, _flag("layers")] = None
    start: Annotated[str | None, _flag("start")] = None
    overlap: Annotated[float | None, _flag("overlap")] = None
    replicas: Annotated[int | None, _flag("replicas")] = None
    seed: Annotated[int | None, _flag("seed")] = None


@app.command
def converge(
    what: Literal["depth", "width", "limits", "law", "tokens", "corollary"],
    /,
    *,
    flags: ConvergeFlags = ConvergeFlags(),
    levels: Annotated[
        str | None, Parameter(help="Layers; widths of `width`, N of `tokens` and `corollary`: 8,16.")
    ] = None,
    widths: Annotated[str | None, Parameter(help="Widths of `limits`, `law` and `corollary`, e.g. 16,64,inf.")] = None,
    token_error: Annotated[
        float | None, Parameter(help="limits: wanted root-mean-square error of a token [default: 0.1]")
    ] = None,
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
        law: mean energy of two tokens, at several widths.  tokens: W_2 to the SPDE against the number N of tokens
        (dim 3 takes 72 replicas).
        corollary: the same over tokens × layers × widths, on the circle without attention.
    """
    from synchronoise.convergence.experiments import experiment
    from synchronoise.convergence.report import produce, table

    axes = {name: tuple(numbers(name, text)) for name, text in (("levels", levels), ("widths", widths)) if text}
    out = out or Path(f"converge-{what}.nc")
    typed = {"levels": levels, "widths": widths, "token_error": token_error, "path": path, "quick": quick}
    for name, value in typed.items():
        if value not in (None, False) and name not in HAS[what]:
            raise UserError(f"converge {what} has no --{name.replace('_', '-')}", mend="leave it out")
    if path and (quick or flags.replicas is not None):
        raise UserError(f"--path has no --{'quick' if quick else 'replicas'}", mend="leave it out")
    allow_dtype("float64")
    if what == "tokens":
        from synchronoise.meanfield.chaos import converge_tokens

        result = converge_tokens(given(flags), out, quick=quick, overwrite=overwrite, progress=True, **axes)
    elif what == "corollary":
        from synchronoise.meanfield.limits import converge_corollary

        report(converge_corollary(given(flags), out, overwrite=overwrite, progress=True, **axes), json)
        return
    else:
        chosen = experiment(what, given(flags), quick=quick, **axes)
        wanted = {} if token_error is None else {"token_error": token_error}
        result = produce(chosen, out, overwrite=overwrite, path=path, progress=True, **wanted)
    if json:
        report(result, as_json=True)
    else:
        print(table(result))
