"""`synchronoise converge` from end to end: table, JSON, file and figure; and one line for what cannot run."""

import json

import numpy as np
import pytest

from synchronoise import UserError, cli
from synchronoise.convergence.experiments import experiment
from synchronoise.convergence.fit import Estimate
from synchronoise.convergence.measures import _verdict
from synchronoise.options import CONVERGE
from synchronoise.store import load

SMALL = ["--replicas", "8", "--tokens", "2", "--dim", "2", "--activation", "tanh"]


def test_a_measurement_is_a_table_a_file_and_a_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["converge", "width", *SMALL, "--levels", "4,8", "--layers", "2", "--json"]
    assert cli.status(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"levels", "error", "slope", "ci", "theory", "verdict"} <= set(result)
    assert result["levels"] == [4, 8]
    dataset, made_by = load(tmp_path / "converge-width.nc", kind="convergence")
    assert dataset["error"].sel(kind="coupled").mean("replica").values.tolist() == result["error"]
    assert made_by["config"]["layers"] == 2
    assert (tmp_path / "converge-width.png").stat().st_size > 5000
    assert cli.status(words) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["depth", *SMALL, "--levels", "2,4"],
        ["depth", *SMALL, "--levels", "2,4", "--path"],
        ["limits", *SMALL, "--levels", "2,4", "--widths", "4,inf"],
        ["law", "--replicas", "64", "--levels", "4,8", "--widths", "1,inf", "--attention", "softmax"],
    ],
    ids=lambda arguments: arguments[0] + "-path" * ("--path" in arguments),
)
def test_every_experiment_says_a_verdict(arguments, tmp_path, capsys):
    assert cli.status(["converge", *arguments, "--out", str(tmp_path / "it.nc")]) == 0
    assert "verdict" in capsys.readouterr().out
    assert (tmp_path / "it.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dept"], "Invalid value"),
        (["depth", "--levels", "8"], "two or more"),
        (["depth", "--levels", "8,4"], "increasing"),
        (["depth", "--levels", "8,inf"], "whole numbers"),
        (["depth", "--levels", "many"], "comma-separated"),
        (["depth", "--widths", "4,8"], "has no --widths"),
        (["depth", "--layers", "8"], "has no --layers"),
        (["law", "--tokens", "3"], "2, a pair"),
        (["tokens", "--tokens", "3"], "has no --tokens"),
        (["corollary", "--layers", "3"], "has no --layers"),
        (["corollary", "--beta", "3"], "changes nothing without attention"),
        (["tokens", "--start", "equiangular"], "uniform, for iid tokens"),
        (["corollary", "--start", "clusters"], "uniform, for iid tokens"),
        (["depth", "--token-error", "0.5"], "has no --token-error"),
        (["depth", "--path", "--replicas", "9"], "--path has no --replicas"),
        (["depth", "--overlap", "0.5"], "changes nothing without the start equiangular"),
        (["law", "--start", "clusters", "--tokens", "4"], "uniform or equiangular"),
        (["width", "--replicas", "3"], "8 or more"),
        (["width", "--path"], "has no --path"),
        (["limits", "--token-error", "0"], "token_error"),
        (["width", "--out", "result.txt"], "ending in .nc"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("synchronoise.cli.study.allow_dtype", lambda dtype: None)
    assert cli.status(["converge", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_the_help_shows_the_defaults_that_hold(capsys):
    assert cli.status(["converge", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for shown in (
        "[default: 3; law: 16; tokens, corollary: 2]",
        "[default: 0; law, tokens, corollary: 0.3]",
        "[default: 256; law: 65536; tokens: 24; corollary: 128]",
        "[default: width: 32; tokens: 40]",
        "[default: 1; tokens: 2]",
    ):
        assert shown in text, shown
    for what in ("depth", "width", "limits", "law"):
        config = experiment(what, {}).job.config
        for name, value in CONVERGE[what].items():
            assert value is None or getattr(config, name) == value
    with pytest.raises(UserError, match="has no --layers"):
        experiment("limits", {"layers": 8})


def test_defaults_meet_what_is_asked_of_them():
    for what, most in (("depth", 256), ("width", 512)):
        plan = experiment(what, {})
        assert max(plan.levels) == 32 * min(plan.levels) == most
        assert plan.job.config.replicas >= 256
    assert min(experiment("width", {"tokens": 16}).levels) == 32
    with pytest.raises(UserError, match="did you mean 'depth'"):
        experiment("deph", {})


def test_a_verdict_needs_the_window_and_a_narrow_interval():
    assert _verdict(Estimate(-1.0, 0.02, -1.04, -0.96), "1/m") == "converges like 1/m"
    assert "too wide" in _verdict(Estimate(-1.0, 0.2, -1.4, -0.6), "1/m")
    assert "does not" in _verdict(Estimate(-0.5, 0.02, -0.54, -0.46), "1/m")
    assert "does not" in _verdict(Estimate(np.nan, np.nan, np.nan, np.nan), "1/m")
