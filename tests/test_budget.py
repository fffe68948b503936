"""Costs before a run: the memory it counts is what the run takes, and what does not fit is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from synchronoise import Transformer, budget, runs
from synchronoise.budget import Memory, available_memory, check_memory
from synchronoise.errors import UserError


@pytest.mark.parametrize(
    ("part", "mend"),
    [("state", "--replicas or --tokens"), ("layer", "--width"), ("saved", "--save-tokens"), ("base", "free some")],
)
def test_a_run_that_cannot_fit_says_how_much_and_what_to_change(part, mend):
    need = Memory(1e6, 1e6, 1e6, 1e6)._replace(**{part: 64e9})
    with pytest.raises(UserError, match=r"about 64.0 GB of memory and 16.0 GB are available") as caught:
        check_memory(need, 16e9)
    assert mend in str(caught.value)
    check_memory(need, 65e9)


def test_more_of_anything_needs_more():
    small = {"tokens": 64, "dim": 8, "replicas": 8, "layers": 100, "width": 64}
    least = runs.estimate(runs.prepare(small)).total
    for name, value in {"replicas": 800, "layers": 10000, "save_tokens": True, "dtype": "float64"}.items():
        assert runs.estimate(runs.prepare({**small, name: value})).total > least


def test_the_machine_has_memory():
    assert 1e8 < available_memory() < 1e15


@pytest.mark.parametrize(("power", "expected"), [(1.5, 1.5), (0.3, 1.0), (3.0, 2.0)])
def test_the_time_of_very_many_tokens_is_extrapolated(power, expected, monkeypatch):
    """From a power law of the tokens; never run at all of them, whose layer may take minutes."""
    asked = []

    def seconds(model, tokens):
        asked.append(len(tokens))
        return len(tokens) ** power

    monkeypatch.setattr(budget, "_seconds_of_batch", seconds)
    model = Transformer(None, None, layers=1)
    many = 4 * budget.MEASURED
    found = budget.seconds_per_layer(model, np.broadcast_to(np.eye(2)[0], (many, 2)), 1)
    assert found == pytest.approx(budget.MEASURED**power * 4**expected)
    assert max(asked) == budget.MEASURED
    few = budget.seconds_per_layer(model, np.broadcast_to(np.eye(2)[0], (100, 2)), 1)
    assert few == pytest.approx(100**power)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"tokens": 2000, "replicas": 2, "layers": 2, "width": 16, "dim": 8},
        {"tokens": 64, "replicas": 64, "layers": 200, "width": 16, "dim": 32, "save_tokens": True, "chunk": 100},
        {"tokens": 16, "replicas": 4, "layers": 2, "width": 200_000, "dim": 64},
    ],
    ids=["many tokens", "tokens saved", "wide"],
)
def test_the_count_is_what_the_run_takes(tmp_path, settings):
    """Peak memory of a process of its own: not more than counted, and not less than a third of it."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom synchronoise import runs\n"
        f"runs.run(runs.prepare({settings!r}), sys.argv[1])\n"
        # Not `ru_maxrss`, which a new process takes over from the one that started it.
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run.nc")], capture_output=True, text=True, check=True
    )
    peak = 1024 * int(done.stdout)
    counted = runs.estimate(runs.prepare(settings)).total
    assert counted / 3 < peak < 1.1 * counted
