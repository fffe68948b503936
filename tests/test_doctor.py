"""The installed JAX computes right, and the check would notice the compilers that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synchronoise.doctor import CANARY_ROWS, agrees, canary, examine, is_right, measure
from synchronoise.model import Transformer
from synchronoise.problems import PROBLEMS


@pytest.mark.parametrize("dtype", sorted(CANARY_ROWS))
def test_the_installed_jax_passes_the_canary(dtype):
    assert is_right(dtype, canary(dtype))


@pytest.mark.parametrize(
    ("jaxlib", "dtype", "error"),
    [("0.9.1", "float32", 3.9e-3), ("0.10.2", "float32", 7.8e-3), ("0.10.2", "float64", 7.8e-3)],
)
def test_the_errors_of_broken_compilers_are_not_rounding(jaxlib, dtype, error):
    """The canary's values under releases that the dependencies exclude, measured."""
    assert not is_right(dtype, error)


@pytest.mark.parametrize("name", ["token decay", "pair energy"])
def test_a_wrong_law_would_be_noticed(name):
    """The reference problems pass, and the same with noise of twice the variance (twice the time) does not."""
    problem = PROBLEMS[name]
    measured = measure(problem)
    assert agrees(measured)
    model = problem.model
    twin = Transformer(None, model.noise, layers=model.layers, horizon=2 * model.horizon)
    assert not agrees(measure(replace(problem, model=twin)))


def test_examine_names_versions_and_devices():
    findings = examine()
    assert findings["healthy"]
    assert findings["devices"]
    assert {"jax", "jaxlib", "numpy", "python", "machine", "x64", "canary", "token decay"} <= set(findings)
