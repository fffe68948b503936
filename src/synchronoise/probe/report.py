"""One probe from start to end: measure, predict, judge; a netCDF file, a figure, a table and a JSON object."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr

from synchronoise.clusters import check_result
from synchronoise.errors import UserError
from synchronoise.plots_flow import save_figure
from synchronoise.plots_probe import probe_figure
from synchronoise.probe.architectures import Architecture, architecture
from synchronoise.probe.prediction import PredictionWarning, predict
from synchronoise.probe.verdict import (
    LEVELS,
    changes,
    collapse_depths,
    first_above,
    in_words,
    shares,
    translate,
    what_if,
)
from synchronoise.progress import Progress
from synchronoise.store import environment, save

KIND = "probe"
CONFIRMED_TO = 0.02  # mean absolute error over layers, beyond 3 standard errors, that still confirms a prediction


@dataclass(frozen=True)
class Asked:
    """What a user asks of a probe; one of `model`, `config` and `module` names the model."""

    model: str | None = None
    config: str | None = None
    module: str | None = None
    inputs: str = "random"
    tokens: int = 64
    seeds: int = 8
    depth: int | None = None
    blocks: str | None = None
    beta: float = 1.0
    light: bool = False
    save_embeddings: str | None = None

    def __post_init__(self) -> None:
        if sum(name is not None for name in (self.model, self.config, self.module)) != 1:
            raise UserError(
                "name one model", mend="a name or folder (gpt2-small), --config FILE, or --module pkg:factory"
            )
        for name, least in (("tokens", 3), ("seeds", 1)):
            if getattr(self, name) < least:
                raise UserError(
                    name, got=getattr(self, name), expected=f"an integer >= {least}", mend=f"change --{name}"
                )
        if self.depth is not None and self.depth < 1:
            raise UserError("depth", got=self.depth, expected="an integer >= 1", mend="change --depth")
        if self.module is not None and self.depth is not None:
            raise UserError("--depth and --module", mend="the factory knows its depth")
        if self.save_embeddings is not None and Path(self.save_embeddings).suffix != ".npy":
            raise UserError(
                "save_embeddings", got=self.save_embeddings, expected="a name ending in .npy", mend="add it"
            )


def probe(
    asked: Asked, out: str | Path, *, overwrite: bool = False, confirm: bool = False, progress: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Measure the model asked for beside its prediction; write `out` and its figure; the report as plain values.

    `confirm` also measures each row of the "what if" table on freshly drawn PyTorch models.  Raises `UserError` for
    what cannot be asked, `RunError` for what fails.

    >>> probe(Asked(), "probe.nc")
    Traceback (most recent call last):
    synchronoise.errors.UserError: name one model; a name or folder (gpt2-small), --config FILE, or --module pkg:factory
    """
    from synchronoise.probe.measurement import measure_seeds
    from synchronoise.probe.sources import from_configuration, from_factory, from_folder, with_inputs

    out = check_result(out, KIND, overwrite=overwrite)
    start_file = None if asked.save_embeddings is None else Path(asked.save_embeddings)
    if start_file is not None and start_file.exists() and not overwrite:
        raise UserError(f"{start_file} exists", mend="--overwrite, or another name")
    options = {"tokens": asked.tokens}
    if asked.module is not None:
        source = from_factory(asked.module, **options)
    elif asked.model is not None and Path(asked.model).is_dir():
        source = from_folder(asked.model, depth=asked.depth, eager=not asked.light, **options)
    else:
        named = asked.config if asked.config is not None else str(asked.model)
        source = from_configuration(named, depth=asked.depth, eager=not asked.light, **options)
    source = with_inputs(source, asked.inputs, tokens=asked.tokens)
    if confirm and source.architecture is None:
        raise UserError("--confirm needs an architecture", mend="leave it out")
    seeds = asked.seeds if source.most is None else min(asked.seeds, source.most)
    with Progress("probe", seeds, "model", shown=progress) as bar:
        measured = measure_seeds(
            source.build, source.inputs, seeds, done=lambda: bar.advance(1), blocks=asked.blocks,
            special_first=source.special_first, full=not asked.light, beta=asked.beta,
        )  # fmt: skip
    report: dict[str, Any] = {"model": source.name, "weights": "random" if source.random else "given"}
    report |= {"inputs": asked.inputs, "seeds": seeds, "depth": measured.sizes["layer"] - 1}
    start = None if source.plain and source.random else measured.get("embedding_overlaps")
    if start_file is not None:
        report["embeddings"] = save_first_tokens(source, start_file, asked.blocks)
    result = measured.drop_vars("embedding_overlaps", errors="ignore")
    which = source.architecture
    if which is not None:
        which = replace(which, special_first=source.special_first)
        tokens = _tokens_seen(asked, which)
        overlaps = None if start is None else start.values
        laws = None if source.random else given_laws(source.build(0))
        report |= judge(which, tokens, overlaps)
        report["prediction"] = "architecture" if laws is None else "weights"
        predicted = predict(which, tokens, start=overlaps, laws=laws, beta=asked.beta)
        if predicted.sizes["layer"] != measured.sizes["layer"]:
            raise UserError(
                "blocks", got=measured.sizes["layer"] - 1, expected=f"{which.depth} as the architecture says",
                mend="name the list of blocks with --blocks",
            )  # fmt: skip
        result = result.assign({f"predicted_{name}": values for name, values in predicted.data_vars.items()})
        report["mean_absolute_error"] = float(abs(result["mean_cosine"] - result["predicted_mean_cosine"]).mean())
        if confirm:
            confirm_rows(report["what_if"], which, tokens, seeds, progress=progress)
    report["layers"] = by_layer(result)
    report["measured_collapse"] = {str(level): first_above(_after_blocks(result), level) for level in LEVELS}
    if measured.attrs["note"]:
        report["note"] = measured.attrs["note"]
    provenance = {
        "probe": asdict(asked),
        "versions": environment() | {name: version(name) for name in ("torch", "transformers")},
    }
    save(result.drop_attrs(), out, provenance, kind=KIND)
    words = f"{source.name}, {report['weights']} weights, {asked.inputs} inputs: {seeds} runs"
    return report | {"file": str(out), "picture": save_figure(probe_figure(result, words), out)}


def save_first_tokens(source: Any, path: Path, blocks: str | None) -> str:
    """Write what enters the first block in the first run, divided by its lengths: a start of `simulate`."""
    import torch

    from synchronoise.probe.bridge import save_tokens
    from synchronoise.probe.measurement import embeddings

    torch.manual_seed(0)
    model = source.build(0)
    return str(save_tokens(embeddings(model, source.inputs(model, 0), blocks=blocks)[0].float(), path))


def given_laws(model: Any) -> Any:
    """The laws of given weights where their family is known, else None: the prediction is then of fresh weights."""
    from synchronoise.probe.describing import trained_laws

    try:
        return trained_laws(model)
    except UserError:
        return None


def predict_only(asked: Asked) -> dict[str, Any]:
    """The prediction and the verdict alone, without PyTorch: a name, a configuration or a folder.

    >>> predict_only(Asked("gpt2-small", tokens=16))["collapse"]["0.99"] is None
    True
    """
    if asked.module is not None or asked.inputs != "random":
        raise UserError("--predict knows a model by its name or configuration, on random inputs", mend="leave it out")
    which = architecture(asked.config if asked.config is not None else str(asked.model))
    which = which if asked.depth is None else replace(which, depth=asked.depth)
    report = {"model": which.name, "depth": which.depth, **judge(which, asked.tokens, None)}
    predicted = predict(which, asked.tokens, beta=asked.beta)
    result = xr.Dataset({f"predicted_{name}": values for name, values in predicted.data_vars.items()})
    return report | {"layers": by_layer(result)}


def judge(which: Architecture, tokens: int, start: np.ndarray | None) -> dict[str, Any]:
    """Collapse, shares, the paper's parameters and the "what if" table of an architecture at initialisation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)  # said once
        collapse, parts = collapse_depths(which, tokens, start), shares(which, tokens, start)
        rows = what_if(which, tokens, start)
        paper = translate(which, tokens, start)
    return {
        "architecture": {name: value for name, value in asdict(which).items() if name != "name"},
        "collapse": collapse,
        "shares": parts,
        "paper": paper,
        "what_if": rows,
        "verdict": in_words(which.name, which.depth, collapse, parts),
    }


def confirm_rows(
    rows: list[dict[str, Any]], which: Architecture, tokens: int, seeds: int, *, progress: bool = False
) -> None:
    """Measure each row on drawn models: adds `measured`, `se`, `error` (mean over layers) and `confirmed` to it.

    Confirmed is a mean absolute error over layers below 0.02 plus 3 standard errors of the measured curve.
    """
    from synchronoise.probe.drawn import DrawnTransformer
    from synchronoise.probe.measurement import measure_seeds

    if which.attention != "random":
        raise UserError("--confirm draws transformers with random attention", mend="leave it out")
    varied = {change.name: change.architecture for change in changes(which)} | {"none": which}
    with Progress("confirm", len(rows) * seeds, "model", shown=progress) as bar:
        for row in rows:
            changed = varied[row["change"]]
            measured = measure_seeds(
                lambda seed, changed=changed: DrawnTransformer(changed),
                lambda model, seed: cast(DrawnTransformer, model).embeddings(tokens),
                seeds, done=lambda: bar.advance(1), special_first=which.special_first, full=False,
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PredictionWarning)
                predicted = predict(changed, tokens).mean_cosine.sel(site="resid_post").values[1:]
            curve = _after_blocks(measured)[1:]
            error = float(np.abs(curve - predicted).mean())
            se = float(_after_blocks(measured, "mean_cosine_se")[1:].mean()) if seeds > 1 else math.nan
            row |= {"measured": float(curve[-1]), "se": None if math.isnan(se) else se, "error": error}
            row["confirmed"] = error <= CONFIRMED_TO + 3 * (0.0 if math.isnan(se) else se)


def _tokens_seen(asked: Asked, which: Architecture) -> int:
    """An image has a square of patches and a class token; others what was asked for."""
    if which.first_std is None:
        return asked.tokens
    return math.ceil(math.sqrt(asked.tokens - 1)) ** 2 + 1


def _after_blocks(result: xr.Dataset, name: str = "mean_cosine") -> np.ndarray:
    """A statistic at the embedding and after each block."""
    values = result[name].sel(site="resid_post").values.copy()
    values[0] = float(result[name].sel(site="embedding", layer=0))
    return values


def by_layer(result: xr.Dataset) -> list[dict[str, Any]]:
    """A row for each layer and site that was seen: its statistics, NaN left out."""
    rows = []
    for layer in result["layer"].values:
        for site in result["site"].values:
            here = result.sel(layer=layer, site=site)
            values = {
                str(name): float(here[name])
                for name in here.data_vars
                if "site" in result[name].dims and here[name].ndim == 0 and np.isfinite(here[name])
            }
            if values:
                rows.append({"layer": int(layer), "site": str(site), **values})
    return rows


def table(report: dict[str, Any]) -> str:
    """The report as text: a line for each block, then the verdict and the "what if" table."""
    columns = {
        "mean_cosine": "cosine", "mean_cosine_se": "± SE", "predicted_mean_cosine": "predicted",
        "near_identical": "> 0.999", "effective_rank": "eff. rank", "clusters": "clusters", "norm": "length",
        "predicted_norm": "pred. len.",
    }  # fmt: skip
    shown = [name for name in columns if any(name in row for row in report["layers"])]
    lines = ["layer site        " + "".join(f"{columns[name]:>11}" for name in shown)]
    for row in report["layers"]:
        numbers = (f"{row[name]:11.4g}" if name in row else " " * 11 for name in shown)
        lines.append(f"{row['layer']:5d} {row['site']:12}" + "".join(numbers))
    if "mean_absolute_error" in report:
        lines.append(f"mean absolute error of the predicted mean cosine: {report['mean_absolute_error']:.4f}")
    if "verdict" in report:
        paper = report["paper"]
        lines += ["", report["verdict"], "in the paper's parameters: " + ", ".join(
            f"{label} {paper[name]:.4g}" for label, name in (
                ("T", "horizon"), ("gain", "gain"), ("σ_U", "sigma_u"), ("σ_W", "sigma_w"), ("κ(1)", "kappa_1"),
                ("κ'(1)", "dkappa_1"), ("λ_1", "lambda_1"), ("λ̄", "lambda_bar"), ("values", "sigma_values"),
            )
        ), "", f"{'what if':32}{'cosine':>9}{'> 0.9 at':>10}{'> 0.99 at':>10}"]  # fmt: skip
        for row in report["what_if"]:
            found = "".join(
                f"{'-' if row['collapse'][str(level)] is None else row['collapse'][str(level)]:>10}" for level in LEVELS
            )
            line = f"{row['change']:32}{row['mean_cosine']:9.4f}{found}"
            if "measured" in row:
                told = "confirmed" if row["confirmed"] else "not confirmed"
                line += f"   measured {row['measured']:.4f}, error by layer {row['error']:.4f}: {told}"
            lines.append(line)
    if "embeddings" in report:
        lines.append(f"wrote {report['embeddings']}: synchronoise simulate --start {report['embeddings']}")
    return "\n".join(lines + ([f"wrote {report['file']} and {report['picture']}"] if "file" in report else []))
