"""The commands of the mean-field limit: spde, converge tokens, modes."""

import json

import numpy as np
import pytest

from synchronoise import UserError, cli
from synchronoise.meanfield import chaos
from synchronoise.meanfield.limits import converge_corollary
from synchronoise.meanfield.modes import growth, modes
from synchronoise.meanfield.run import spde
from synchronoise.store import load

SMALL = {"layers": 40, "horizon": 0.4, "every": 10}


def command(capsys, *words: str) -> dict:
    assert cli.status([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_spde_on_the_circle(capsys, tmp_path):
    out = tmp_path / "circle.nc"
    flags = "--layers 40 --horizon 0.4 --every 10 --cells 128 --sigma-u 0.3 --replicas 4 --tokens 64 --out"
    words = ["spde", *flags.split()]
    result = command(capsys, *words, str(out))
    assert result["mass_error"] < 1e-12
    assert result["least_mass"] >= 0
    assert result["stopped"] == "at the horizon"
    assert result["bound_holds"] is True
    dataset, made_by = load(out, kind="spde")
    assert dataset["mass"].shape == (5, 128)
    assert made_by["solver"] == "eulerian"
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert cli.status([*words, str(out)]) == 2  # exists
    assert "exists" in capsys.readouterr().err
    again = command(capsys, *words, str(out), "--overwrite")
    assert {k: v for k, v in again.items() if k not in ("file", "picture")} == {
        k: v for k, v in result.items() if k not in ("file", "picture")
    }


def test_spde_in_other_dimensions(tmp_path, x64):
    globe = spde({**SMALL, "dim": 3, "beta": 1.0, "layers": 10, "every": 5}, tmp_path / "globe.nc", cells=300)
    assert globe["mass_error"] < 1e-12
    tokens = spde({**SMALL, "dim": 5, "beta": 1.0, "tokens": 64}, tmp_path / "five.nc")
    assert tokens["solver"] == "lagrangian"
    rows = np.random.default_rng(0).standard_normal((16, 2))
    np.save(tmp_path / "tokens.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    data = spde({**SMALL, "start": str(tmp_path / "tokens.npy")}, tmp_path / "data.nc")
    assert data["solver"] == "lagrangian"


def test_spde_says_where_it_sums_densely(tmp_path, x64):
    """Between two narrow peaks a denominator is far below e^β; with a small β none is."""
    peaks = {**SMALL, "layers": 2, "horizon": 0.02, "every": 1, "tokens": 256, "start": "clusters", "clusters": 2,
             "spread": 0.4, "noise": "none"}  # fmt: skip
    for solver in ("eulerian", "lagrangian"):
        with pytest.warns(UserWarning, match="of 256 points.*summed densely"):
            spde({**peaks, "beta": 50.0}, tmp_path / f"{solver}.nc", solver=solver, cells=256)
        assert load(tmp_path / f"{solver}.nc", kind="spde")[0]["dense_tokens"].max() > 0
    spde({**peaks, "beta": 1.0}, tmp_path / "none.nc", cells=256)  # a warning would be an error


@pytest.mark.parametrize("settings", [{"horizon": 1e6, "layers": 2}, {"beta": 0.0, "layers": 2, "horizon": 0.01}])
def test_spde_draws_what_stops_at_once_or_has_no_energy(tmp_path, settings, x64):
    result = spde({**SMALL, "every": 1, **settings}, tmp_path / "r.nc", cells=64)
    assert (result["time"] == 0) == (settings["horizon"] == 1e6)


@pytest.mark.parametrize(
    ("settings", "how", "words"),
    [
        ({"attention": "causal"}, {}, "order of the tokens"),
        ({"noise": "private:0.3"}, {}, "private"),
        ({"noise": "values"}, {}, "at the tokens only"),
        ({"dim": 5}, {"solver": "eulerian"}, "--solver lagrangian"),
        ({"dim": 5}, {"cells": 100}, "where there are cells"),
        ({"start": "equiangular", "dim": 3, "tokens": 2}, {}, "no density"),
    ],
)
def test_what_spde_refuses(tmp_path, settings, how, words, x64):
    with pytest.raises(UserError, match=words):
        spde({**SMALL, **settings}, tmp_path / "no.nc", **how)
    assert list(tmp_path.iterdir()) == []


def test_converge_tokens_is_wired(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "CHAOS_NOISES", 256)
    monkeypatch.setattr(chaos, "CHAOS_LEVELS", (8, 16))
    monkeypatch.setattr(chaos, "REFERENCE", {2: 512})
    words = ["converge", "tokens", "--quick", "--layers", "8", "--levels", "8,16", "--horizon", "0.2", "--out"]
    result = command(capsys, *words, str(tmp_path / "t.nc"))
    assert result["theory"] == -1
    assert len(result["error"]) == 2
    assert load(tmp_path / "t.nc", kind="chaos")[0]["distance"].shape == (6, 8, 2)
    for wrong, text in (({"tokens": 4}, "--levels"), ({"start": "clusters"}, "iid"), ({"replicas": 3}, "8 or more")):
        with pytest.raises(UserError, match=text):
            chaos.converge_tokens(wrong, tmp_path / "no.nc")


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3, 4, 8])
def test_chaos_propagates_at_the_rate(dim, tmp_path, x64):
    """Slopes of E W_2² at 0 and T within 0.1 of the rate, with the defaults; two noises do not come together."""
    result = chaos.converge_tokens({"dim": dim}, tmp_path / "t.nc")
    for kind in ("start", "end", "two_start", "two_end"):
        value, low, high = result["slopes"][kind]
        rate = chaos.rate(dim)[0]
        assert abs(value - rate) <= 0.1, kind
        assert low <= rate + 0.1, kind
        assert high >= rate - 0.1, kind
        assert value < chaos.bound_exponent(dim) + 0.1
        assert high - low < 0.4
    assert result["slopes"]["independent"][0] > chaos.rate(dim)[0] / 2
    # Given the noise, tokens become independent; otherwise they do not.
    assert result["chaos_slope"] == pytest.approx(-1, abs=0.3)
    assert result["unconditional_slope"] > -0.5


@pytest.mark.parametrize(("beta", "attention"), [(5.0, "softmax"), (7.0, "unnormalised")])
def test_growth_of_the_modes(beta, attention, x64):
    few = {"layers": 120, "horizon": 12.0, "replicas": 2, "tokens": 32, "noise": "none"}
    result = modes({"beta": beta, "attention": attention, **few, **({"horizon": 0.06} if beta == 7 else {})})
    assert result["largest_deviation"] < 0.01
    assert np.allclose(result["growth_exact"], growth(beta, attention))
    other = growth(beta, attention) * np.exp(beta)  # not another normalisation
    assert np.abs(np.array(result["growth"]) / other - 1).max() > 0.01
    assert result["fastest_mode"] == {5.0: 3, 7.0: 4}[beta]


@pytest.mark.slow
@pytest.mark.parametrize("beta", [2.0, 5.0, 7.0, 12.0])
def test_the_fastest_mode_makes_that_many_clusters_and_noise_merges_them(beta, x64):
    result = modes({"beta": beta})
    assert result["clusters_from_fastest_mode"] == result["fastest_mode"]
    assert sum(result["clusters_from_random"].values()) == 30
    most = max(map(int, result["most_clusters_from_random"]))
    assert 1 <= most <= result["fastest_mode"] + 2
    assert result["merged"] >= 15


@pytest.mark.slow
def test_the_three_limits_together(capsys, tmp_path):
    result = command(capsys, "converge", "corollary", "--out", str(tmp_path / "c.nc"))
    assert np.shape(result["error"]) == (2, 2, 2)
    assert result["verdict"].startswith("every limit lowers the error")
    assert min(low for low, _ in result["ci"].values()) > 0
    with pytest.raises(UserError, match="no attention"):
        converge_corollary({"attention": "softmax"}, tmp_path / "no.nc")


def test_modes_live_on_the_circle():
    for wrong in ({"dim": 3}, {"attention": "l2"}, {"beta": -1.0}):
        with pytest.raises(UserError, match="modes"):
            modes({"dtype": "float32", **wrong})
