"""The installed JAX computes right, and the check would notice the compilers that do not."""

from __future__ import annotations

import pytest

from synchronoise.doctor import CANARY_ROWS, canary, examine, is_right


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


def test_examine_names_versions_and_devices():
    findings = examine()
    assert findings["healthy"]
    assert findings["devices"]
    assert {"jax", "jaxlib", "numpy", "python", "machine", "x64", "canary"} <= set(findings)
