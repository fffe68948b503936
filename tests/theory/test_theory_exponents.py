"""λ_1, the spectrum, λ̄ and λ̄' against the paper's table, closed forms and the raw formulas."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from synchronoise.errors import UserError
from synchronoise.kernel import Kernel
from synchronoise.theory import (
    assumption_1,
    critical_moment,
    lambda_1,
    lambda_bar,
    lambda_bar_prime,
    lyapunov_spectrum,
    moment_exponent,
    theory_report,
)

REFERENCE = Path(__file__).parents[1] / "reference"
TABLE = list(csv.DictReader((REFERENCE / "paper_table.csv").read_text().splitlines()))
COLUMNS = ("kappa_1", "dkappa_1", "lambda_1", "lambda_bar")


def agrees_with_print(value, printed):
    half_unit = 0.5 * 10.0 ** (int(printed.split("e")[1]) - 2)
    return abs(value - float(printed)) <= half_unit * (1 + 1e-9)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: " ".join(list(row.values())[:3]))
def test_paper_table(row):
    sigma = float(row["sigma"])
    report = theory_report(row["activation"], int(row["d"]), sigma, sigma)
    for column in COLUMNS:
        assert agrees_with_print(report[column], row[column]), column
    # a wrong dimension factor, (d-2) for (d-3), is seen
    wrong = report["lambda_1"] + report["dkappa_1"] / 2
    assert not agrees_with_print(wrong, row["lambda_1"]) or report["dkappa_1"] < 0.01 * report["kappa_1"]


def test_relu_closed_forms():
    d, su, sw = 7, 0.3, 0.2
    kernel = Kernel("relu", d, su, sw)
    bias = su**2 + 2 * sw**2
    assert abs(lambda_1(kernel) - (-1 / (2 * d) - bias * (d - 1) / 4)) < 1e-13
    assert abs(lambda_bar(kernel) - (1 / d - bias * (d - 3) / 2)) < 1e-13
    assert (
        abs(sum(lyapunov_spectrum(kernel)) + 0.5 * ((d - 1) * (d - 1) * kernel.kappa_1 + (d - 1) * kernel.dkappa_1))
        < 1e-12
    )


def test_moment_exponents():
    kernel = Kernel("tanh", 6, 0.2, 0.1)
    step = 1e-6
    slope = (moment_exponent(kernel, step) - moment_exponent(kernel, -step)) / (2 * step)
    assert abs(slope - 2 * lambda_1(kernel)) < 1e-9
    p = critical_moment(kernel)
    lowest = -(lambda_1(kernel) ** 2) / (2 * (kernel.kappa_1 + kernel.dkappa_1))
    assert abs(moment_exponent(kernel, p) - lowest) < 1e-12
    assert moment_exponent(kernel, p + 0.1) > lowest < moment_exponent(kernel, p - 0.1)


@pytest.mark.parametrize(
    ("name", "dim", "sigma_u", "sigma_w", "value"),
    [("gelu", 32, 0.2, 0.05, -0.135573), ("relu", 10, 0.3, 0.0, -0.172957)],
)
def test_lambda_bar_prime_reference(name, dim, sigma_u, sigma_w, value):
    kernel = Kernel(name, dim, sigma_u, sigma_w)
    assert abs(lambda_bar_prime(kernel, 1.0) / value - 1) < 1e-5
    assert lambda_bar_prime(kernel, 1.0) >= lambda_bar(kernel)
    assert not abs(lambda_bar_prime(kernel, 1.2) / value - 1) < 1e-4


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_lambda_bar_prime_is_the_raw_formula(beta):
    kernel, d = Kernel("silu", 9, 0.2, 0.1), 9
    u = np.linspace(-1, 1 - 1e-4, 200_001)
    form = kernel(u) * (d - 2 + u**2 - beta * u * (1 - u**2))
    form += kernel.kappa_1 * (beta * (1 - u**2) - (d - 1) * u)
    raw = beta * np.exp(beta * u) * form / (np.exp(beta) - np.exp(beta * u))
    assert abs(lambda_bar_prime(kernel, beta) + raw.min()) < 2e-4


def test_relu_best_beta_is_small():
    kernel = Kernel("relu", 10, 0.3)
    np.testing.assert_allclose([lambda_bar_prime(kernel, b) for b in (0.0, 0.5)], lambda_bar(kernel), rtol=1e-12)
    assert abs(lambda_bar_prime(kernel, 4.0) + 0.0015) < 5e-5


def test_assumption_1():
    assert assumption_1(Kernel("tanh", 64, 0.1, 0.1))
    assert not assumption_1(Kernel("tanh", 64))
    assert not any(assumption_1(Kernel("sigmoid", d)) for d in (2, 3))


def test_theory_never_imports_jax_or_the_simulator():
    code = (
        "import sys; from synchronoise.theory import theory_report; theory_report('gelu', 64, 0.1, 0.1, 1.0);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('jax', 'equinox', 'matplotlib', 'xarray')"
        " or m in ('synchronoise.simulation', 'synchronoise.model')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_bad_beta():
    with pytest.raises(UserError, match="beta"):
        lambda_bar_prime(Kernel("relu", 5), -1.0)
