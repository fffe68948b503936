"""Fixtures of the whole suite."""

from pathlib import Path

import jax
import pytest

from synchronoise.progress import Progress


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    """However slow the machine is, what a test reads on stderr is not progress."""
    monkeypatch.setattr(Progress, "seconds_between_lines", float("inf"))


@pytest.fixture(autouse=True)
def bits_as_before():
    """A command owns its process and may switch JAX to 64 bits; here it shares the process with other tests."""
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs():
    """A process has 65 530 memory maps, and the compiled programs of the whole suite would use them up."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture
def x64():
    """JAX's 64-bit mode, for one test."""
    with jax.enable_x64(True):
        yield
