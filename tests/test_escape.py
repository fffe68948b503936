"""Noise shortens the life of metastable clusters (THEORY §7)."""

import itertools
import json
import re

import numpy as np
import pytest

from synchronoise import cli
from synchronoise.errors import UserError
from synchronoise.escape import DEFAULTS, escapes
from synchronoise.store import load

SMALL = {"layers": 240, "horizon": 12.0, "every": 4, "replicas": 128, "tokens": 16, "width": "8"}
SETTINGS = [
    {"attention": "softmax", "beta": 7.0},
    {"attention": "unnormalised", "beta": 5.0, "attention_scale": 0.05, "replicas": 256},
    {"attention": "softmax", "beta": 9.0, "activation": "tanh"},
]


@pytest.mark.stat
@pytest.mark.parametrize("setting", [SETTINGS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SETTINGS[1:])])
def test_stronger_noise_escapes_sooner(setting, tmp_path):
    """E min(τ, T) falls from no noise to strength 0.5, to 1 and to 2, each time beyond 5 standard errors."""
    result = escapes({**SMALL, **setting}, tmp_path / "escape.nc")
    assert 2 <= result["clusters"] <= 6
    times = [result[name] for name in ("no noise", "strength 0.5", "strength 1", "strength 2")]
    for slow, fast in itertools.pairwise(times):
        assert slow["mean"] - fast["mean"] > 5 * np.hypot(slow["se"], fast["se"])
    # of an odd field (tanh) some clusters stay, at antipodes: not all escape, however strong the noise
    assert times[-1]["escaped"] > (0.85 if "activation" in setting else 0.99)
    same = load(tmp_path / "escape.nc", kind="escape")[0]["escape_time"].sel(strength=0.5).values.clip(max=12.0)
    halves = np.array_split(same, 2)  # the same strength is not told apart from itself
    error = np.hypot(*(half.std(ddof=1) / np.sqrt(half.size) for half in halves))
    assert abs(halves[0].mean() - halves[1].mean()) < 5 * error


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["escape", "--layers", "40", "--horizon", "4", "--replicas", "4", "--tokens", "8", "--every", "2"]
    assert cli.status([*words, "--strengths", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"no noise", "strength 1", "clusters"} <= set(result)
    assert (tmp_path / "escape.png").stat().st_size > 1000
    assert cli.status([*words, "--strengths", "-1", "--overwrite"]) == 2


def test_the_help_shows_the_defaults_that_hold(capsys):
    assert cli.status(["escape", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, value in DEFAULTS.items():
        assert re.search(rf"--{name} [^\]]*\[default: {value}\]", text), name


@pytest.mark.parametrize(
    ("given", "how", "says"),
    [
        ({"attention": "none"}, {}, "needs attention"),
        ({"noise": "none"}, {}, "needs noise"),
        ({}, {"strengths": (1.0, 1.0)}, "different"),
        ({}, {"settle": 0.0}, "settle"),
        ({}, {"settle": 1e9}, "layers"),
        ({"beta": 0.1, "layers": 20, "replicas": 2, "every": 20}, {}, "every replica has one cluster"),
    ],
)
def test_what_cannot_escape_is_one_line(given, how, says, tmp_path):
    with pytest.raises(UserError, match=says):
        escapes(given, tmp_path / "escape.nc", **how)
    assert not list(tmp_path.iterdir())
