"""The reports: their keys, their words, Assumption 2, and pairs under sums of noises."""

import json

import numpy as np
import pytest
from scipy.optimize import brentq

from synchronoise.errors import UserError
from synchronoise.kernel import Kernel
from synchronoise.theory import lambda_1, lambda_bar, pair_report, theory_report
from synchronoise.theory.assumption_2 import (
    assumption_2,
    attention_velocity,
    energy_growth,
    growth_by_search,
    proven_epsilon,
)
from synchronoise.theory.two_point import PairAttention

DESIGN = [
    *("activation", "dim", "sigma_u", "sigma_w", "beta", "kappa_1", "dkappa_1", "lambda_1", "lyapunov_spectrum"),
    *("lambda_bar", "lambda_bar_prime", "sharp_rate", "odd", "assumption_1", "verdict"),
]


def test_keys_come_in_the_documented_order_and_are_json():
    report = theory_report("gelu", 8, 0.1, 0.1)
    assert list(report)[: len(DESIGN)] == DESIGN
    assert json.loads(json.dumps(report, allow_nan=False)) == report


@pytest.mark.parametrize(
    ("law", "says"),
    [
        (("relu", 64, 0.1, 0.1), "bounds the mean energy"),
        (("relu", 64), "does not apply because λ̄ = 0.01563 is not negative; the mean energy nevertheless decays"),
        (("tanh", 5), "two antipodal clusters"),
        (("tanh", 5), "probability 0.5"),
        (("sin:4.6", 64), "do not synchronise"),
        (("relu", 2), "isolated eigenvalue"),
        (("relu", 2), "d = 2"),
        (("relu", 3), "d = 3"),
    ],
)
def test_verdicts(law, says):
    assert says in theory_report(*law)["verdict"]
    assert says == "bounds the mean energy" or says not in theory_report("sigmoid", 64)["verdict"]


def test_antipodes_of_an_odd_field_are_not_crossed():
    assert "cross" in theory_report("tanh", 2, 0.1)["verdict"]
    assert "cross" not in theory_report("tanh", 2)["verdict"]


def test_stationary_histogram_is_a_law():
    stationary = theory_report("sin:4.6", 64)["stationary_overlap"]
    assert sum(stationary["probability"]) == pytest.approx(1.0, abs=1e-9)
    assert stationary["probability"][0] > 0.2  # barely repelling ends hold most of the law
    assert theory_report("sin:4", 64)["stationary_overlap"] is None


def test_attention_section():
    report = theory_report("relu", 128, 0.1, 0.1, attention="softmax", attention_scale=-1.0)
    section = report["attention"]
    assert abs(section["log_distance_rate"] - 0.044) < 5e-4  # THEORY: marginally not stable
    assert section["ends"]["synchrony"] == "repelling"
    assert section["theorem_1_4"]["rate"] == report["lambda_bar_prime"] + section["epsilon"]["upper"]
    assert report["best_beta"] == 1.0
    kernel = Kernel("relu", 128, 0.1, 0.1)
    assert section["lambda_bar"] == pytest.approx(lambda_bar(kernel) + 2.0, abs=1e-12)
    assert section["causal_slowest_log_distance_rate"] == pytest.approx(lambda_1(kernel) + 0.5, abs=1e-12)
    moments = theory_report("relu", 5)["moment_exponents"]  # p* = 1/4: beyond it the exponent stays
    assert moments["0.25"] == pytest.approx(-0.025) == moments["2.0"]
    assert theory_report("relu", 128)["attention"] is None


def test_critical_frequency_of_the_sine():
    d = 64
    root = brentq(lambda x: x / np.tanh(x) - (d - 1) / (d - 3), 1e-3, 5.0, xtol=1e-15)
    exact = np.sqrt(d * root)
    found = brentq(lambda omega: lambda_1(Kernel(f"sin:{float(omega)!r}", d)), 4.0, 4.6, xtol=1e-14, rtol=1e-14)
    assert abs(found - exact) < 1e-10
    assert abs(found - np.sqrt(d * brentq(lambda x: x / np.tanh(x) - d / (d - 3), 1e-3, 5.0))) > 1e-3


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_attracting_softmax_never_raises_the_energy(beta):
    found = assumption_2(PairAttention("softmax", 1.0, beta), beta, 5)
    assert found.upper == 0.0
    assert found.lower <= 1e-9
    unequal = assumption_2(PairAttention("softmax", 1.0, 4.0), 1.0, 5)
    assert unequal.upper is None
    assert 0.005 < unequal.lower < 0.05


@pytest.mark.parametrize("beta", [0.2, 1.0, 3.0])
def test_repelling_softmax_is_between_two_and_the_bound(beta):
    found = assumption_2(PairAttention("softmax", -0.5, beta), beta, 5)
    assert 0.5 * 1.99 < found.lower <= found.upper == 0.5 * min(4.0, 2 * (1 + beta))


def test_the_bound_holds_for_random_values_and_weights():
    rng = np.random.default_rng(3)
    for _ in range(100):
        d, n, beta = int(rng.integers(2, 6)), int(rng.integers(2, 7)), float(rng.uniform(0.1, 4))
        value = float(rng.uniform(0, 2)) * np.eye(d) + rng.normal(size=(d, d)) * 0.3
        centre = rng.normal(size=d)
        x = centre / np.linalg.norm(centre) + rng.choice([1e-2, 0.3, 3.0]) * rng.normal(size=(n, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        w = rng.dirichlet(np.ones(n))
        growth = energy_growth(attention_velocity(PairAttention("softmax", 1.0, beta), value), beta, x, w)
        assert growth <= proven_epsilon(PairAttention("softmax", 1.0, beta), beta, value) + 1e-9
    # V = I + W costs |W| = ½, whatever the multiple of I
    value = np.diag([1.5, 0.5])
    assert proven_epsilon(PairAttention("softmax", 1.0, 3.0), 3.0, value) == pytest.approx(
        2 * (1 + 3.0) * 0.5, abs=1e-2
    )


@pytest.mark.parametrize("beta", [0.2, 2.0])
def test_repelling_unnormalised_attention_is_between_half_the_bound_and_the_bound(beta):
    found = assumption_2(PairAttention("unnormalised", -0.5, beta), beta, 5)
    assert found.upper == 0.5 * 4 * np.exp(beta)
    assert 0.49 * found.upper < found.lower < 0.5001 * found.upper


def test_search_takes_any_attention():
    # L2 attention, weights ∝ e^{-|x-y|²}: on the sphere it is softmax with β = 2
    def l2(x, w):
        p = w * np.exp(-np.sum((x[:, None] - x[None, :]) ** 2, axis=-1))
        return -(p / p.sum(axis=1, keepdims=True)) @ x

    softmax = attention_velocity(PairAttention("softmax", -1.0, 2.0))
    found = [growth_by_search(velocity, 2.0, 3, starts=6) for velocity in (l2, softmax)]
    np.testing.assert_allclose(found, 2.0, rtol=0.01)  # V = -I, from below
    assert max(found) < 2.0


def test_pair_report_sums_noises():
    one = pair_report("overlap", [0.0, 1.0], 0.6, dim=4, mlp=False, private=0.7)
    np.testing.assert_allclose(one["mean"], [0.6, 0.6 * np.exp(-3 * 0.49)], atol=1e-7)
    both = pair_report("overlap", [1.0], 0.6, activation="gelu", dim=4, private=0.7, values=0.5, vector=0.3)
    assert both["mean"][0] != one["mean"][1]
    quantiles = pair_report("quantiles", [1.0], dim=4, levels=[0.5])
    assert list(quantiles) == ["observable", "levels", "times", "mean", "error"]
    with pytest.raises(UserError, match="noise"):
        pair_report("overlap", [1.0], mlp=False)
    with pytest.raises(UserError, match="private"):
        pair_report("overlap", [1.0], private=-1.0)
