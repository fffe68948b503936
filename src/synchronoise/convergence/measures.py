"""What each experiment measures: its numbers as a dataset, and a summary with slopes, the theory's and a verdict.

Errors are mean squares over the tokens, (1/N) Σ |X - X̄|², at the worst time; slopes come with 95 % intervals from
resampled replicas.  A verdict asks that the slope lies in a window around -1 and that its interval is narrow enough to
say so.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from ..banks import frozen_field
from ..model import Transformer
from ..progress import Progress
from ..theory import PairAttention, PairLaw, field_noise, pair_expectation
from . import fit
from .coupling import coupled
from .depth import depth_errors
from .experiments import Experiment, Number
from .law import paired_energies

Summary = dict[str, Any]
WINDOW = (-1.15, -0.85)  # slopes that are called 1/L or 1/m
WINDOW_IN_LAW = (-1.2, -0.9)
WIDEST_INTERVAL, WIDEST_IN_LAW = 0.2, 0.4  # a wider 95 % interval says too little about a slope
HELD_OUT = 0.25  # how far a prediction may be from a measurement that the fit has not seen


def measure(experiment: Experiment, *, token_error: Number = 0.1, progress: bool = False) -> tuple[xr.Dataset, Summary]:
    """Run an experiment: all it measured, and its summary {"levels", "error", "slope", "ci", "theory", "verdict", ...}.

    ``token_error`` is the root-mean-square error per token for which `limits` says how deep and how wide.
    """
    levels, widths = len(experiment.levels), len(experiment.widths)
    runs = {"depth": 1, "width": levels, "limits": levels * widths + 2, "law": levels * widths}[experiment.what]
    with Progress(experiment.what, runs * experiment.job.config.replicas, "replica", shown=progress) as bar:
        if experiment.what == "depth":
            return _depth(experiment, bar)
        if experiment.what == "width":
            return _width(experiment, bar)
        if experiment.what == "limits":
            return _limits(experiment, bar, token_error)
        return _law(experiment, bar)


def _depth(experiment: Experiment, bar: Progress) -> tuple[xr.Dataset, Summary]:
    config, levels = experiment.job.config, np.array(experiment.levels)
    field = frozen_field(experiment.law, config.seed)
    model = Transformer(experiment.job.model.attention, field, horizon=config.horizon)
    how = {"replicas": config.replicas, "seed": config.seed}
    errors = depth_errors(model, experiment.start, experiment.levels, progress=bar, **how)
    dataset = _by_level("layers", levels, errors._asdict())
    rate, to_reference = fit.slope(levels, errors.successive), fit.slope(levels, errors.grid)
    growth = fit.logarithm(levels, errors.all_times)
    logarithm = growth.value > 5 * growth.se
    verdict = _verdict(rate, "1/L at grid times")
    if verdict.startswith("converges"):
        # Successive levels can agree with one another on a wrong limit: the reference decides.
        if not WINDOW[0] <= to_reference.value <= WINDOW[1]:
            verdict = f"does not converge to the limit: slope {to_reference.value:.2f} against the reference"
        else:
            verdict += ", log L / L at all times" if logarithm else "; no logarithm seen at all times"
    summary = {
        "levels": levels.tolist(),
        "error": _list(errors.successive.mean(axis=0)),
        "slope": rate.value,
        "ci": [rate.low, rate.high],
        "theory": -1.0,
        "verdict": verdict,
        "error_to_reference": _list(errors.grid.mean(axis=0)),
        "slope_to_reference": to_reference.value,
        "ci_to_reference": [to_reference.low, to_reference.high],
        "error_at_all_times": _list(errors.all_times.mean(axis=0)),
        "logarithm": growth.value,
        "logarithm_se": growth.se,
        "field": field.route,
        "missing_slope": field.missing_slope,
    }
    return dataset, summary


def _width(experiment: Experiment, bar: Progress) -> tuple[xr.Dataset, Summary]:
    config, widths = experiment.job.config, np.array(experiment.levels)
    how: dict[str, Any] = {"replicas": config.replicas, "seed": config.seed, "progress": bar}
    runs = [coupled(experiment.model(m, config.layers), experiment.start, **how) for m in experiment.levels]
    errors = {name: np.stack([getattr(run, name) for run in runs], axis=1) for name in ("error", "independent")}
    dataset = _by_level("width", widths, {"coupled": errors["error"], "independent": errors["independent"]})
    rate = fit.slope(widths, errors["error"])
    summary = {
        "levels": widths.tolist(),
        "error": _list(errors["error"].mean(axis=0)),
        "slope": rate.value,
        "ci": [rate.low, rate.high],
        "theory": -1.0,
        "verdict": _verdict(rate, "1/m"),
        "layers": config.layers,
        "error_of_independent_noises": _list(errors["independent"].mean(axis=0)),
    }
    return dataset, summary


def _limits(experiment: Experiment, bar: Progress, token_error: Number) -> tuple[xr.Dataset, Summary]:
    config, layers, widths = experiment.job.config, experiment.levels, experiment.widths
    finest = 8 * max(layers)
    how: dict[str, Any] = {"replicas": config.replicas, "progress": bar}

    def error(depth: int, width: Number, seed: int) -> np.ndarray:
        refine = -(-finest // depth)
        return coupled(experiment.model(width, depth), experiment.start, refine=refine, seed=seed, **how).error

    grid = np.stack([np.stack([error(L, m, config.seed) for L in layers], axis=1) for m in widths], axis=2)
    coordinates = np.array(layers), np.array(widths)
    means = fit.resampled_means(grid, 200).reshape(-1, *grid.shape[1:])
    fits = [fit.grid_fit(*coordinates, mean) for mean in means]
    best, a, b = fits[0], fit.estimate(np.array([f.a for f in fits])), fit.estimate(np.array([f.b for f in fits]))
    finite = [int(m) for m in widths if math.isfinite(m)]
    tests = []
    for depth, width in ((layers[0], finite[-1]), (layers[-2], finite[0])):
        held = (3 * depth // 2, 3 * width // 2)
        measured = float(error(*held, seed=config.seed + 1).mean())
        tests.append({"layers": held[0], "width": held[1], "predicted": float(best(*held)), "measured": measured})
    deep, wide = best.enough(token_error)
    missed = max(abs(test["predicted"] / test["measured"] - 1) for test in tests)
    dataset = xr.Dataset(
        {"error": (("replica", "layers", "width"), grid, {"long_name": "max (1/N) Σ |X - X̄|²"})},
        {"layers": coordinates[0], "width": coordinates[1]},
    )
    for name, value in _bands(grid, means).items():
        dataset[name] = (("layers", "width"), value)
    dataset["fit"] = (("layers", "width"), best(coordinates[0][:, None], coordinates[1]))
    explained = best.r_squared > 0.98 and missed <= HELD_OUT
    verdict = "a/L + b/m explains the errors: the limits commute"
    if not explained:
        verdict = f"a/L + b/m is not enough: R² = {best.r_squared:.3f}, held out within {missed:.0%}"
    outside = deep > max(layers) or deep < min(layers) or wide > max(finite) or wide < min(finite)
    summary = {
        "levels": {"layers": list(layers), "width": ["inf" if math.isinf(m) else int(m) for m in widths]},
        "error": [_list(row) for row in means[0]],
        "slope": {"a": best.a, "b": best.b},
        "ci": {"a": [a.low, a.high], "b": [b.low, b.high]},
        "theory": "a/L + b/m",
        "verdict": verdict,
        "r_squared": best.r_squared,
        "held_out": tests,
        "token_error": token_error,
        "enough": {"layers": deep, "width": wide, "extrapolated": outside},
    }
    return dataset, summary


def _law(experiment: Experiment, bar: Progress) -> tuple[xr.Dataset, Summary]:
    config, levels = experiment.job.config, np.array(experiment.levels)
    how: dict[str, Any] = {"beta": config.beta, "replicas": config.replicas, "seed": config.seed, "progress": bar}
    attention = PairAttention(config.attention, config.attention_scale, config.beta)
    law = PairLaw(config.dim, (field_noise(experiment.law.kernel()),), attention)
    rho0 = config.overlap if config.start == "equiangular" else None
    exact = float(pair_expectation(law, "energy", [config.horizon], rho0, beta=config.beta).mean[0])
    rates, limits, differences, energies, errors = [], [], [], [], []
    for m in experiment.widths:
        pairs = [paired_energies(experiment.model(m, L), experiment.start, **how) for L in experiment.levels]
        paired = np.stack([pair.coarse - pair.fine for pair in pairs], axis=1)
        rates.append(fit.slope(levels, paired))
        differences.append(paired)
        energies.append([pair.coarse.mean() for pair in pairs])
        errors.append([pair.coarse.std(ddof=1) / math.sqrt(config.replicas) for pair in pairs])
        # Richardson: what an error of exactly 1/L leaves at the two finest levels.
        limits.append(fit.estimate(fit.resampled_means((2 * pairs[-1].fine - pairs[-1].coarse)[:, None])[:, 0]))
    common = all(abs(limit.value - exact) <= 5 * limit.se for limit in limits)
    verdicts = [_verdict(rate, "1/L", WINDOW_IN_LAW, WIDEST_IN_LAW) for rate in rates]
    # The worst width speaks: one that does not converge, else one that is not sharp enough, else any.
    words = next(text for start in ("does", "consistent", "") for text in verdicts if text.startswith(start))
    verdict = f"every width has the two-token value as its limit; {words}"
    if not common:
        verdict = "some width has another limit than the two-token value: more layers, or a fault"
    widths = np.array(experiment.widths)
    dataset = xr.Dataset(
        {
            "energy": (("width", "layers"), np.array(energies), {"long_name": "mean pair energy at T"}),
            "energy_se": (("width", "layers"), np.array(errors)),
            "two_token_value": ((), exact),
        },
        {"layers": levels, "width": widths},
    )
    bands = [_bands(paired, fit.resampled_means(paired)) for paired in differences]
    for name in ("mean", "low", "high"):
        dataset[name] = (("width", "layers"), np.stack([band[name] for band in bands]))
    names = ["inf" if math.isinf(m) else int(m) for m in widths]
    summary = {
        "levels": levels.tolist(),
        "widths": names,
        "error": [_list(np.array(row) - exact) for row in energies],
        "slope": [rate.value for rate in rates],
        "ci": [[rate.low, rate.high] for rate in rates],
        "theory": -1.0,
        "verdict": verdict,
        "two_token_value": exact,
        "limit": [limit.value for limit in limits],
        "limit_se": [limit.se for limit in limits],
    }
    return dataset, summary


def _verdict(
    rate: fit.Estimate, law: str, window: tuple[float, float] = WINDOW, widest: float = WIDEST_INTERVAL
) -> str:
    """In words; "converges" needs the slope inside the window and an interval that is narrow."""
    if not (rate.high >= window[0] and rate.low <= window[1]):
        return f"does not converge like {law}: slope {rate.value:.2f}"
    if rate.high - rate.low > widest or not window[0] <= rate.value <= window[1]:
        return f"consistent with {law}, but the interval is too wide to say so: more replicas"
    return f"converges like {law}"


def _by_level(axis: str, levels: np.ndarray, errors: dict[str, np.ndarray]) -> xr.Dataset:
    """Errors by kind, replica and level, with the means over replicas and their 95 % bands."""
    stacked = np.stack(list(errors.values()))
    dataset = xr.Dataset(
        {"error": (("kind", "replica", axis), stacked, {"long_name": "max (1/N) Σ |X - X̄|²"})},
        {"kind": list(errors), axis: levels},
    )
    bands = [_bands(error, fit.resampled_means(error)) for error in errors.values()]
    for name in ("mean", "low", "high"):
        dataset[name] = (("kind", axis), np.stack([band[name] for band in bands]))
    return dataset


def _bands(errors: np.ndarray, means: np.ndarray) -> dict[str, np.ndarray]:
    """The mean over replicas and its 95 % interval, each of the shape of one replica's errors."""
    low, high = np.quantile(means[1:], [0.025, 0.975], axis=0)
    shape = errors.shape[1:]
    return {"mean": means[0].reshape(shape), "low": low.reshape(shape), "high": high.reshape(shape)}


def _list(values: np.ndarray) -> list[float]:
    return [float(value) for value in values]
