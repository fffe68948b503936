"""`synchronoise pair` and `synchronoise theory`: one JSON object, one line for a mistake."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from synchronoise.cli import status


def output(capsys, *arguments):
    assert status(arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_pair_reproduces_the_reference(capsys):
    flags = ("--dim", "5", "--sigma-u", "0.1", "--sigma-w", "0.1", "--times", "0,2,5", "--uniform")
    result = output(capsys, "pair", *flags)
    assert list(result) == ["observable", "times", "mean", "error"]
    np.testing.assert_allclose(result["mean"], [0.8073218, 0.6345792, 0.4561419], rtol=1e-6)


def test_pair_noises_and_quantiles(capsys):
    flags = ("--noise", "none", "--values", "1", "--dim", "8", "--beta", "2", "--rho0", "0.3")
    result = output(capsys, "pair", *flags, "--observable", "quantiles", "--levels", "0.1,0.9")
    assert result["levels"] == [0.1, 0.9]
    assert np.shape(result["mean"]) == (3, 2)


def test_theory_is_quick():
    """Under 1.5 s on an idle machine; the processor's time is what a busy one can measure."""
    command = [sys.executable, "-c", "from synchronoise.cli import main; main()", "theory", "--activation", "gelu"]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 1.5


def test_theory_with_attention(capsys):
    without = output(capsys, "theory", "--dim", "5")
    assert without["attention"] is None
    result = output(capsys, "theory", "--dim", "5", "--attention", "softmax", "--attention-scale", "0.3")
    assert result["attention"]["log_distance_rate"] == pytest.approx(-0.4, abs=1e-12)


def test_theory_map_writes_both_files(capsys, tmp_path):
    out = tmp_path / "map.nc"
    flags = ("theory", "--map", "sigma_u=0:0.5:2", "sigma_w=0:0.5:2", "--dim", "8", "--out", str(out))
    assert output(capsys, *flags)["figure"] == str(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000
    assert xr.load_dataset(out)["lambda_1"].dims == ("sigma_w", "sigma_u")
    assert status(flags) == 2
    assert "exists" in capsys.readouterr().err
    assert status((*flags, "--overwrite")) == 0
    out.unlink()
    assert status(flags) == 2  # the figure is still there
    assert "map.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pair", "--observable", "overlop"), "did you mean 'overlap'"),
        (("pair", "--times", "a"), "comma-separated numbers"),
        (("pair", "--uniform", "--rho0", "0.1"), "two starts"),
        (("pair", "--noise", "none"), "noise"),
        (("theory", "--map", "sigma_v", "dim"), "did you mean 'sigma_"),
        (("theory", "--beta", "-1"), "beta"),
        (("theory", "--certify", "--beta", "-1"), "beta"),
        (("theory", "--attention", "unnormalised", "--beta", "500"), "[-300, 300]"),
        (("theory", "--dim", "2.5"), "expected an integer"),
        (("theory", "--dim", "100000000"), "[2, 65536]"),
        (("theory", "--activation", "sin:0"), "no noise at all"),
        (("theory", "--activation", "sin:1000"), "cannot be computed"),
        (("theory", "--out", "x.nc"), "about a map"),
        (("theory", "--map", "sigma_u", "sigma_w", "--out", ""), "ending in .nc"),
        (("theory", "--map", "sigma_u=0:1:1000000", "dim"), "count <= 200"),
        (("theory", "--map", "dim", "sigma_u=0:1:3", "--sigma-u", "1"), "an axis of the map"),
        (("pair", "--attention-scale", "3"), "changes nothing"),
        (("pair", "--threshold", "0.5"), "--threshold is about exceedance, not energy"),
        (("pair", "--observable", "exceedance", "--levels", "0.5"), "--levels is about quantiles, not exceedance"),
        (("pair", "--noise", "none", "--private", "1", "--activation", "tanh"), "--activation is about the MLP"),
        (("pair", "--observable", "overlap", "--beta", "2"), "--beta changes no overlap"),
        (("pair", "--observable", "overlop", "--beta", "2"), "did you mean 'overlap'"),
        (("pair", "--beta", "800"), "[-300, 300]"),
        (("pair", "--times", "1e300"), "times"),
        (("pair", "--private", "1e300"), "private"),
        (("pair", "--rho0", "1", "--observable", "log_distance"), "below 1"),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments, says):
    assert status(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_extreme_parameters_spill_no_warning(capsys, recwarn):
    output(capsys, "theory", "--beta", "800")
    flags = ("pair", "--noise", "none", "--values", "1", "--beta", "1e4", "--observable", "overlap")
    assert 0 < output(capsys, *flags)["mean"][0] < 1e-6
    assert output(capsys, "pair", "--times", "0,1e30")["mean"][1] == 0.0
    assert not recwarn.list


def test_negative_beta_has_negative_energies(capsys):
    rho = 0.3
    result = output(capsys, "pair", "--beta", "-3", "--rho0", str(rho), "--times", "0,1")
    assert result["mean"][0] == pytest.approx(0.5 * (np.exp(-3) - np.exp(-3 * rho)), abs=1e-12)
    assert result["mean"][0] < result["mean"][1] < 0
