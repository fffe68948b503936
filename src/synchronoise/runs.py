"""A configuration run from beginning to end: prepared, checkpointed, resumed, written, and run again.

`prepare` turns a configuration into a `Job` (a model and a start), `run` computes it into a result file and
can be interrupted anywhere, `rerun` repeats a result and compares.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from synchronoise.budget import Memory, available_memory, check_memory, memory, seconds_per_layer
from synchronoise.config import TOKEN_FILES, RunConfig, command, configure
from synchronoise.errors import RunError, UserError
from synchronoise.harmonic_attention import DenseTokens, HarmonicAttention, warn_of_dense
from synchronoise.model import Transformer
from synchronoise.observables import MOST_PAIRED, Energy, Observable, OverlapHistogram, OverlapQuantiles
from synchronoise.pictures import draw_run
from synchronoise.routes import attention_of, noise_of
from synchronoise.simulation import NotFiniteError, State, simulate
from synchronoise.sphere import Clusters, Equiangular, Start, Uniform, tokens_from_file
from synchronoise.store import check_output, claimed, clear_leftovers, environment, load, save, uninterrupted

# A float64 file of unit rows is within this of length 1, a float32 one is not far from it.
UNIT_LENGTH_TOLERANCE = 1e-6
# Energies are about e^|β|: they fit the dtype, and the squares of their deviations float64.
LARGEST_BETA = {"float32": 88, "float64": 350}
SECONDS_BETWEEN_CHECKPOINTS = 5.0


class Job(NamedTuple):
    """A configuration and what it means: the model, and the start (a law of tokens, or the tokens of a
    file)."""

    config: RunConfig
    model: Transformer
    start: Start | np.ndarray


def prepare(values: Mapping[str, object], *, source: str = "") -> Job:
    """The job of these settings (names of `RunConfig`); `source` is their file's name, for errors.

    When the start is a file of tokens, `tokens` and `dim` come from it, and must agree with it when given
    as well. Raises `UserError` for the first setting that is wrong.

    >>> prepare({"dim": 4, "tokens": 8, "width": "inf", "horizon": 1.0}).model.route
    'Gaussian field, Cholesky factor'
    """
    rows = None
    if str(values.get("start", "")).endswith(TOKEN_FILES):
        rows = _read_tokens(str(values["start"]))
        values = {"tokens": rows.shape[0], "dim": rows.shape[1], **values}
    config = configure(values, source=source)
    if rows is not None:
        for name, in_file in (("dim", rows.shape[1]), ("tokens", rows.shape[0])):
            if getattr(config, name) != in_file:
                raise UserError(
                    name,
                    got=getattr(config, name),
                    expected=f"{in_file} as in {config.start}",
                    mend=f"use {name} = {in_file} or leave it out",
                )
    return _job(config, rows)


def _job(config: RunConfig, rows: np.ndarray | None) -> Job:
    model = Transformer(attention_of(config), noise_of(config), layers=config.layers, horizon=config.horizon)
    if abs(config.beta) > LARGEST_BETA[config.dtype]:
        raise UserError(
            "beta",
            got=config.beta,
            expected=f"at most {LARGEST_BETA[config.dtype]} in size for {config.dtype}: energies are about e^beta",
            mend="use float64 or a smaller one",
        )
    if config.layers % config.every:
        raise UserError("every", got=config.every, expected=f"a divisor of layers = {config.layers}", mend="use 1")
    return Job(config, model, _start(config) if rows is None else rows)


def _start(config: RunConfig) -> Start:
    if config.start == "clusters":
        return Clusters(config.tokens, config.dim, clusters=config.clusters, spread=config.spread)
    if config.start == "equiangular":
        return Equiangular(config.tokens, config.dim, overlap=config.overlap)
    return Uniform(config.tokens, config.dim)


def _read_tokens(path: str) -> np.ndarray:
    rows, deviation = tokens_from_file(path)
    if len(rows) < 2:
        raise UserError(f"{path}: one token", mend="give at least two rows, one token per row")
    if deviation > UNIT_LENGTH_TOLERANCE:
        warnings.warn(
            f"rows of {path} were not of length 1 (off by up to {deviation:.2g}) and have been normalised",
            stacklevel=2,
        )
    return rows


def _observers(job: Job) -> tuple[Observable, ...]:
    usual = Energy(beta=job.config.beta), OverlapQuantiles(), OverlapHistogram(bins=50)
    attention = job.model.attention
    return (*usual, DenseTokens(attention)) if isinstance(attention, HarmonicAttention) else usual


def _simulate(job: Job, **how: Any) -> xr.Dataset:
    config = job.config
    try:
        return simulate(
            job.model,
            job.start,
            replicas=config.replicas,
            seed=config.seed,
            observers=_observers(job),
            every=config.every,
            save_tokens=config.save_tokens,
            dtype=config.dtype,
            chunk=config.chunk or None,
            partial=False,
            **how,
        )
    except NotFiniteError as failure:
        names = {
            "start": ("start", "spread"),
            "attention": ("attention", "beta", "attention_scale"),
            "noise": ("noise", "activation", "sigma_u", "sigma_w"),
        }
        at = ", ".join(f"{name} = {getattr(config, name)}" for name in names[failure.part])
        raise RunError(f"{failure} ({at}); more layers, smaller values or float64 may help") from None
    except jax.errors.JaxRuntimeError as failure:
        if "RESOURCE_EXHAUSTED" not in str(failure):
            raise
        raise RunError("out of memory; use fewer --replicas or --tokens, or a smaller --width") from None


def route(job: Job) -> str:
    """How the noise, and the attention where there is a choice, are computed."""
    attention = job.model.attention
    return job.model.route + (f"; {attention.route}" if isinstance(attention, HarmonicAttention) else "")


def provenance(job: Job) -> dict[str, Any]:
    """What makes the result of a job, and nothing of the moment: equal provenance, equal bytes."""
    start = {}
    if isinstance(job.start, np.ndarray):
        start = {"start_sha256": hashlib.sha256(np.ascontiguousarray(job.start).tobytes()).hexdigest()}
    return {
        "config": job.config.model_dump(),
        "command": command(job.config),
        "route": route(job),
        "environment": {**environment(), "device": jax.devices()[0].device_kind},
        **start,
    }


def estimate(job: Job) -> Memory:
    """Bytes the job needs (counted, not measured; see `budget.memory`)."""
    config = job.config
    numbers = 1 + sum(math.prod(map(len, observer.coords.values())) for observer in _observers(job)[1:])
    return memory(
        job.model,
        tokens=config.tokens,
        dim=config.dim,
        replicas=config.replicas,
        observed=numbers + config.save_tokens * config.tokens * config.dim,
        rows=config.layers // config.every + 1,
        dtype=config.dtype,
    )


def plan(job: Job) -> dict[str, Any]:
    """What would run, its memory and its time (`simulate --dry-run`); refuses what does not fit."""
    need, free = estimate(job), available_memory()
    check_memory(need, free)
    tokens = np.random.default_rng(0).standard_normal((job.config.tokens, job.config.dim))
    tokens = tokens.astype(job.config.dtype)
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    layer, look = seconds_per_layer(job.model, tokens, job.config.replicas, _observers(job))
    seconds = job.config.layers * layer + (job.config.layers // job.config.every + 1) * look
    return {
        "command": command(job.config),
        "route": route(job),
        "steps": job.config.layers * job.config.replicas,
        "memory_gb": round(need.total / 1e9, 2),
        "available_gb": round(free / 1e9, 2),
        "seconds": float(f"{seconds:.2g}"),
    }


def run(
    job: Job, out: str | Path, *, overwrite: bool = False, resume: bool = False, progress: bool = False
) -> xr.Dataset:
    """Compute a job into the file `out` and return its dataset.

    While it runs, `out`.partial holds everything done so far, renewed every few seconds.  With `resume` the
    run continues from there (or starts, when there is nothing yet), and ends with the same bytes as one
    that was never interrupted.  Raises `UserError` when the output should not be written, or another
    run is writing it, `RunError` when the run fails, and `KeyboardInterrupt` when it is interrupted; the last two
    leave the checkpoint for `resume`.
    """
    out = check_output(out, overwrite=overwrite or resume)
    with claimed(out):
        check_output(out, overwrite=overwrite or resume)  # again: the holder before may have written it
        return _run(job, out, overwrite=overwrite, resume=resume, progress=progress)


def _run(job: Job, out: Path, *, overwrite: bool, resume: bool, progress: bool) -> xr.Dataset:
    made_by = provenance(job)
    partial = out.with_name(f"{out.name}.partial")
    state = None
    if resume:
        if out.exists() and not overwrite:
            dataset, done = load(out)
            _must_match(done, made_by, out)
            partial.unlink(missing_ok=True)
            return dataset
        if partial.exists():
            state = _read_checkpoint(partial, made_by)
        else:
            warnings.warn(f"nothing to resume, no {partial.name}: the run starts at layer 0", stacklevel=3)
    elif partial.exists() and not overwrite:
        raise UserError(
            f"{partial} is left from an interrupted run",
            mend="--resume continues it, --overwrite starts again",
        )
    check_memory(estimate(job), available_memory())
    clear_leftovers(out)
    checkpoint = _Checkpoint(partial, made_by, always=job.config.chunk > 0)
    try:
        dataset = _simulate(job, progress=progress, resume=state, on_chunk=checkpoint)
    except RunError:
        checkpoint.write()
        raise
    except KeyboardInterrupt as stop:
        checkpoint.write()
        raise KeyboardInterrupt(f"{stop}; --resume continues" if str(stop) else "interrupted") from None
    del dataset.attrs["provenance"]
    if isinstance(job.start, np.ndarray):
        dataset["start_tokens"] = (("token", "dim"), job.start, {"long_name": "tokens at the start"})
    save(dataset, out, made_by)
    partial.unlink(missing_ok=True)
    return dataset


def produce(
    job: Job, out: str | Path, *, overwrite: bool = False, resume: bool = False, progress: bool = False
) -> dict[str, Any]:
    """`run` a job and draw it: `out`, and beside it a picture of the same name ending in .png.

    Returns the mean energy and the median overlap at both ends of the run, with their standard errors.
    """
    picture = Path(out).with_suffix(".png")
    if picture.exists() and not (overwrite or (resume and Path(out).exists())):
        raise UserError(f"{picture} exists", mend="--overwrite replaces it, --out names another file")
    dataset = run(job, out, overwrite=overwrite, resume=resume, progress=progress)
    try:
        draw_run(job.config, dataset, picture)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted while drawing: {out} is whole, --resume draws its picture") from None
    warn_of_dense(dataset, job.config.tokens)
    energy = dataset["energy"].values.astype(float)
    median = dataset["overlap_quantiles"].sel(quantile=0.5).values.astype(float)
    ends: dict[str, Any] = {
        "file": str(out),
        "picture": str(picture),
        "replicas": energy.shape[0],
        "layers": int(dataset["layer"][-1]),
    }
    if job.config.tokens > MOST_PAIRED:
        ends["of_tokens"] = f"the first {MOST_PAIRED}"
    for name, values in (("energy", energy), ("median_overlap", median)):
        for end, row in (("start", values[:, 0]), ("end", values[:, -1])):
            ends[f"{name}_{end}"] = float(row.mean())
            ends[f"{name}_{end}_se"] = float(row.std(ddof=1) / math.sqrt(len(row))) if len(row) > 1 else None
    return ends


class _Checkpoint:
    """The last state of a run in the file ``path``: of every chunk, or as often as costs a twentieth of the time.

    A checkpoint holds all that was observed, so writing it after each of many short chunks would take most of a run.
    """

    def __init__(self, path: Path, made_by: Mapping[str, Any], *, always: bool):
        self.path, self.made_by, self.always = path, made_by, always
        self.unwritten: State | None = None
        self.due = time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS

    def __call__(self, state: State) -> None:
        self.unwritten = state
        if self.always or time.monotonic() >= self.due:
            self.write()

    def write(self) -> None:
        if self.unwritten is not None:
            with uninterrupted():
                self._write(self.unwritten)

    def _write(self, state: State) -> None:
        began = time.monotonic()
        variables: dict[str, Any] = {"state": (("replica", "token", "dim"), state.tokens)}
        for name, seen in state.seen.items():
            dims = ("replica", "layer", *(f"{name}_{k}" for k in range(seen.ndim - 2)))
            variables[f"seen_{name}"] = (dims, seen)
        self.unwritten = None  # a disk that is full is not tried again
        save(xr.Dataset(variables, attrs={"rows": state.rows}), self.path, self.made_by, kind="checkpoint")
        now = time.monotonic()
        self.due = now + max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (now - began))


def _read_checkpoint(path: Path, made_by: Mapping[str, Any]) -> State:
    dataset, theirs = load(path, kind="checkpoint")
    _must_match(theirs, made_by, path)
    seen = {
        str(name).removeprefix("seen_"): variable.values
        for name, variable in dataset.data_vars.items()
        if name != "state"
    }
    return State(int(dataset.attrs["rows"]), dataset["state"].values, seen)


def _must_match(theirs: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    """Refuse to mix two runs; the size of a chunk is the only setting that changes no number."""
    for name, value in {**ours["config"], "start_sha256": ours.get("start_sha256")}.items():
        other = {**theirs.get("config", {}), "start_sha256": theirs.get("start_sha256")}.get(name)
        if name != "chunk" and other != value:
            raise UserError(
                f"{path} is of another run: {name}",
                got=value,
                expected=f"{other!r} as there",
                mend="or --overwrite",
            )
    if theirs["environment"] != ours["environment"]:
        warnings.warn(f"{path} was made by {_difference(theirs, ours)}: not the same bits to the end", stacklevel=2)


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The parts of the environment that differ, as "jax 0.8.3, now 0.12.0"; empty when none does."""
    then, now = theirs["environment"], ours["environment"]
    return ", ".join(f"{name} {then.get(name)}, now {now[name]}" for name in now if then.get(name) != now[name])


def recorded(path: str | Path) -> tuple[xr.Dataset, dict[str, Any], RunConfig]:
    """The dataset, the provenance and the checked configuration of a result that `run` wrote.

    Raises `RunError` for any other file, also for one of ours that another command wrote.
    """
    dataset, made_by = load(path)
    if not {"config", "environment"} <= set(made_by):
        raise RunError(f"{path} was not written by `synchronoise simulate`")
    return dataset, made_by, configure(made_by["config"], source=str(path))


def rerun(path: str | Path, *, progress: bool = False) -> dict[str, Any]:
    """Run what a result file says again, and compare every number: {"identical", "largest_difference", ...}.

    On the same machine and versions the numbers must be identical.  Elsewhere they must agree within
    rounding: the mean |difference| of each variable within √ε of its largest value, ε that of the dtype.
    Raises `RunError` when they do not.
    """
    dataset, made_by, config = recorded(path)
    rows = dataset["start_tokens"].values if "start_tokens" in dataset else None
    job = _job(config, rows)
    check_memory(estimate(job), available_memory())
    again = _simulate(job, progress=progress)
    elsewhere = _difference(made_by, provenance(job))
    largest, identical, close = 0.0, True, True
    for name in again.data_vars:
        before, after = dataset[name].values, again[name].values
        difference = np.abs(after.astype(float) - before)
        largest = max(largest, float(difference.max()))
        identical &= before.tobytes() == after.tobytes()
        close &= bool(difference.mean() <= math.sqrt(np.finfo(config.dtype).eps) * np.abs(before).max())
    if not (identical or (elsewhere and close)):
        raise RunError(
            f"{path} is not what its settings give{f' ({elsewhere})' if elsewhere else ''}: "
            f"numbers differ by up to {largest:.3g}"
        )
    return {
        "file": str(path),
        "verdict": "identical" if identical else "equal within rounding",
        "largest_difference": largest,
        "environment": elsewhere or "same machine and versions",
    }
