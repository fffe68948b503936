"""The paper's table, and a small version of its figures: made, kept, refused, and what they say."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from synchronoise.errors import RunError, UserError
from synchronoise.paper import checks, make, reproduce
from synchronoise.paper import table as tables
from synchronoise.paper.experiments import (
    FULL,
    GRIDS,
    QUICK,
    Run,
    compute,
    figure1_runs,
    grid_runs,
    growth_bound,
    note,
    predict,
)
from synchronoise.store import load

REFERENCE = Path(__file__).parent / "reference" / "paper_table.csv"


def quick(out, **changes):
    return reproduce(**{"what": "all", "out": out, "activation": "relu", "quick": True, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper") / "out"
    return out, quick(out)


@pytest.fixture
def copy(made, tmp_path):
    """What was made, to be spoiled."""
    for path in made[0].rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(made[0])
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_all_24_rows_by_4_columns_are_within_the_rounding_of_the_print():
    rows = tables.table()
    assert tables.printed_table() == list(csv.DictReader(REFERENCE.read_text().splitlines()))
    assert len(rows) == 24
    for row in rows:
        for column in tables.COLUMNS:
            cell = row[column]
            assert cell["within_rounding"], (row["activation"], row["d"], row["sigma"], column)
            # a unit of the last printed digit away is noticed
            unit = 10.0 ** (int(cell["printed"].split("e")[1]) - 2)
            assert not tables.within_rounding(cell["computed"] + 1.01 * unit, cell["printed"])


def test_table_files(made):
    rows = list(csv.DictReader((made[0] / "table.csv").read_text().splitlines()))
    assert len(rows) == 24
    assert {row["lambda_1_within_rounding"] for row in rows} == {"true"}
    lines = (made[0] / "table.txt").read_text().splitlines()[2:-1]
    assert [line.count(" = ") for line in lines] == [4] * 24


def test_what_is_made(made):
    out, report = made
    assert report["table"] == "96 of 96 values within the rounding of the print"
    assert report["simulations"] == "8 computed, 0 were there and identical"
    assert {path.name for path in out.iterdir()} == {
        "data", "summary.json", "table.csv", "table.txt", "overview.png", "figure1.png",
        "grid_relu_overlaps.png", "grid_relu_energies.png",
    }  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    panels = summary["grids"]["relu"]["panels"]
    assert len(panels) == 6
    assert summary["grids"]["relu"]["seed"] == 0
    for name, panel in panels.items():
        stored, _ = load(out / "data" / f"{name}.nc")
        assert panel["energy_end"] == float(stored["energy"][:, -1].mean())
        assert ("prediction" in panel) == (panel["attention_scale"] == 0)
        assert panel["note"].startswith("not covered") == (panel["attention_scale"] != 0)
    assert {"relu", "tanh"} < set(summary["figure1"])


def test_a_second_run_keeps_everything(made):
    before = contents(made[0])
    report = quick(made[0])
    assert report["simulations"] == "0 computed, 8 were there and identical"
    assert report["figures"] == "0 drawn"
    assert contents(made[0]) == before


def test_parts_share_a_folder(copy):
    (copy / "figure1.png").unlink()
    (copy / "data" / "figure1_tanh.nc").unlink()
    before = json.loads((copy / "summary.json").read_text())
    report = quick(copy, what="fig1", activation=None)
    assert report["simulations"] == "1 computed, 1 were there and identical"
    assert report["figures"] == "1 drawn"
    assert json.loads((copy / "summary.json").read_text()) == before


def test_a_figure_is_drawn_again_when_it_is_not_of_this_data(copy):
    before = (copy / "figure1.png").read_bytes()
    (copy / "figure1.png").write_bytes((copy / "grid_relu_energies.png").read_bytes())
    assert quick(copy)["figures"] == "1 drawn"
    assert (copy / "figure1.png").read_bytes() == before


@pytest.mark.parametrize("spoil", [lambda content: content[:-7], lambda content: b"not a result"])
def test_a_damaged_or_foreign_file_is_refused_and_left(copy, spoil):
    path = copy / "data" / "figure1_relu.nc"
    path.write_bytes(spoil(path.read_bytes()))
    before = contents(copy)
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"figure1_relu.nc .*remove it, or choose another --out"):
            quick(copy, overwrite=overwrite)
    assert contents(copy) == before


def test_results_of_other_settings_are_refused_unless_overwritten(copy):
    with pytest.raises(UserError, match=r"seed 0, now 1\); --overwrite replaces it"):
        quick(copy, what="fig1", activation=None, seed=1)
    report = quick(copy, what="fig1", activation=None, seed=1, overwrite=True)
    assert report["simulations"] == "2 computed, 0 were there and identical"
    assert json.loads((copy / "summary.json").read_text())["figure1"]["seed"] == 1


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        reproduce("table", out=tmp_path)
    (tmp_path / "summary.json").write_text('{"format": "theirs"}')
    with pytest.raises(UserError, match="damaged or not ours"):
        reproduce("table", out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", "summary.json"}
    with pytest.raises(UserError, match="cannot use the folder"):
        reproduce("table", out=tmp_path / "thesis.tex")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"what": "figure"}, "unknown part 'figure'"),
        ({"activation": "rellu"}, "did you mean 'relu'"),
        ({"what": "table"}, "--activation chooses a grid"),
    ],
)
def test_mistakes_are_said_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        quick(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_keeps_what_is_done(tmp_path, monkeypatch):
    real, calls = make.compute, []

    def second_is_interrupted(run, advance):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(run, advance)

    monkeypatch.setattr(make, "compute", second_is_interrupted)
    with pytest.raises(KeyboardInterrupt, match="1 of 2 simulations were computed and are kept"):
        quick(tmp_path / "out", what="fig1", activation=None)
    monkeypatch.setattr(make, "compute", real)
    assert quick(tmp_path / "out", what="fig1", activation=None)["simulations"].startswith("1 computed, 1 were there")


def test_a_simulation_that_stops_early_is_not_kept(tmp_path, monkeypatch):
    def full_disk(*_):
        raise RunError("cannot write")

    monkeypatch.setattr("synchronoise.paper.folder.save", full_disk)
    with pytest.raises(RunError):
        quick(tmp_path / "out", what="fig1", activation=None)
    assert list((tmp_path / "out" / "data").iterdir()) == []


def test_the_full_sizes_are_the_papers():
    runs = {name: run for grid in GRIDS for name, run in grid_runs(grid, FULL, 0).items()}
    assert len(runs) == 4 * 18 + 9
    assert {(r.tokens, r.layers, r.horizon, r.width, r.replicas) for r in runs.values()} == {(64, 150, 5.0, 512, 16)}
    assert {(r.dim, r.sigma, r.attention_scale) for r in runs.values()} == {
        (d, s, a) for d in (5, 64, 128) for s in (0.0, 0.1) for a in (1.0, 0.0, -1.0)
    }
    for run in figure1_runs(FULL, 0).values():
        assert (run.tokens, run.dim, run.layers, run.horizon, run.width) == (64, 4, 2000, 20.0, 2048)


def one(activation, dim, sigma, scale):
    return next(
        run
        for run in grid_runs(activation, FULL, 0).values()
        if (run.dim, run.sigma, run.attention_scale) == (dim, sigma, scale)
    )


def test_the_floor_of_the_arithmetic_is_said_and_not_warned_of(made):
    run = Run("sigmoid", 64, 0.1, 0.0, tokens=4, width=8, layers=60, horizon=12.0, replicas=2, seed=0)
    work = []
    result = compute(run, work.append)
    assert sum(work) == run.work
    assert "closer than the floor" in result.attrs["floor"]
    # ½ e^β ε at ε = (8 · 2^-52)²/2
    assert result.attrs["floor_energy"] == pytest.approx(0.5 * np.e * (8 * 2.0**-52) ** 2 / 2)
    assert result["energy_mean"][-1] < result.attrs["floor_energy"] < result["energy_mean"][20]
    stored, _ = load(made[0] / "data" / "relu_d5_sigma0_scale+0.nc")
    assert not {"floor", "floor_energy"} & stored.attrs.keys()


@pytest.mark.parametrize(
    ("run", "bounded", "words"),
    [
        (one("relu", 5, 0.0, 1.0), False, "not covered by theory: λ̄ = 0.2 ≥ 0"),
        (one("relu", 64, 0.1, 1.0), True, ""),
        (one("tanh", 64, 0.0, 1.0), False, "not covered by theory: odd field"),
        (one("relu", 64, 0.1, -1.0), False, "not covered by theory: attention repels"),
        (one("none", 64, 0.0, 1.0), False, "not covered by theory: no noise"),
        (one("none", 64, 0.0, 0.0), False, "nothing moves"),
        (one("sigmoid", 128, 0.0, 0.0), True, "L too small: (T/L) κ(1)(d−1) = 1.1"),
        (one("silu", 5, 0.1, 0.0), False, ""),
    ],
)
def test_what_the_theory_covers(run, bounded, words):
    assert note(run) == words
    assert isinstance(growth_bound(run), float) == bounded
    assert ("energy_bound" in predict(run, np.array([0.0, 1.0]))) == bounded


def test_predictions_start_at_the_mean_energy_of_uniform_tokens_and_count_the_pairs_of_one():
    run = one("relu", 5, 0.1, 0.0)
    predicted = predict(run, np.array([0.0, 2.0, 5.0]))["energy_prediction"][1]
    np.testing.assert_allclose(predicted, (63 / 64) * np.array([0.8073218, 0.6345792, 0.4561419]), rtol=1e-5)
    assert not np.allclose(predicted, [0.8073218, 0.6345792, 0.4561419], rtol=1e-3)


def panel(dim, sigma, scale, end, lambda_1):
    return {
        "dim": dim, "sigma": sigma, "attention_scale": scale,
        "energy_start": 1.0, "energy_end": end, "energy_end_se": 0.01, "lambda_1": lambda_1,
    }  # fmt: skip


def test_expectations_are_met_and_missed():
    good = {
        "a": panel(5, 0.0, 0.0, 0.6, -0.1), "b": panel(5, 0.1, 0.0, 0.5, -0.2),
        "c": panel(64, 0.0, 0.0, 0.8, -0.0), "d": panel(64, 0.1, 0.0, 0.1, -1.3),
        "e": panel(5, 0.1, -1.0, 0.7, -0.2), "f": panel(64, 0.1, -1.0, 0.05, -1.3),
    }  # fmt: skip
    found = checks.expectations({"relu": {"panels": good}})
    assert len(found) == 5
    assert checks.verdict(found) == "5 of 5 as expected"
    for name, end in {"b": 0.7, "c": 0.5, "d": 0.55, "e": 0.05, "f": 0.3}.items():
        bad = {**good, name: {**good[name], "energy_end": end}}
        assert "; not: " in checks.verdict(checks.expectations({"relu": {"panels": bad}})), name


def test_agreement_notices_a_wrong_mean(made):
    name, run = next((n, r) for n, r in grid_runs("relu", QUICK, 0).items() if r.attention_scale == 0)
    result, _ = load(made[0] / "data" / f"{name}.nc")
    result["energy_mean"] = result["energy_prediction"] + 4 * result["energy_se"]
    assert checks.grid({name: run}, {name: result})["panels"][name]["prediction"]["agrees"]
    result["energy_mean"] = result["energy_prediction"] + 6 * result["energy_se"]
    wrong = checks.grid({name: run}, {name: result})["panels"][name]["prediction"]
    assert not wrong["agrees"]
    assert wrong["reason"] == "unexplained"
