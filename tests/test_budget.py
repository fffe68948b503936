"""Costs before a run: the memory it counts is what the run takes, and what does not fit is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from synchronoise import (
    MLP,
    DrawnMLP,
    Energy,
    GaussianField,
    HarmonicAttention,
    SoftmaxAttention,
    Transformer,
    budget,
    runs,
)
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


LAW = MLP("relu", 3)


@pytest.mark.parametrize(
    ("model", "power"),
    [
        (Transformer(None, DrawnMLP(LAW, 4), layers=1), 1),
        (Transformer(HarmonicAttention(1.0, 1.0, dim=3), None, layers=1), 1),
        (Transformer(SoftmaxAttention(), DrawnMLP(LAW, 4), layers=1), 2),
        (Transformer(None, GaussianField(LAW), layers=1), 2),
    ],
    ids=["features", "harmonics", "dense attention", "factor"],
)
def test_the_time_of_very_many_tokens_is_extrapolated(model, power, monkeypatch):
    """Never run at all of them: one layer may take minutes.  Observers look at the first tokens only."""
    asked = []

    def seconds(model, tokens, looped, what):
        asked.append(len(tokens))
        return 3.0

    monkeypatch.setattr(budget, "_seconds_of_batch", seconds)
    many = np.broadcast_to(np.eye(3)[0], (4 * budget.MEASURED, 3))
    assert budget.seconds_per_layer(model, many, 1, (Energy(),)) == (3.0 * 4**power, 3.0)
    assert max(asked) == budget.MEASURED
    assert budget.seconds_per_layer(model, many[:100], 1) == (3.0, 0.0)


def test_a_million_tokens_fit_where_nothing_holds_their_pairs():
    """Without a hidden layer too; a noise of its own for every token does hold pairs."""
    many = {"tokens": 1_000_000, "dim": 3, "replicas": 1, "layers": 2}
    for linear in (
        {"noise": "none"},
        {"noise": "vector:0.3"},
        {"width": "inf", "route": "harmonics"},
        {"width": "inf"},
    ):
        assert runs.estimate(runs.prepare({**many, **linear})).total < 4e9
    assert runs.estimate(runs.prepare({**many, "noise": "private:0.1"})).total > 1e12


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"tokens": 2000, "replicas": 2, "layers": 2, "width": 16, "dim": 8},
        {"tokens": 64, "replicas": 64, "layers": 200, "width": 16, "dim": 32, "save_tokens": True, "chunk": 100},
        {"tokens": 16, "replicas": 4, "layers": 2, "width": 200_000, "dim": 64},
        {"tokens": 2048, "replicas": 2, "layers": 2, "width": "inf", "dim": 512, "attention": "none"},
        {"tokens": 300_000, "replicas": 1, "layers": 2, "width": "inf", "dim": 64, "attention": "none"},
    ],
    ids=["many tokens", "tokens saved", "wide", "long tokens", "very many tokens"],
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
