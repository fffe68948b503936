"""The sharp rate of the mean pair energy against the late slope of the solver, and its closed forms."""

import numpy as np
import pytest

from synchronoise.kernel import Kernel
from synchronoise.theory import critical_moment, lambda_bar
from synchronoise.theory.kolmogorov import pair_expectation
from synchronoise.theory.rates import sharp_rate
from synchronoise.theory.two_point import PairAttention, PairLaw, field_noise, kernel_law, private_noise

# name, d, σ_U, σ_W, a late time, the power of t, the part that decides
SETTINGS = [
    ("relu", 5, 0.0, 0.0, 900.0, 1.5, "essential with power"),  # p* < 1, λ̄ > 0
    ("tanh", 5, 0.4, 0.2, 160.0, 1.5, "essential with power"),  # p* < 1, λ̄ < 0
    pytest.param("relu", 16, 0.0, 0.0, 2500.0, 1.5, "essential with power", marks=pytest.mark.slow),
    ("relu", 64, 0.1, 0.1, 25.0, 0.0, "essential"),  # p* > 1
    ("gelu", 32, 0.2, 0.05, 50.0, 0.0, "essential"),
    ("relu", 2, 0.0, 0.0, 300.0, 0.0, "isolated"),  # d = 2
    pytest.param("gelu", 2, 0.0, 0.0, 400.0, 0.0, "isolated", marks=pytest.mark.slow),
    ("silu", 5, 0.0, 0.0, 2000.0, 0.0, "isolated"),
    ("tanh", 5, 0.0, 0.03, 300.0, 0.0, "isolated"),  # a trap near ρ = -1
]


@pytest.mark.parametrize(("name", "dim", "sigma_u", "sigma_w", "late", "power", "part"), SETTINGS)
def test_sharp_rate_is_the_late_slope(name, dim, sigma_u, sigma_w, late, power, part):
    law = kernel_law(Kernel(name, dim, sigma_u, sigma_w))
    sharp = sharp_rate(law)
    times = np.array([late / 1.2, late])
    energy = pair_expectation(law, "energy", times)
    assert (energy.error < 1e-3 * energy.mean).all()
    slope = (np.diff(np.log(energy.mean))[0] + power * np.log(1.2)) / np.diff(times)[0]
    assert sharp.part == part
    assert abs(sharp.rate / slope - 1) < 0.01
    if part == "isolated":
        assert abs(sharp.essential / slope - 1) > 0.01


@pytest.mark.parametrize("dim", [3, 5, 64])
def test_unbiased_relu(dim):
    kernel = Kernel("relu", dim)
    assert lambda_bar(kernel) > 0
    assert abs(sharp_rate(kernel_law(kernel)).rate + kernel.kappa_1 / 4) < 1e-10


def test_unbiased_relu_on_the_circle_is_slower():
    kernel = Kernel("relu", 2)
    sharp = sharp_rate(kernel_law(kernel))
    assert sharp.part == "isolated"
    assert -kernel.kappa_1 / 4 < sharp.rate < -0.7 * kernel.kappa_1 / 4


def test_where_the_mean_energy_does_not_decay():
    assert sharp_rate(kernel_law(Kernel("tanh", 5))).part == "none"  # antipodes attract
    assert sharp_rate(kernel_law(Kernel("sin:8", 16, 0.1, 0.2))).rate == 0.0  # λ_1 > 0
    law = PairLaw(5, (field_noise(Kernel("relu", 5)), private_noise(0.1)))
    assert sharp_rate(law).rate == 0.0  # private noise keeps tokens apart


def test_above_critical_the_rate_is_lambda_bar():
    kernel = Kernel("sigmoid", 64)
    assert critical_moment(kernel) > 1
    assert abs(sharp_rate(kernel_law(kernel)).rate / lambda_bar(kernel) - 1) < 1e-10


def test_attention_shifts_the_rate():
    kernel = Kernel("relu", 64, 0.1, 0.1)
    law = PairLaw(64, (field_noise(kernel),), PairAttention("softmax", 0.3))
    assert abs(sharp_rate(law).rate - (lambda_bar(kernel) - 0.6)) < 1e-9


def test_attention_opens_the_antipodes_of_an_odd_field():
    law = PairLaw(5, (field_noise(Kernel("tanh", 5)),), PairAttention("softmax", 1.0))
    assert [end.kind for end in law.ends] == ["attracting", "repelling"]
    sharp, times = sharp_rate(law), np.array([500.0, 600.0])
    energy = pair_expectation(law, "energy", times, 0.0).mean
    slope = (np.diff(np.log(energy))[0] + 1.5 * np.log(1.2)) / 100
    assert abs(sharp.rate / slope - 1) < 0.02
    assert not abs(sharp.rate / (-(law.ends[0].exponent ** 2) / (2 * law.ends[0].variance)) - 1) < 0.01


def test_uniform_tokens_linger_near_repelling_antipodes():
    law = PairLaw(5, (field_noise(Kernel("tanh", 5)),), PairAttention("softmax", 5.0, 0.5))
    away, (_, antipodes), times = sharp_rate(law).rate, law.ends, np.array([1.8, 2.2])
    lingering = -4 * antipodes.exponent + 16 * antipodes.variance / 2
    for rho0, rate in ((0.0, away), (None, lingering)):
        energy = pair_expectation(law, "energy", times, rho0, beta=0.5).mean
        assert abs(np.diff(np.log(energy))[0] / 0.4 / rate - 1) < 0.005
    assert abs(lingering / away - 1) > 0.1
