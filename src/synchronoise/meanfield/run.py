"""`synchronoise spde`: one realisation of (1.10) into a file and a picture, and the mean energy over many noises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr

from ..banks import frozen_field
from ..clusters import check_result
from ..config import TOKEN_FILES, RunConfig, noise_terms
from ..errors import UserError
from ..harmonic_attention import DenseTokens, HarmonicAttention, warn_of_dense
from ..harmonics import DIMENSIONS
from ..model import Transformer
from ..noise import DrawnMLP, FreshFeatures, Noise, SumNoise
from ..observables import Energy, Observable
from ..pictures import caption
from ..plots_flow import save_figure
from ..plots_meanfield import circle_figure, energy_figure, sphere_figure
from ..progress import Progress
from ..routes import attention_of, law_of, noise_of
from ..runs import prepare
from ..store import environment, save
from ..theory import lambda_bar_prime
from .eulerian import SUB, CircleGrid, Grid, SphereGrid
from .initial import Density, VonMisesFisher, nodes, quadrature
from .lagrangian import check_scope, lagrangian
from .solve import Masses, SmoothEnergy, solve

DEFAULTS: dict[str, Any] = {
    "dim": 2, "beta": 5.0, "width": "inf", "tokens": 4096, "layers": 400, "horizon": 4.0, "every": 4, "replicas": 1,
    "dtype": "float64",
}  # fmt: skip
CELLS = {2: 512, 3: 3000}
MOST_DENSE = 20_000  # points whose attention is summed densely
POINTS_OF_A_MEAN = 512  # of the quadrature, where many noises are averaged
GLOBE = 200  # pixels across a globe

Solver = Literal["auto", "eulerian", "lagrangian"]


def spde(
    given: Mapping[str, object], out: str | Path, *, solver: Solver = "auto", cells: int | None = None,
    overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Solve (1.10) for these settings (names of `RunConfig`) into the file ``out`` and a picture beside it; a summary.

    ``solver`` "eulerian" (d = 2, 3) has ``cells`` cells, "lagrangian" weights ``tokens`` points of a quadrature.
    The start is uniform, `clusters` (von Mises-Fisher peaks spread evenly), or a file of tokens (lagrangian).  An MLP
    of width inf is its field in harmonics (d = 2, 3) or narrow fresh layers in law.  With ``replicas`` > 1 the energy
    is also averaged over as many noises, beside Theorem 1.4's bound (THEORY §6).  Raises `UserError` for what has no
    SPDE.
    """
    from_file = str(given.get("start", "")).endswith(TOKEN_FILES)  # which knows its dim and its tokens
    usual = {name: value for name, value in DEFAULTS.items() if not (from_file and name in ("dim", "tokens"))}
    job = prepare({**usual, **given})
    config = job.config
    if solver == "auto":
        solver = "eulerian" if config.dim in DIMENSIONS and not isinstance(job.start, np.ndarray) else "lagrangian"
    if solver == "eulerian" and (config.dim not in DIMENSIONS or isinstance(job.start, np.ndarray)):
        raise UserError("solver eulerian", got=f"dim {config.dim}, start {config.start}",
                        expected="dim 2 or 3 and a density", mend="use --solver lagrangian")  # fmt: skip
    if cells is not None and config.dim not in DIMENSIONS:
        raise UserError("cells", got=cells, expected="dim 2 or 3, where there are cells", mend="leave it out")
    noise = field_of(config)
    grid = _grid(config, cells)
    model = Transformer(_attention(config, grid, solver), noise, layers=config.layers, horizon=config.horizon)
    check_scope(model, field=solver == "eulerian")
    out = check_result(out, "spde", overwrite=overwrite)
    density = None if isinstance(job.start, np.ndarray) else density_of(config)
    with Progress("spde", 2 if config.replicas > 1 else 1, "part", shown=progress) as bar:
        if solver == "eulerian" and grid is not None:
            result = solve(model, grid, density, beta=config.beta, seed=config.seed, every=config.every,
                           dtype=config.dtype)  # fmt: skip
        else:
            points = (job.start, None) if isinstance(job.start, np.ndarray) else quadrature(
                density, config.dim, config.tokens)  # fmt: skip
            result = _by_tokens(model, points, config, grid)
        bar.advance(1)
        if config.replicas > 1:
            result = result.merge(_mean_energy(model, density, job.start, config))
            bar.advance(1)
    result.attrs.setdefault("stopped", "")
    warn_of_dense(result, _points(config, grid, solver), "points")
    words = caption(config)
    if solver == "eulerian" and grid is not None:
        words = words.replace(f"N = {config.tokens} tokens", f"{grid.cells} cells")
    figure = _figure(result, grid, f"SPDE, {solver}: {words}")
    summary = _summary(result, solver, model, grid, config)
    made_by = {"config": config.model_dump(), "solver": solver, "summary": summary, "environment": environment()}
    save(result, out, made_by, kind="spde")
    return {**summary, "file": str(out), "picture": save_figure(figure, out)}


def field_of(config: RunConfig) -> Noise | None:
    """The noise of a configuration as a field; an MLP of width inf in harmonics, or by narrow fresh layers in law."""
    law = law_of(config)
    whole = noise_of(config)
    if whole is None:
        return None
    parts = whole.parts if isinstance(whole, SumNoise) else (whole,)
    found = []
    for (name, _), part in zip(noise_terms(config.noise), parts, strict=True):
        if name not in ("mlp", "field"):
            found.append(part)
        elif name == "mlp" and config.width != "inf":
            found.append(DrawnMLP(law, int(config.width)))
        else:
            found.append(frozen_field(law) if config.dim in DIMENSIONS else FreshFeatures(law))
    return found[0] if len(found) == 1 else SumNoise(*found)


def density_of(config: RunConfig) -> Density:
    """The density of a start: None (uniform), or peaks of the width ``spread``/√d at evenly spread centres."""
    if config.start == "uniform":
        return None
    if config.start == "clusters":
        peaks = np.full(config.clusters, config.dim / max(config.spread, 1e-6) ** 2)
        return VonMisesFisher(nodes(config.dim, config.clusters), peaks)
    raise UserError("start", got=config.start, expected="uniform, clusters or a file", mend="it has no density")


def _grid(config: RunConfig, cells: int | None) -> Grid | None:
    if config.dim not in DIMENSIONS:
        return None
    count = CELLS[config.dim] if cells is None else cells
    return CircleGrid(count) if config.dim == 2 else SphereGrid(count)


def _points(config: RunConfig, grid: Grid | None, solver: str) -> int:
    """How many points the attention is a sum over."""
    if grid is None or solver == "lagrangian":
        return config.tokens
    return grid.cells * (SUB**2 if config.dim == 3 else 1)


def _attention(config: RunConfig, grid: Grid | None, solver: str) -> Any:
    """The attention, in harmonics wherever that is possible."""
    attention = attention_of(config.model_copy(update={"tokens": max(config.tokens, 10**6)}))
    points = _points(config, grid, solver)
    if attention is not None and not isinstance(attention, HarmonicAttention) and points > MOST_DENSE:
        raise UserError(
            f"{config.attention} attention is summed densely, over {points} points", expected=f"at most {MOST_DENSE}",
            mend="use fewer --cells or --tokens",
        )  # fmt: skip
    return attention


def _observers(model: Transformer, config: RunConfig) -> tuple[Observable, ...]:
    energy = SmoothEnergy(config.beta) if config.dim in DIMENSIONS else Energy(config.beta)
    return (energy, DenseTokens(model.attention)) if isinstance(model.attention, HarmonicAttention) else (energy,)


def _by_tokens(model: Transformer, points: Any, config: RunConfig, grid: Grid | None) -> xr.Dataset:
    observers = (*_observers(model, config), *([] if grid is None else [Masses(grid)]))
    result = lagrangian(
        model, *points, replicas=1, seed=config.seed, observers=observers, every=config.every, dtype=config.dtype
    )
    result = result.isel(replica=0, drop=True)
    result.attrs.pop("provenance")
    return result if grid is None else result.assign_coords(centre=(("cell", "dim"), grid.centres))


def _mean_energy(model: Transformer, density: Density, start: Any, config: RunConfig) -> xr.Dataset:
    """Mean energy over the noises with its standard error, and E_0 e^{λ̄' t} where Theorem 1.4 has ε = 0."""
    few = min(config.tokens, POINTS_OF_A_MEAN)
    points = (start, None) if isinstance(start, np.ndarray) else quadrature(density, config.dim, few)
    run = lagrangian(
        model, *points, replicas=config.replicas, seed=config.seed, observers=_observers(model, config),
        every=config.every, dtype=config.dtype,
    )  # fmt: skip
    energy = run["energy"].values.astype(float)
    found = {"energy_mean": energy.mean(axis=0), "energy_se": energy.std(axis=0, ddof=1) / math.sqrt(len(energy))}
    plain = model.attention is None or (config.attention == "softmax" and config.attention_scale == 1)
    if plain and config.noise in ("mlp", "field") and config.beta >= 0 and not config.redraw:
        kernel = law_of(config).kernel()
        found["energy_bound"] = energy[:, 0].mean() * np.exp(lambda_bar_prime(kernel, config.beta) * run["time"].values)
    return xr.Dataset({name: ("row", values) for name, values in found.items()} | {
        "time_of_mean": ("row", run["time"].values)})  # fmt: skip


def _summary(
    result: xr.Dataset, solver: str, model: Transformer, grid: Grid | None, config: RunConfig
) -> dict[str, Any]:
    energy = result["energy"].values
    attention = f"; {model.attention.route}" if isinstance(model.attention, HarmonicAttention) else ""
    summary: dict[str, Any] = {
        "solver": solver, "route": model.route + attention, "time": float(result["time"][-1]),
        "stopped": result.attrs["stopped"] or "at the horizon",
        "energy_start": float(energy[0]), "energy_end": float(energy[-1]),
    }  # fmt: skip
    if solver == "eulerian" and grid is not None:
        mass = result["mass"].values
        summary |= {
            "cells": grid.cells, "grid_error": grid.width, "mass_error": float(np.abs(mass.sum(axis=1) - 1).max()),
            "least_mass": float(mass.min()), "largest_density": float(mass[-1].max() * grid.cells),
            "weak_residual": float(np.abs(result["weak_residual"].values[-1]).max()),
        }  # fmt: skip
    if "energy_mean" in result:
        mean = result["energy_mean"].values
        summary |= {"noises": config.replicas, "mean_energy_end": float(mean[-1]),
                    "mean_energy_end_se": float(result["energy_se"].values[-1])}  # fmt: skip
        if "energy_bound" in result:
            bound, se = result["energy_bound"].values, result["energy_se"].values
            summary |= {"bound_end": float(bound[-1]),
                        "bound_holds": bool((mean <= bound + 5 * se).all())}  # fmt: skip
    return summary


def _figure(result: xr.Dataset, grid: Grid | None, words: str) -> Any:
    if isinstance(grid, CircleGrid):
        return circle_figure(result, words)
    if isinstance(grid, SphereGrid):
        shown = np.unique(np.linspace(0, len(result["time"]) - 1, 4).astype(int))
        return sphere_figure(result, globes(grid, result["mass"].values[shown]), shown, words)
    return energy_figure(result, words)


def globes(grid: SphereGrid, masses: np.ndarray) -> np.ndarray:
    """Densities against the uniform one as images of both halves, x_1 > 0 and x_1 < 0: (time, half, pixel, pixel)."""
    across = (np.arange(GLOBE) + 0.5) * 2 / GLOBE - 1
    y, z = np.meshgrid(across, across[::-1])
    outside = y**2 + z**2 > 1
    x = np.sqrt(np.maximum(1 - y**2 - z**2, 0))
    halves = []
    for side in (1, -1):
        points = np.stack([side * x, side * y, z], axis=-1).reshape(-1, 3)
        image = (masses * grid.cells)[:, np.asarray(grid.cell_of(jnp.asarray(points)))].reshape(-1, GLOBE, GLOBE)
        halves.append(np.where(outside, np.nan, image))
    return np.stack(halves, axis=1)
