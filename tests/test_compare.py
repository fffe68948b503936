"""Noises of one speed side by side, against the two-token equation (THEORY §5)."""

import json

import numpy as np
import pytest

from synchronoise import cli
from synchronoise.compare import compare_noises, pair_law_of, stationary_energy
from synchronoise.config import configure
from synchronoise.errors import UserError
from synchronoise.theory import PairLaw, private_noise

SMALL = {"tokens": 2, "dim": 4, "width": "4", "layers": 200, "horizon": 20.0, "every": 200, "replicas": 800}
SETTINGS = [
    {"attention": "none", "sigma_u": 0.3},
    {"attention": "softmax", "attention_scale": 0.3, "sigma_u": 0.3},
    {"attention": "unnormalised", "attention_scale": 0.1, "activation": "sigmoid"},
]


@pytest.mark.stat
@pytest.mark.filterwarnings("ignore::synchronoise.FloorWarning")
@pytest.mark.parametrize("setting", [*SETTINGS[:2], pytest.param(SETTINGS[2], marks=pytest.mark.slow)])
def test_private_noise_keeps_the_energy_at_the_theorys_floor_and_common_noise_does_not(setting, tmp_path):
    result = compare_noises({**SMALL, **setting}, tmp_path / "compare.nc", noises=("mlp", "private"))["noises"]
    private, mlp = result["private"], result["mlp"]
    assert mlp["floor"] is None
    assert 5 * private["energy_se"] < 0.1 * private["floor"]
    assert abs(private["energy"] - private["floor"]) < 5 * private["energy_se"] + 0.02 * private["floor"]
    assert mlp["energy"] + 5 * mlp["energy_se"] < 0.5 * private["floor"]
    assert abs(mlp["energy"] - mlp["predicted_energy"]) < 5 * mlp["energy_se"] + 0.02 * private["floor"]
    assert private["synchronised"] < 0.05 < mlp["synchronised"]


def test_the_floor_of_private_noise_is_the_uniform_energy():
    """Without attention private noise spreads tokens uniformly: E ½(e^β - e^{βρ}) = ½(e - sinh 1) on S²."""
    law = PairLaw(3, (private_noise(0.7),))
    for tokens in (2, 8):
        assert stationary_energy(law, 1.0, tokens) == pytest.approx(
            (1 - 1 / tokens) * (np.e - np.sinh(1)) / 2, rel=1e-4
        )
    assert stationary_energy(pair_law_of(configure({"tokens": 2})), 1.0, 2) is None


def test_where_there_is_no_pair_law():
    for silent in ({"tokens": 3}, {"attention": "causal"}, {"noise": "none"}, {"redraw": 2},
                   {"tokens": 3, "attention": "none", "noise": "values"}):  # fmt: skip
        assert pair_law_of(configure({"tokens": 2, **silent})) is None
    assert pair_law_of(configure({"tokens": 9, "attention": "none", "noise": "mlp+private:0.1"})) is not None


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "noises", "--dim", "3", "--tokens", "4", "--layers", "10", "--replicas", "2", "--width", "4"]
    words += ["--attention", "none"]
    assert cli.status([*words, "--noises", "private,vector"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["noises"]) == ["private", "vector"]
    assert result["noises"]["private"]["predicted_energy"] > result["noises"]["vector"]["predicted_energy"]
    assert (tmp_path / "compare.png").stat().st_size > 1000
    assert cli.status([*words, "--overwrite", "--noises", "mlp,privat"]) == 2
    assert "did you mean 'private'" in capsys.readouterr().err
    assert cli.status([*words, "--overwrite", "--delta", "-1"]) == 2
    with pytest.raises(UserError, match="different ones"):
        compare_noises({}, "other.nc", noises=("mlp", "mlp"))
