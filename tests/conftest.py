"""Fixtures of the whole suite."""

import jax
import pytest


@pytest.fixture
def x64():
    """JAX's 64-bit mode, for one test."""
    with jax.enable_x64(True):
        yield
