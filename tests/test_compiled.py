"""What is compiled is compiled once for each shape: a second run with other numbers traces and compiles nothing.

Another law or another depth is another number; another length of a series, of κ or of an attention, another program.
"""

from __future__ import annotations

from contextlib import contextmanager

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

import synchronoise as sn
from checks import uniform_tokens
from synchronoise.banks import HarmonicField, frozen_field
from synchronoise.convergence.coupling import coupled
from synchronoise.convergence.depth import depth_errors, depth_paths
from synchronoise.convergence.law import paired_energies
from synchronoise.exponents import growth
from synchronoise.meanfield.eulerian import CircleGrid
from synchronoise.meanfield.solve import solve
from synchronoise.spectral import moments, series


@contextmanager
def counted():
    """The names of JAX's traces and compilations within the block."""
    found: list[str] = []

    def listen(event, duration, **_):
        if "jaxpr_trace" in event or "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def model(number, noise, *, attention=True, layers=4):
    return sn.Transformer(sn.SoftmaxAttention(number) if attention else None, noise, layers=layers, horizon=number)


def law(number, dim=3):
    return sn.MLP("tanh", dim, number, number)


def harmonics(number):
    x = jnp.asarray(uniform_tokens(5, 3, seed=round(10 * number)))
    return series(x, moments(x, number * x, 4), 4)


FUNCTIONS = {
    "simulate": lambda b, seed: sn.simulate(
        model(b, sn.DrawnMLP(law(b), 4)), sn.Uniform(5, 3), replicas=20, seed=seed, observers=[sn.Energy(b)]
    ),
    "solve": lambda b, seed: solve(
        sn.Transformer(sn.HarmonicAttention(2.0, b, dim=2), HarmonicField(law(b, 2), 8), layers=2, horizon=0.01 * b),
        CircleGrid(64), seed=seed,
    ),
    "growth": lambda b, seed: growth(model(b, sn.DrawnMLP(law(b), 4)), sn.Uniform(2, 3), replicas=2, seed=seed),
    "the Gaussian field": lambda b, seed: sn.simulate(
        model(b, sn.GaussianField(law(b / 10)), layers=70 + round(10 * b)), sn.Uniform(5, 3), replicas=3, seed=seed
    ),
    "coupled": lambda b, seed: coupled(
        model(b, sn.DrawnMLP(law(b / 10, 2), 8)), sn.Uniform(2, 2), refine=2, replicas=4, seed=seed
    ),
    "paired_energies": lambda b, seed: paired_energies(
        model(b, sn.DrawnMLP(law(b), 2)), sn.Uniform(2, 3), beta=b, replicas=4, seed=seed
    ),
    "depth_errors": lambda b, seed: depth_errors(
        model(b, frozen_field(law(0.3, 2), seed)), sn.Uniform(2, 2), (2, 4), replicas=2, seed=seed
    ),
    "depth_paths": lambda b, seed: depth_paths(
        model(b, frozen_field(law(0.3, 2), seed)), sn.Uniform(2, 2), (2, 4), seed=seed
    ),
    "moments and series": lambda b, seed: harmonics(b),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "depth_errors")) for name in FUNCTIONS]
)
def test_a_second_run_compiles_nothing(name, x64):
    run = FUNCTIONS[name]
    with counted() as first:
        run(0.7, 0)
    with counted() as again:
        run(0.9, 1)
    assert first
    assert again == []
