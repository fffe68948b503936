"""How a run is computed: chosen by sizes, dtype and how close tokens will come, named, and forced by a flag."""

from __future__ import annotations

import json

import pytest

import synchronoise as sn
from checks import agrees
from synchronoise import cli
from synchronoise.banks import HarmonicField
from synchronoise.config import configure
from synchronoise.errors import UserError
from synchronoise.routes import noise_of


def route(**values):
    return type(noise_of(configure(values)))


def test_the_limit_is_a_factor_until_it_is_too_large_or_tokens_come_too_close():
    assert route(width="inf") is sn.GaussianField
    assert route(width="inf", tokens=1025) is sn.FreshFeatures
    assert route(width="inf", horizon=50.0) is sn.FreshFeatures
    assert route(width="inf", horizon=50.0, attention="none") is sn.GaussianField
    # e^{-(1 + .0078) 9} (nearest of 64) is below 5 floors of float32 and above those of float64
    assert route(width="inf", horizon=9.0) is sn.FreshFeatures
    assert route(width="inf", horizon=9.0, dtype="float64") is sn.GaussianField
    assert route(width="inf", horizon=50.0, attention_scale=-1.0) is sn.GaussianField


@pytest.mark.parametrize("beside", ["vector", "values"])
def test_a_noise_beside_the_field_counts_in_how_close_tokens_come(beside):
    # d = 64, T = 5: -(d - 1) σ²/2 · T = -14 at σ = 0.3, below the floors of float32 and above those of float64
    given = {"width": "inf", "attention": "none", "noise": f"mlp+{beside}:0.3"}
    assert type(noise_of(configure(given)).parts[0]) is sn.FreshFeatures
    assert type(noise_of(configure({**given, "dtype": "float64"})).parts[0]) is sn.GaussianField
    assert type(noise_of(configure({**given, "noise": f"mlp+{beside}:0.03"})).parts[0]) is sn.GaussianField


def test_a_smooth_kernel_on_many_tokens_of_low_dimension_goes_by_features():
    """tanh, d = 3: the pivots of 64 tokens are rounding in float32, and blur near tokens by .026 (by .13 at 200)."""
    smooth = {"width": "inf", "activation": "tanh", "dim": 3, "attention": "none", "horizon": 0.1}
    assert route(**smooth, tokens=64) is sn.FreshFeatures
    assert route(**smooth, tokens=4) is sn.GaussianField
    assert route(**{**smooth, "dim": 64}, tokens=64) is sn.GaussianField
    assert route(**{**smooth, "activation": "relu", "dim": 16}, tokens=32) is sn.GaussianField
    assert route(**smooth, tokens=64, route="cholesky") is sn.GaussianField


def test_a_finite_width_is_drawn_where_that_is_less_work():
    assert route(width=2048, dim=128, tokens=32) is sn.InLawMLP
    assert route(width=16, dim=4) is sn.DrawnMLP


@pytest.mark.parametrize(
    ("asked", "width", "kind"),
    [
        ("drawn", 8, sn.DrawnMLP),
        ("exact", 8, sn.InLawMLP),
        ("cholesky", "inf", sn.GaussianField),
        ("features", "inf", sn.FreshFeatures),
        ("harmonics", "inf", HarmonicField),
    ],
)
def test_a_route_can_be_forced(asked, width, kind):
    assert route(route=asked, width=width, dim=3) is kind
    other = 8 if width == "inf" else "inf"
    with pytest.raises(UserError, match="--route auto"):
        route(route=asked, width=other, dim=3)


def test_a_route_without_an_mlp_is_refused():
    with pytest.raises(UserError, match="leave it out"):
        route(route="drawn", noise="private")
    assert cli.status(["simulate", "--noise", "none", "--route", "features"]) == 2


def test_the_result_names_its_route(tmp_path, capsys):
    flags = ["simulate", "--dim", "3", "--tokens", "4", "--width", "inf", "--layers", "4", "--replicas", "2", "--json"]
    assert cli.status([*flags, "--route", "features", "--out", str(tmp_path / "a.nc")]) == 0
    assert cli.status(["show", str(tmp_path / "a.nc"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert "Gaussian field, 16 fresh features" in printed
    assert json.loads(printed.strip().splitlines()[-1])


@pytest.mark.stat
@pytest.mark.parametrize("asked", ["cholesky", "features", "harmonics"])
def test_every_route_of_the_limit_has_its_law(asked):
    """Mean overlap of two tokens from ρ = 0.5 at T = 1 against the exact value; d = 3, tanh."""
    law = sn.MLP("tanh", 3, 0.5, 0.3)
    config = configure({"activation": "tanh", "dim": 3, "sigma_u": 0.5, "sigma_w": 0.3, "width": "inf", "route": asked})
    model = sn.Transformer(None, noise_of(config), layers=100, horizon=1.0)
    run = sn.simulate(model, sn.Equiangular(2, 3, 0.5), replicas=8192, every=100, observers=[sn.MeanOverlap()], seed=1)
    exact = sn.pair_expectation(law.kernel(), "overlap", [1.0], 0.5).mean[0]
    measured = run["mean_overlap"].values[:, -1]
    assert agrees(measured, exact, resolution=0.03)
    assert not agrees(measured, 0.5, resolution=0.03)  # the overlap does move
