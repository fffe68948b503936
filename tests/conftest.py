"""Fixtures of the whole suite."""

import jax
import pytest

from synchronoise.progress import Progress


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    """However slow the machine is, what a test reads on stderr is not progress."""
    monkeypatch.setattr(Progress, "seconds_between_lines", float("inf"))


@pytest.fixture
def x64():
    """JAX's 64-bit mode, for one test."""
    with jax.enable_x64(True):
        yield
