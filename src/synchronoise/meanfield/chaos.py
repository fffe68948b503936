"""`synchronoise converge tokens`: N tokens against the SPDE under one noise, and propagation of chaos (THEORY §4).

Tokens iid uniform follow the flow of one noise; so do weighted tokens on a quadrature of μ_0, the reference.  E W_2²
falls with N like the distance of an iid sample: N^max(-1, -2/(d-1)), times log N for d = 3, at the start and,
carried by the flow, at T; Proposition 1.2 bounds it by r_d(N).  Two independent systems under one noise confirm
it without the reference; two noises do not come near one another.

Given the noise two tokens become independent.  With m and s² the mean and the variance of f(X_i) over one system,

    Cov(f(X_1), f(X_2) | noise) = E[ (m - m')²/2 - (s² + s'²)/(2N) | noise ],    m', s'² of a second system,

while without the noise given Cov(f(X_1), f(X_2)) = E[m² - s²/N] - (E m)² tends to the variance of <μ_t, f>.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..clusters import check_result
from ..config import RunConfig
from ..convergence import fit
from ..convergence.experiments import QUICK_WORDS, prepare_experiment, provenance
from ..errors import UserError
from ..model import Transformer
from ..plots_flow import save_figure
from ..plots_meanfield import chaos_figure
from ..progress import Progress
from ..routes import attention_of
from ..store import save
from .initial import quadrature
from .lagrangian import check_scope, lagrangian
from .run import field_of
from .wasserstein import wasserstein2

NOISES: dict[object, int] = {3: 72}  # in place of 24: the logarithm leaves less room between a slope and its rate
LEVELS = {2: (16, 32, 64, 128, 256, 512)}
LEVELS_ABOVE = (64, 128, 256, 512)  # higher up the sphere looks curved to fewer tokens
QUICK_LEVELS = (16, 32, 64)
REFERENCE = {2: 4096}  # points of the quadrature
REFERENCE_ABOVE = 2048
CHAOS_LEVELS = (16, 32, 64, 128)
CHAOS_NOISES = 1024
TIMES = 2  # of the flow at which distances are taken, after the start
WITHIN = 0.1  # how far a slope may be from the rate
KINDS = ("start", "end", "largest", "two_start", "two_end", "independent")


def rate(dim: int) -> tuple[float, bool]:
    """The exponent of E W_2² of an iid sample on S^{d-1}, and whether a log N comes with it.

    >>> rate(2), rate(3), rate(8)
    ((-1.0, False), (-1.0, True), (-0.2857142857142857, False))
    """
    return max(-1.0, -2 / (dim - 1)), dim == 3


def bound_exponent(dim: int) -> float:
    """The exponent of Proposition 1.2's bound r_d(N)  (of E sup W_2², logarithm aside).

    >>> bound_exponent(2), bound_exponent(8)
    (-0.5, -0.25)
    """
    return -0.5 if dim <= 4 else -2 / dim


def converge_tokens(
    given: Mapping[str, object], out: str | Path, *, levels: Sequence[float] | None = None, quick: bool = False,
    overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """E W_2² of N-token systems to the SPDE and of two such systems, with slopes; covariances given the noise or not.

    ``given`` are names of `RunConfig`; ``levels`` the numbers N.  Writes ``out`` and a figure beside it.  Raises
    `UserError` for what has no SPDE, for a start that is not uniform, and without POT where W_2 needs it.
    """
    noises = 8 if quick else NOISES.get(given.get("dim"))
    settings = {} if noises is None else {"replicas": noises}
    config = prepare_experiment("tokens", given, width="inf", **settings).config
    if levels is None:
        levels = QUICK_LEVELS if quick else LEVELS.get(config.dim, LEVELS_ABOVE)
    if len(levels) < 2 or list(levels) != sorted({int(n) for n in levels if n >= 2}):
        raise UserError("levels", got=list(levels), expected="two or more increasing whole numbers >= 2")
    if config.replicas < 8:
        raise UserError("replicas", got=config.replicas, expected="8 or more, for an interval", mend="use more")
    counts = [int(n) for n in levels]
    model = model_of(config, max(counts))
    check_scope(model, field=True)
    out = check_result(out, "chaos", overwrite=overwrite)
    with Progress("tokens", len(counts) + len(CHAOS_LEVELS), "level", shown=progress) as bar:
        distances = measure_distances(config, counts, bar)
        covariances = measure_chaos(config, CHAOS_NOISES // (8 if quick else 1), bar)
    dataset, summary = _summary(config, counts, distances, covariances)
    words = f"{config.activation} (σ_U = {config.sigma_u:g}), {config.attention} attention (β = {config.beta:g})\n" + (
        f"d = {config.dim}, L = {config.layers}, T = {config.horizon:g}, {config.replicas} noises, seed {config.seed}"
    )
    if quick:
        summary["quick"] = QUICK_WORDS
    made_by = provenance("tokens", config, counts, summary=summary)
    save(dataset, out, made_by, kind="chaos")
    return {**summary, "file": str(out), "picture": save_figure(chaos_figure(dataset, words), out)}


def model_of(config: RunConfig, tokens: int) -> Transformer:
    """The model of a configuration whose noise is a field, for this many tokens."""
    attention = attention_of(config.model_copy(update={"tokens": tokens}))
    return Transformer(attention, field_of(config), layers=config.layers, horizon=config.horizon)


def measure_distances(config: RunConfig, counts: Sequence[int], bar: Progress) -> dict[str, np.ndarray]:
    """W_2² by kind (see `KINDS`), each of shape (replica, level)."""
    points = REFERENCE.get(config.dim, REFERENCE_ABOVE)
    x, weights = quadrature(None, config.dim, points)
    reference = _follow(config, np.broadcast_to(x, (config.replicas, *x.shape)), config.seed)
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for count in counts:
        starts = [_iid(config, count, config.replicas, system) for system in range(2)]
        one, two = (_follow(config, start, config.seed) for start in starts)
        other = _follow(config, starts[0], config.seed + 1)
        # Weights although equal: the sets differ in size.
        to_reference = np.array([
            [wasserstein2(*pair, None, weights) for pair in zip(*times, strict=True)]
            for times in zip(one, reference, strict=True)
        ])  # fmt: skip
        found["start"].append(to_reference[:, 0].tolist())
        found["end"].append(to_reference[:, -1].tolist())
        found["largest"].append(to_reference.max(axis=1).tolist())
        for kind, left, right, time in (
            ("two_start", one, two, 0),
            ("two_end", one, two, -1),
            ("independent", one, other, -1),
        ):
            found[kind].append([wasserstein2(a[time], b[time]) for a, b in zip(left, right, strict=True)])
        bar.advance(1)
    return {kind: np.array(values).T for kind, values in found.items()}


def measure_chaos(config: RunConfig, noises: int, bar: Progress) -> dict[str, np.ndarray]:
    """Cov(f(X_1), f(X_2)) at T, f(x) = x summed over coordinates, by noise: "given" it, and parts of "any"."""
    given, means, products = [], [], []
    for count in CHAOS_LEVELS:
        ends = [_follow(config, _iid(config, count, noises, system), config.seed)[:, -1] for system in (2, 3)]
        mean = [end.mean(axis=1) for end in ends]
        variance = [end.var(axis=1, ddof=1).sum(axis=1) for end in ends]
        given.append(np.sum((mean[0] - mean[1]) ** 2, axis=1) / 2 - (variance[0] + variance[1]) / (2 * count))
        means.append(np.linalg.norm(np.mean(mean[0], axis=0)))
        products.append(np.sum(mean[0] ** 2, axis=1) - variance[0] / count)
        bar.advance(1)
    return {"given": np.array(given).T, "any": np.array(products).T - np.array(means) ** 2}


def _iid(config: RunConfig, count: int, replicas: int, system: int) -> np.ndarray:
    """Tokens iid uniform, (replica, token, dim), others for each level and system."""
    x = np.random.default_rng([config.seed, count, system]).standard_normal((replicas, count, config.dim))
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _follow(config: RunConfig, start: np.ndarray, seed: int) -> np.ndarray:
    """Tokens at the start and at `TIMES` times to T, under the noises of a seed: (replica, time, token, dim)."""
    replicas, tokens, _ = start.shape
    every = config.layers // TIMES if config.layers % TIMES == 0 else config.layers
    run = lagrangian(
        model_of(config, tokens), np.array(start), replicas=replicas, seed=seed, observers=(), every=every,
        save_tokens=True, dtype=config.dtype,
    )  # fmt: skip
    return run["tokens"].values


def _summary(
    config: RunConfig, counts: list[int], distances: Mapping[str, np.ndarray], covariances: Mapping[str, np.ndarray]
) -> tuple[xr.Dataset, dict[str, Any]]:
    tokens = np.array(counts)
    exponent, logarithm = rate(config.dim)
    scale = np.log(tokens) if logarithm else np.ones(len(tokens))
    slopes = {kind: fit.slope(tokens, values / scale) for kind, values in distances.items()}
    slopes["independent"] = fit.slope(tokens, distances["independent"])  # two measures, no sample of one
    means = {kind: fit.resampled_means(values) for kind, values in distances.items()}
    chaos_tokens = np.array(CHAOS_LEVELS)
    given, anyway = (np.abs(covariances[kind].mean(axis=0)) for kind in ("given", "any"))
    errors = {kind: values.std(axis=0, ddof=1) / math.sqrt(len(values)) for kind, values in covariances.items()}
    seen = fit.slope(chaos_tokens, covariances["given"] * np.sign(covariances["given"].mean(axis=0)))
    kept = fit.slope(chaos_tokens, covariances["any"])
    judged = [slopes[kind] for kind in ("start", "end", "two_start", "two_end")]
    off = max(abs(slope.value - exponent) for slope in judged)
    surely_off = any(slope.low > exponent + WITHIN or slope.high < exponent - WITHIN for slope in judged)
    apart = float(distances["independent"].mean(axis=0)[-1] / distances["two_end"].mean(axis=0)[-1])
    words = f"N^{exponent:.3g}" + (" log N" if logarithm else "")
    verdict = f"converges like {words}: propagation of chaos"
    if surely_off:
        verdict = f"does not converge like {words}: a slope is {off:.2f} away"
    elif off > WITHIN:
        verdict = f"consistent with {words}, but the intervals are too wide to say so: more replicas"
    elif max(slope.value for slope in judged) > bound_exponent(config.dim):
        verdict = "slower than the bound of Proposition 1.2"
    summary: dict[str, Any] = {
        "levels": counts,
        "error": distances["end"].mean(axis=0).tolist(),
        "error_at_start": distances["start"].mean(axis=0).tolist(),
        "error_of_two_systems": distances["two_end"].mean(axis=0).tolist(),
        "error_of_independent_noises": distances["independent"].mean(axis=0).tolist(),
        "slope": slopes["end"].value,
        "ci": [slopes["end"].low, slopes["end"].high],
        "theory": exponent,
        "logarithm": logarithm,
        "bound": bound_exponent(config.dim),
        "verdict": verdict,
        "slopes": {kind: [slope.value, slope.low, slope.high] for kind, slope in slopes.items()},
        "amplification": float(distances["end"].mean() / distances["start"].mean()),
        "independent_over_common": apart,
        "chaos_levels": list(CHAOS_LEVELS),
        "covariance_given_noise": given.tolist(),
        "covariance_given_noise_se": errors["given"].tolist(),
        "covariance_unconditional": anyway.tolist(),
        "covariance_unconditional_se": errors["any"].tolist(),
        "chaos_slope": seen.value if np.isfinite(seen.value) else None,
        "chaos_slope_ci": [seen.low, seen.high] if np.isfinite([seen.low, seen.high]).all() else None,
        "unconditional_slope": kept.value if np.isfinite(kept.value) else None,
        "distance": "W_2^2, great-circle",
    }  # fmt: skip
    dataset = xr.Dataset(
        {
            "distance": (("kind", "replica", "tokens"), np.stack([distances[kind] for kind in KINDS])),
            "mean": (("kind", "tokens"), np.stack([means[kind][0] for kind in KINDS])),
            "low": (("kind", "tokens"), np.stack([np.quantile(means[kind][1:], 0.025, axis=0) for kind in KINDS])),
            "high": (("kind", "tokens"), np.stack([np.quantile(means[kind][1:], 0.975, axis=0) for kind in KINDS])),
            "covariance": (("which", "chaos_tokens"), np.stack([given, anyway])),
            "covariance_se": (("which", "chaos_tokens"), np.stack([errors["given"], errors["any"]])),
        },
        {"kind": list(KINDS), "tokens": tokens, "which": ["given", "any"], "chaos_tokens": chaos_tokens},
        {"exponent": exponent, "logarithm": int(logarithm)},
    )
    return dataset, summary
