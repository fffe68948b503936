"""The picture of a run shows the run, and the theory only where it speaks."""

from __future__ import annotations

import numpy as np
import pytest

from synchronoise import cli, pictures, plots, runs
from synchronoise.config import configure
from synchronoise.pictures import caption, draw_run, predicted_energy

LAW = {"dim": 5, "tokens": 2, "sigma_u": 0.1, "sigma_w": 0.1, "attention": "none"}
SMALL = {**LAW, "width": 8, "layers": 12, "replicas": 3}


def test_the_prediction_is_the_exact_pair_energy():
    """tests/reference/exact.csv: 0.45614 for a pair of ReLU d=5 σ=0.1 at T=5; N tokens have (1 - 1/N) of it."""
    times = np.array([0.0, 5.0])
    assert predicted_energy(configure(LAW), times)[1] == pytest.approx(0.45614 / 2, abs=1e-5)
    many = predicted_energy(configure({**LAW, "tokens": 64}), times)
    assert many[1] == pytest.approx(0.45614 * 63 / 64, abs=1e-5)
    orthogonal = predicted_energy(configure({**LAW, "start": "equiangular"}), times)
    assert orthogonal[0] == pytest.approx((np.e - 1) / 4, rel=1e-6)
    assert abs(predicted_energy(configure({**LAW, "sigma_w": 0.2}), times)[1] - 0.45614 / 2) > 0.01


@pytest.mark.parametrize(
    "changes", [{"attention": "softmax"}, {"noise": "none"}, {"start": "clusters"}, {"start": "tokens.npy"}], ids=str
)
def test_the_theory_is_silent_where_it_does_not_apply(changes):
    assert predicted_energy(configure({**LAW, **changes}), np.array([1.0])) is None


def test_a_run_is_drawn_with_its_parameters(tmp_path, monkeypatch):
    job = runs.prepare(SMALL)
    dataset = runs.run(job, tmp_path / "run.nc")
    figures = []
    draw = plots.run_figure
    monkeypatch.setattr(plots, "run_figure", lambda *arguments: figures.append(draw(*arguments)) or figures[0])
    draw_run(job.config, dataset, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    left, right = figures[0].axes[:2]
    assert figures[0].get_suptitle() == caption(job.config)
    assert "energy" in left.get_ylabel()
    assert "overlap" in right.get_ylabel()
    lines = {line.get_label(): line.get_ydata() for line in left.get_lines()}
    np.testing.assert_allclose(lines["mean ± 1 SE"], dataset["energy"].mean("replica"))
    (theory,) = (values for label, values in lines.items() if label.startswith("two-token equation"))
    np.testing.assert_allclose(theory, predicted_energy(job.config, dataset["time"].values))


def test_a_picture_says_where_it_shows_less_or_its_theory_is_far(tmp_path, monkeypatch):
    dataset = runs.run(runs.prepare(SMALL), tmp_path / "run.nc")
    words = []
    draw = plots.run_figure
    monkeypatch.setattr(plots, "run_figure", lambda result, text: words.append(text) or draw(result, text))
    monkeypatch.setattr(pictures, "MOST_PAIRED", 4)
    for changes in ({}, {"layers": 2, "horizon": 5.0, "sigma_u": 0.0, "sigma_w": 0.0}, {"tokens": 6}):
        draw_run(configure({**SMALL, **changes}), dataset, tmp_path / "run.png")
    assert "few layers" not in words[0]
    assert "(T/L) κ(1)(d-1) = 1 is not small" in words[1]  # 5/2 · 1/(2·5) · 4
    assert "energy and overlaps of the first 4 tokens" in words[2]
    assert "first" not in words[0] + words[1]


@pytest.mark.parametrize("changes", [{"tokens": 1, "replicas": 1}, {"beta": -1.0}], ids=str)
def test_energies_that_are_zero_or_negative_are_drawn(tmp_path, changes):
    job = runs.prepare({**SMALL, "attention": "softmax", **changes})
    draw_run(job.config, runs.run(job, tmp_path / "run.nc"), tmp_path / "run.png")
    assert (tmp_path / "run.png").exists()


def test_a_picture_of_somebody_else_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "run.png").write_text("a photograph")
    assert cli.status(["simulate", "--dim", "5", "--out", str(tmp_path / "run.nc")]) == 2
    assert "run.png exists; --overwrite" in capsys.readouterr().err
    assert (tmp_path / "run.png").read_text() == "a photograph"
