"""The numbers of the figures, and whether they show what THEORY §8 says they should."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot
from typing import Any

import numpy as np
import xarray as xr

from synchronoise.paper.experiments import WITHOUT_MLP, Run, exponents
from synchronoise.pictures import COARSE

ENOUGH_SE = 5.0
LEFT = 0.1  # of the energy: with more left at the end the tokens are still apart
NEAR = 0.9  # an overlap beyond ±0.9 counts as merged, or antipodal


def figure1(runs: Mapping[str, Run], results: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """How the pairs of figure 1 end: the shares that have merged and that are antipodal, and whether as expected.

    ReLU has one cluster: the shares are 1 and 0.  Tanh is odd: two clusters, and no pair in between.
    """
    numbers: dict[str, Any] = {}
    for name, run in runs.items():
        tokens = results[name]["tokens"].values[0, -1]
        overlaps = (tokens @ tokens.T)[np.triu_indices(run.tokens, 1)]
        merged, antipodal = float(np.mean(overlaps > NEAR)), float(np.mean(overlaps < -NEAR))
        numbers[run.activation] = {
            **exponents(run),
            "pairs_merged": merged,
            "pairs_antipodal": antipodal,
            "clusters": 1 if antipodal == 0 else 2,
            "as_expected": merged + antipodal > 0.9 and (antipodal > 0) == (run.activation == "tanh"),
        }
    return numbers


def grid(runs: Mapping[str, Run], results: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """The numbers of every panel of a grid, by its name."""
    return {"panels": {name: _panel(run, results[name]) for name, run in runs.items()}}


def _panel(run: Run, result: xr.Dataset) -> dict[str, Any]:
    mean, error = result["energy_mean"].values, result["energy_se"].values
    numbers: dict[str, Any] = {
        "dim": run.dim,
        "sigma": run.sigma,
        "attention_scale": run.attention_scale,
        **exponents(run),
        "energy_start": float(mean[0]),
        "energy_end": float(mean[-1]),
        "energy_end_se": float(error[-1]),
        "energy_end_single_run": float(result["energy"][0, -1]),
        "median_overlap_end_single_run": float(result["overlap_quantiles"].sel(quantile=0.5)[0, -1]),
        "note": result.attrs["note"],
    }
    if "floor" in result.attrs:
        numbers["floor"] = result.attrs["floor"]
    if "energy_prediction" in result:
        numbers["prediction"] = _agreement(run, result)
    if "energy_bound" in result:
        bound = result["energy_bound"].values
        numbers["bound_end"] = float(bound[-1])
        numbers["bound_holds"] = bool(np.all(mean <= bound + ENOUGH_SE * error))
    return numbers


def _agreement(run: Run, result: xr.Dataset) -> dict[str, Any]:
    """The mean energy against the two-token equation, until it has fallen to a thousandth of its start.

    Later it is carried by runs rarer than one in 16.  They agree when no layer deviates by more than 5 SE; the
    equation is that of L = m = ∞, and a layer of size h κ(1)(d-1) not far below 1 explains a deviation.
    """
    mean, error = result["energy_mean"].values, result["energy_se"].values
    predicted = result["energy_prediction"].values
    last = int(np.flatnonzero(predicted >= 1e-3 * predicted[0])[-1])
    deviation = (mean[1 : last + 1] - predicted[1 : last + 1]) / error[1 : last + 1]
    worst = 1 + int(np.abs(deviation).argmax())
    step = run.noise_per_layer
    agrees = bool(abs(deviation[worst - 1]) <= ENOUGH_SE)
    numbers = {
        "agrees": agrees,
        "compared_to_layer": int(result["layer"][last]),
        "predicted": float(predicted[last]),
        "measured": float(mean[last]),
        "measured_se": float(error[last]),
        "deviation_se": float(deviation[-1]),
        "largest_deviation_se": float(deviation[worst - 1]),
        "largest_deviation_layer": int(result["layer"][worst]),
        "noise_per_layer": step,
    }
    if not agrees:
        coarse = f"finite L: h κ(1)(d-1) = {step:.2g} in one layer, not small"
        numbers["reason"] = coarse if step > COARSE else "unexplained"
    return numbers


def expectations(grids: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the grids show what THEORY §8 says: {statement: {"as_expected", "cases"}}; a case is (where, passed).

    A case compares two mean energies at the end, and is missed when they are the wrong way round by more than 3 SE.
    Grids that are not there are left out.
    """
    panels = {
        (name, panel["dim"], panel["sigma"], panel["attention_scale"]): panel
        for name, grid_ in grids.items()
        for panel in grid_["panels"].values()
    }

    def less(one: tuple, other: tuple) -> bool:
        low, high = panels[one], panels[other]
        return low["energy_end"] < high["energy_end"] + 3 * hypot(low["energy_end_se"], high["energy_end_se"])

    names = [name for name in grids if name != WITHOUT_MLP]
    dims = sorted({dim for _, dim, _, _ in panels})
    at_the_edge = [name for name in names if name != "sigmoid"]
    found: dict[str, list[tuple[str, bool]]] = {
        "bias accelerates collapse (no attention)": [
            (f"{name} d={dim}", less((name, dim, 0.1, 0.0), (name, dim, 0.0, 0.0))) for name in names for dim in dims
        ],
        "sigmoid collapses faster than the others without bias and attention": [
            (f"{name} d={dim}", less(("sigmoid", dim, 0.0, 0.0), (name, dim, 0.0, 0.0)))
            for name in at_the_edge
            for dim in dims
            if "sigmoid" in names
        ],
        "without bias larger d slows synchronisation (no attention)": [
            (f"{name} d={low} to {high}", less((name, low, 0.0, 0.0), (name, high, 0.0, 0.0)))
            for name in at_the_edge
            for low, high in _ends_of(dims)
        ],
        "with bias larger d speeds synchronisation (no attention)": [
            (f"{name} d={low} to {high}", less((name, high, 0.1, 0.0), (name, low, 0.1, 0.0)))
            for name in names
            for low, high in _ends_of(dims)
        ],
        "attention that repels keeps the tokens apart where λ_1 + |a| > 0": [
            (where, left > LEFT) for where, margin, left in _repelled(grids) if margin > 0
        ],
        "noise wins over attention that repels where λ_1 + |a| < 0": [
            (where, left < LEFT) for where, margin, left in _repelled(grids) if margin < 0
        ],
        "sigmoid at d=5: attention that repels keeps more than half of the energy": [
            (where, left > 0.5) for where, _, left in _repelled(grids) if where.startswith("sigmoid_d5_")
        ],
    }
    fine, coarse = [], []
    for name, panel in ((where, panel) for grid_ in grids.values() for where, panel in grid_["panels"].items()):
        if "prediction" in panel:
            prediction = panel["prediction"]
            (coarse if prediction["noise_per_layer"] > COARSE else fine).append((name, prediction["agrees"]))
    found["no attention: the mean energy is within 5 SE of the two-token equation where layers are small"] = fine
    found["no attention: it is not where one layer is a large step (finite L)"] = [
        (n, not agrees) for n, agrees in coarse
    ]
    return {statement: {"as_expected": all(passed for _, passed in cases), "cases": dict(cases)}
            for statement, cases in found.items() if cases}  # fmt: skip


def _repelled(grids: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """(where, λ_1 + |a|, share of the energy left) of every panel with repulsive attention and noise."""
    return [
        (where, panel["lambda_1"] - panel["attention_scale"], panel["energy_end"] / panel["energy_start"])
        for name, grid_ in grids.items()
        for where, panel in grid_["panels"].items()
        if panel["attention_scale"] < 0 and name != WITHOUT_MLP
    ]


def _ends_of(dims: list[int]) -> list[tuple[int, int]]:
    return [(dims[0], dims[-1])] if len(dims) > 1 else []


def verdict(checks: Mapping[str, Any]) -> str:
    """How many of the expectations are met, and which are not."""
    missed = [statement for statement, check in checks.items() if not check["as_expected"]]
    return f"{len(checks) - len(missed)} of {len(checks)} as expected" + "".join(f"; not: {m}" for m in missed)
