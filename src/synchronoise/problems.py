"""Reference problems: small experiments that know their exact answers, for tests, examples and checks of a machine.

>>> from synchronoise import simulate
>>> problem = PROBLEMS["token decay"]
>>> run = simulate(problem.model, problem.start, observers=problem.observers, every=problem.model.layers, replicas=64)
>>> problem.read(run).shape, round(problem.exact, 6)
((64,), 0.699811)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np
import xarray as xr

from synchronoise.model import Transformer
from synchronoise.noise import MLP, DrawnMLP
from synchronoise.observables import Energy, LogDistance, Observable, Positions
from synchronoise.sphere import Clusters, Start, Uniform
from synchronoise.theory import lambda_1, pair_expectation


@dataclass(frozen=True)
class Problem:
    """A model, where it starts and what is looked at; `read` turns its result into one number for each replica.

    Their mean is `exact` in the limit L -> ∞: `bias` is about what remains at the model's number of layers.
    `reference` is the section of THEORY.
    """

    model: Transformer
    start: Start | np.ndarray
    observers: tuple[Observable, ...]
    read: Callable[[xr.Dataset], np.ndarray]
    exact: float
    bias: float
    reference: str


def token_decay() -> Problem:
    """E<X_t, X_0> = e^{-κ(1)(d-1)t/2} for one token: spherical Brownian motion (THEORY §5)."""
    law, time = MLP("tanh", 5, 0.2, 0.1), 1.0
    return Problem(
        model=Transformer(None, DrawnMLP(law, 4), layers=50, horizon=time),
        start=np.eye(1, 5),
        observers=(Positions(),),
        read=lambda run: run["tokens"].values[:, -1, 0, 0],
        exact=exp(-law.kernel().kappa_1 * (law.dim - 1) * time / 2),
        bias=0.002,
        reference="THEORY §5",
    )


def pair_energy() -> Problem:
    """E ½(e^β - e^{βρ_t}) of two uniform tokens, ReLU, d = 5, σ = 0.1, by the two-token equation (THEORY §5)."""
    law, time = MLP("relu", 5, 0.1, 0.1), 2.0
    return Problem(
        model=Transformer(None, DrawnMLP(law, 4), layers=50, horizon=time),
        start=Uniform(2, 5),
        observers=(Energy(1.0),),
        read=lambda run: 2 * run["energy"].values[:, -1],  # (1 - 1/N) = ½ times the pair's
        exact=float(pair_expectation(law.kernel(), "energy", [time]).mean[0]),
        bias=0.004,
        reference="THEORY §5",
    )


def merging_slope() -> Problem:
    """(log ε_t - log ε_0)/t -> 2λ_1 for two close tokens at distance ε = |x-y|²/2; sigmoid, d = 64 (THEORY §6)."""
    law, time = MLP("sigmoid", 64), 0.25
    return Problem(
        model=Transformer(None, DrawnMLP(law, 4), layers=200, horizon=time),
        start=Clusters(2, 64, clusters=1, spread=1e-4),
        observers=(LogDistance(),),
        read=lambda run: np.diff(run["log_distance"].values[:, [0, -1]])[:, 0] / time,
        exact=2 * lambda_1(law.kernel()),
        bias=0.2,
        reference="THEORY §6",
    )


PROBLEMS = {"token decay": token_decay(), "pair energy": pair_energy(), "merging slope": merging_slope()}
