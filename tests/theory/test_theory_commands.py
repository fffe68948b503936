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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pair", "--observable", "overlop"), "did you mean 'overlap'"),
        (("pair", "--times", "a"), "comma-separated numbers"),
        (("pair", "--uniform", "--rho0", "0.1"), "two starts"),
        (("pair", "--noise", "none"), "noise"),
        (("theory", "--map", "sigma_v", "dim"), "did you mean 'sigma_"),
        (("theory", "--beta", "-1"), "beta"),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments, says):
    assert status(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
