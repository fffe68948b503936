"""Certificates: intervals that contain independent values, signs, and the refusal."""

import json
from fractions import Fraction

import mpmath
import pytest

from synchronoise.cli import status
from synchronoise.errors import UserError
from synchronoise.kernel import Kernel
from synchronoise.theory import lambda_1, lambda_bar, lambda_bar_prime
from synchronoise.theory.certify import certificate

LAWS = [
    ("relu", 64, 0.1, 0.1),
    ("linear", 5, 0.1, 0.1),
    ("erf", 64, 0.1, 0.1),
    ("tanh", 5, 0.0, 0.0),
    ("tanh", 5, 0.4, 0.2),
    ("sigmoid", 5, 0.1, 0.1),
    ("gelu", 32, 0.2, 0.05),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: "-".join(map(str, law)))
def test_intervals_contain_the_kernel_and_are_narrow(law):
    kernel, found = Kernel(*law), certificate(*law)
    exact = {
        "lambda_1": lambda_1(kernel),
        "lambda_bar": lambda_bar(kernel),
        "lambda_bar_prime": lambda_bar_prime(kernel),
    }
    for name, value in exact.items():
        low, high = found[name]["interval"]
        assert low - 1e-11 <= value <= high + 1e-11
        assert high - low < 1e-9
        assert found[name]["sign"] == ("negative" if value < 0 else "positive")
        assert not low - 1e-11 <= 1.001 * value <= high + 1e-11


def test_tanh_interval_contains_mpmath():
    low, high = certificate("tanh", 5)["lambda_1"]["interval"]
    with mpmath.workdps(30):
        root_q = mpmath.sqrt(mpmath.mpf(1) / 5)
        nodes = [-14, -4, -1, 0, 1, 4, 14]
        kappa = mpmath.quad(lambda z: mpmath.tanh(root_q * z) ** 2 * mpmath.npdf(z), nodes)
        slope = mpmath.quad(lambda z: mpmath.sech(root_q * z) ** 4 * mpmath.npdf(z), nodes) / 5
        assert low <= slope - 2 * kappa <= high


def test_relu_is_exact():
    low, high = certificate("relu", 7, 0.25, 0.5)["lambda_bar"]["interval"]
    exact = Fraction(1, 7) - (Fraction(1, 16) + 2 * Fraction(1, 4)) * Fraction(4, 2)
    assert Fraction(low) <= exact <= Fraction(high)


def test_refuses_where_the_interval_contains_zero():
    zero = certificate("relu", 4, 0.0, 0.5)["lambda_bar"]  # λ̄ = 1/4 - 2 σ_W²/2 = 0 exactly
    assert zero["sign"] is None
    assert "contains 0" in zero["refused"]
    assert certificate("relu", 4, 0.0, 0.5 + 1e-15)["lambda_bar"]["sign"] == "negative"


def test_command(capsys):
    assert status(("theory", "--certify", "--activation", "gelu", "--dim", "16", "--sigma-w", "0.1")) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["lambda_1", "lambda_bar", "lambda_bar_prime"]
    assert status(("theory", "--certify", "--dim", "4", "--sigma-w", "0.5")) == 1
    assert "contains 0" in capsys.readouterr().err
    assert status(("theory", "--certify", "--attention", "softmax")) == 2
    assert status(("theory", "--certify", "--activation", "silu")) == 2
    assert "expected one with a proof" in capsys.readouterr().err


def test_unknown_activation():
    with pytest.raises(UserError, match="known: erf, gelu, linear, relu, sigmoid, tanh"):
        certificate("softplus", 5)
