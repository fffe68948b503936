"""From an experiment to what a person sees: a table, a JSON object, a netCDF file and a figure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .. import plots_convergence
from ..banks import frozen_field
from ..errors import UserError
from ..model import Transformer
from ..store import check_output, load, save, write_atomically
from .depth import depth_paths
from .experiments import QUICK_WORDS, Experiment, Number, provenance
from .measures import Summary, measure

KIND = "convergence"
FIGURES = {
    "depth": plots_convergence.rates_figure,
    "width": plots_convergence.rates_figure,
    "limits": plots_convergence.limits_figure,
    "law": plots_convergence.law_figure,
}


def produce(
    experiment: Experiment, out: str | Path, *, overwrite: bool = False, token_error: Number = 0.1, path: bool = False,
    progress: bool = False,
) -> Summary:  # fmt: skip
    """Run an experiment into the file ``out`` and a figure beside it; the summary, with both names.

    With ``path`` (for `depth`) no mean is taken: one path is followed as L grows, and drawn.  Raises `UserError`
    before anything runs when the output should not be written.
    """
    out, picture = Path(out), Path(out).with_suffix(".png")
    if overwrite and out.exists():
        load(out, kind=KIND)
    else:
        check_output(out)
    if picture.exists() and not overwrite:
        raise UserError(f"{picture} exists", mend="--overwrite replaces it, --out names another file")
    if not token_error > 0:
        raise UserError("token_error", got=token_error, expected="a number > 0", mend="use --token-error 0.1")
    if path:
        if experiment.what != "depth":
            raise UserError(f"converge {experiment.what} has no --path", mend="use converge depth --path")
        dataset, summary, figure = _one_path(experiment)
    else:
        dataset, summary = measure(experiment, token_error=token_error, progress=progress)
        if experiment.quick:
            summary["quick"] = QUICK_WORDS
        figure = FIGURES[experiment.what](dataset, caption(experiment))
    config, more = experiment.job.config, {"path": path, "summary": summary}
    made_by = provenance(experiment.what, config, experiment.levels, experiment.widths, **more)
    save(dataset, out, made_by, kind=KIND)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200)
    write_atomically(picture, content.getbuffer())
    return {**summary, "file": str(out), "picture": str(picture)}


def _one_path(experiment: Experiment) -> tuple[xr.Dataset, Summary, Any]:
    config = experiment.job.config
    field = frozen_field(experiment.law, config.seed)
    model = Transformer(experiment.job.model.attention, field, horizon=config.horizon)
    paths = depth_paths(model, experiment.start, experiment.levels, seed=config.seed)
    finest = max(paths)
    errors = {
        level: float(np.max(np.mean(np.sum((paths[level] - paths[finest][:: finest // level]) ** 2, axis=-1), axis=-1)))
        for level in experiment.levels
    }
    dataset = xr.Dataset({f"tokens_{level}": ((f"layer_{level}", "token", "dim"), x) for level, x in paths.items()})
    shrinks = errors[experiment.levels[-1]] < errors[experiment.levels[0]]
    summary: Summary = {
        "levels": list(errors),
        "error": list(errors.values()),
        "theory": "-> 0 on almost every path",
        "verdict": "this path approaches its limit" if shrinks else "this path does not approach its limit yet",
        "field": field.route,
        "missing_slope": field.missing_slope,
    }
    return (
        dataset,
        summary,
        plots_convergence.path_figure(paths, errors, config.horizon, caption(experiment, "one path")),
    )


def caption(experiment: Experiment, runs: str = "") -> str:
    """What was run, in two lines, under the paper's names.

    >>> from synchronoise.convergence.experiments import experiment
    >>> print(caption(experiment("width", {})))
    relu, σ_U = 0, σ_W = 0, softmax attention (β = 1, scale 1), L = 32
    N = 4 tokens, d = 3, T = 1, 256 replicas, seed 0
    """
    config = experiment.job.config
    attention = "no attention"
    if experiment.job.model.attention is not None:
        attention = f"{config.attention} attention (β = {config.beta:g}, scale {config.attention_scale:g})"
    depth = f", L = {config.layers}" if experiment.what == "width" else ""
    return (
        f"{config.activation}, σ_U = {config.sigma_u:g}, σ_W = {config.sigma_w:g}, {attention}{depth}\n"
        f"N = {config.tokens} tokens, d = {config.dim}, T = {config.horizon:g}, "
        f"{runs or f'{config.replicas} replicas'}, seed {config.seed}"
    )


def table(summary: Summary) -> str:
    """A summary as text: a table of the errors by level, then everything else, a line each.

    >>> print(table({"levels": [8, 16], "error": [0.5, 0.25], "slope": -1.0, "verdict": "converges like 1/m"}))
    levels  error
         8    0.5
        16   0.25
    slope    -1
    verdict  converges like 1/m
    """
    levels = summary["levels"]
    rest = dict(summary)
    if isinstance(levels, dict):  # a grid: layers down, widths across
        head = ["L \\ m", *map(str, levels["width"])]
        rows = [[str(depth), *map(_short, row)] for depth, row in zip(levels["layers"], summary["error"], strict=True)]
        used = ["levels", "error"]
    elif "widths" in summary:  # one row for each width
        head = ["m", *(f"L = {level}" for level in levels), "slope", "interval", "limit"]
        columns = ("widths", "error", "slope", "ci", "limit")
        rows = [
            [str(width), *map(_short, error), _short(slope), _short(interval), _short(limit)]
            for width, error, slope, interval, limit in zip(*(summary[name] for name in columns), strict=True)
        ]
        used = ["levels", *columns]
    else:
        used = [name for name in summary if name == "levels" or name.startswith("error")]
        head = [name.replace("_", " ") for name in used]
        rows = [[_short(value) for value in row] for row in zip(*(summary[name] for name in used), strict=True)]
    for name in used:
        del rest[name]
    wide = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, wide, strict=True)) for row in [head, *rows]]
    width = max(map(len, rest))
    lines += [f"{name:<{width}}  {value if isinstance(value, str) else _short(value)}" for name, value in rest.items()]
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_short(part)}" for name, part in value.items())
    if isinstance(value, list):
        return (
            "; ".join(map(_short, value))
            if value and isinstance(value[0], dict)
            else f"[{', '.join(map(_short, value))}]"
        )
    return f"{value:.4g}" if isinstance(value, float) else str(value)
