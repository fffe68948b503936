"""E f(ρ_t): reference values, a second solver, closed forms, ends, attention and other noises."""

import csv
from math import asin, pi
from pathlib import Path

import numpy as np
import pytest
from polynomial_oracle import OracleRefuses, oracle
from scipy.integrate import solve_ivp
from scipy.special import hyp0f1

from synchronoise.errors import RunError, UserError
from synchronoise.kernel import Kernel
from synchronoise.theory import lambda_1, lambda_bar, lambda_bar_prime
from synchronoise.theory.kolmogorov import PairAccuracyWarning, pair_expectation
from synchronoise.theory.rates import absorption_probability, sharp_rate, stationary_overlap
from synchronoise.theory.two_point import (
    PairAttention,
    PairLaw,
    field_noise,
    gaps,
    kernel_law,
    private_noise,
    value_noise,
    vector_noise,
)

LINES = (Path(__file__).parents[1] / "reference" / "exact.csv").read_text().splitlines()
ROWS = list(csv.DictReader(line for line in LINES if not line.startswith("#")))


def pair_energy(rho, beta=1.0):
    return 0.5 * (np.exp(beta) - np.exp(beta * rho))


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r["quantity"] == "pair_energy_mean"], ids=lambda r: r["parameters"].replace(" ", "_")
)
def test_reference_pair_energies(row):
    words = row["parameters"].split()
    value = dict(word.split("=") for word in words if "=" in word)
    kernel = Kernel(words[0], int(value["d"]), float(value["sigma_u"]), float(value["sigma_w"]))
    tolerance = float(row["relative_tolerance"])
    mean = pair_expectation(kernel, "energy", [float(value["t"])], beta=float(value["beta"])).mean[0]
    assert abs(mean / float(row["value"]) - 1) < tolerance
    if float(value["t"]) > 0:
        later = pair_expectation(kernel, "energy", [1.001 * float(value["t"])]).mean[0]
        assert abs(later / float(row["value"]) - 1) > tolerance


TWO_SOLVERS = [
    ("relu", 2, 0.0, 0.0, 1.0, 0.3),
    ("relu", 5, 0.1, 0.1, 20.0, 0.0),
    ("tanh", 3, 0.4, 0.2, 2.0, -0.5),
    ("gelu", 16, 0.2, 0.1, 1.0, 0.2),
    ("silu", 64, 0.0, 0.0, 5.0, 0.0),
    ("elu", 32, 0.1, 0.0, 3.0, 0.5),
    ("sigmoid", 128, 0.0, 0.0, 0.02, 0.0),
    ("tanh", 5, 0.0, 0.05, 5.0, -0.9),
    ("relu", 128, 0.0, 0.0, 50.0, 0.0),
    ("leaky_relu:0.2", 10, 0.0, 0.05, 10.0, 0.5),
    ("softplus", 4, 0.0, 0.0, 8.0, 0.0),
    ("gelu", 768, 0.1, 0.1, 0.1, 0.3),
    ("tanh", 4096, 0.02, 0.02, 0.3, 0.1),
]


@pytest.mark.parametrize(("name", "dim", "sigma_u", "sigma_w", "t", "rho0"), TWO_SOLVERS)
def test_two_independent_solvers_agree(name, dim, sigma_u, sigma_w, t, rho0):
    kernel = Kernel(name, dim, sigma_u, sigma_w)
    exact = oracle(kernel, pair_energy, t, rho0)
    assert abs(pair_expectation(kernel, "energy", [t], rho0).mean[0] - exact) < 1e-6
    assert abs(pair_expectation(kernel, pair_energy, [t], rho0).mean[0] - exact) < 1e-6
    assert abs(pair_expectation(kernel, "energy", [1.01 * t], rho0).mean[0] - exact) > 1e-6


def test_the_oracle_refuses_a_trap_and_a_boundary_layer():
    with pytest.raises(OracleRefuses):
        oracle(Kernel("tanh", 5, 1e-6, 1e-6), pair_energy, 5.0, -0.99)
    with pytest.raises(OracleRefuses):
        oracle(Kernel("relu", 5), pair_energy, 200.0, 0.0)


def test_the_chain_says_when_it_is_not_accurate():
    with pytest.warns(PairAccuracyWarning, match="accurate to about"):
        result = pair_expectation(Kernel("relu", 16), lambda rho: 1.0 * (rho > 0.123), [0.5], 0.0)
    exact = pair_expectation(Kernel("relu", 16), "exceedance", [0.5], 0.0, threshold=0.123)
    assert abs(result.mean[0] - exact.mean[0]) < 10 * result.error[0]
    assert exact.error[0] < 1e-7


@pytest.mark.parametrize("rho0", [-0.3, 0.5, 0.8])
def test_linear_absorption(rho0):
    kernel = Kernel("linear", 4)
    exact = 0.5 + asin(rho0) / pi
    assert abs(absorption_probability(kernel_law(kernel), rho0) - exact) < 1e-6
    # arcsin ρ is a martingale at all times
    angle = pair_expectation(kernel, lambda rho: np.arcsin(np.clip(rho, -1, 1)), [3.0], rho0)
    assert abs(angle.mean[0] - asin(rho0)) < 1e-6
    assert abs(absorption_probability(kernel_law(Kernel("tanh", 4)), rho0) - exact) > 1e-6


def test_absorption_of_uniform_tokens_is_even():
    assert abs(absorption_probability(kernel_law(Kernel("tanh", 6))) - 0.5) < 1e-9
    assert absorption_probability(kernel_law(Kernel("relu", 6))) == 1.0
    with pytest.raises(UserError, match="no end"):
        absorption_probability(PairLaw(5, (private_noise(1.0),)))


def test_absorption_at_ends_that_barely_attract():
    # most of the scale function lies beyond any grid: P = ½ + S(0, y_0) / (2 S(0, ∞))
    law = kernel_law(Kernel("sin:4.4874", 64))
    y, end = np.linspace(0.0, 60.0, 60_001), law.ends[1]
    assert end.kind == "attracting"
    assert abs(end.exponent) < 1e-3 * end.variance
    drift, variance = law.drift_and_variance(y)
    slope = -2 * drift / variance
    density = np.exp(np.append(0.0, np.cumsum(0.5e-3 * (slope[1:] + slope[:-1]))))
    scale = np.append(0.0, np.cumsum(0.5e-3 * (density[1:] + density[:-1])))
    beyond = density[-1] * end.variance / (2 * abs(end.exponent))
    exact = np.interp(np.arctanh(0.4), y, scale) / (scale[-1] + beyond) / 2
    found = absorption_probability(law, 0.4) - 0.5
    assert abs(found / exact - 1) < 1e-5
    assert abs(found / (exact * (1 + beyond / scale[-1])) - 1) > 0.1


def test_stationary_mass_beyond_the_grid():
    # an end that barely repels holds nearly all of the law: E ρ -> 1 as λ_1 falls to 0
    means = [stationary_overlap(kernel_law(Kernel(f"sin:{w}", 64, 0.0, 1e-4))).mean for w in (4.4876, 4.492)]
    assert means[0] > 0.999 > means[1] > 0.9
    hardly = stationary_overlap(kernel_law(Kernel("sin:4.487532688967447", 64)))  # λ_1 is about 1e-10
    assert abs(hardly.distance2 - 2) < 1e-4
    np.testing.assert_allclose(hardly.cumulative, 0.5, atol=1e-4)
    attracted = absorption_probability(kernel_law(Kernel("sin:4.487532688767447", 64)), 0.4)
    assert abs(attracted - 0.5) < 1e-4


def test_one_token_decorrelates_like_brownian_motion():
    # private noise of variance κ(1): E ρ_t = ρ_0 e^{-(d-1) σ² t}
    law = PairLaw(4, (private_noise(0.7),))
    mean = pair_expectation(law, "overlap", [0.0, 0.5, 2.0], 0.6).mean
    np.testing.assert_allclose(mean, 0.6 * np.exp(-3 * 0.49 * np.array([0.0, 0.5, 2.0])), atol=1e-7)


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_one_vector_has_rate_minus_half_d_minus_1(dim):
    law = PairLaw(dim, (vector_noise(1.0),))
    same, opposite = law.ends
    assert abs(same.exponent + (dim - 1) / 2) < 1e-12
    assert opposite.kind == ("reflecting" if dim == 2 else "entrance")
    times = np.array([15.0, 20.0])
    slope = np.diff(pair_expectation(law, "log_distance", times).mean)[0] / 5
    assert abs(slope + (dim - 1) / 2) < 1e-4


@pytest.mark.parametrize("dim", [5, 8, 20])
def test_random_values_attract_antipodes_beyond_a_threshold(dim):
    threshold = 0.5 * np.arccosh(dim - 2)
    for beta, kind in ((threshold - 1e-6, "repelling"), (threshold + 1e-6, "attracting")):
        same, opposite = PairLaw(dim, (value_noise(beta),)).ends
        assert opposite.kind == kind
        # log(1+ρ) = 2 log distance + const drifts at (d-3) - (d-1) tanh² β
        assert abs(2 * opposite.exponent - (dim - 3) + (dim - 1) * np.tanh(beta) ** 2) < 1e-9
        assert abs(2 * same.exponent + (dim - 1)) < 1e-12
    if dim == 8:
        assert abs(threshold - 1.2389) < 1e-4


def test_ends_of_the_field():
    for name, dim, sigma in (("relu", 5, 0.1), ("sin:4.6", 64, 0.0), ("tanh", 5, 1e-6)):
        kernel = Kernel(name, dim, sigma, sigma)
        same, opposite = kernel_law(kernel).ends
        assert abs(same.exponent - lambda_1(kernel)) < 1e-11
        assert abs(same.variance - kernel.kappa_1 - kernel.dkappa_1) < 1e-11
        assert opposite.kind == (same.kind if kernel.odd else "entrance")


def test_drift_and_variance_are_those_of_the_overlap():
    kernel, y = Kernel("gelu", 6, 0.2, 0.1), np.linspace(-2.5, 2.5, 11)
    law = PairLaw(6, (field_noise(kernel), private_noise(0.3), vector_noise(0.2)), PairAttention("softmax", 0.7, 2.0))
    rho = -np.tanh(y)
    diagonal, cross = kernel.kappa_1 + 0.09 + 0.04, kernel(rho) + 0.04
    b = cross * (4 + rho**2) - 5 * diagonal * rho
    b += 2 * 0.7 * (1 - rho**2) * np.exp(2 * rho) / (np.exp(2) + np.exp(2 * rho))
    a = 2 * (1 - rho**2) * (diagonal - rho * cross)
    drift, variance = law.drift_and_variance(y)
    np.testing.assert_allclose(variance, a / (1 - rho**2) ** 2, rtol=1e-10)
    np.testing.assert_allclose(drift, -b / (1 - rho**2) - rho * a / (1 - rho**2) ** 2, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "pull"),
    [
        ("softmax", 0.3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("softmax", 1.0), ("softmax", -0.2))),
        pytest.param("unnormalised", 0.3, marks=pytest.mark.slow),
    ],
)
def test_attention_near_synchrony(kind, pull):
    kernel = Kernel("relu", 64, 0.1, 0.1)
    noise, bar = (field_noise(kernel),), lambda_bar(kernel)
    scale = pull if kind == "softmax" else pull / np.e  # the pull at synchrony is a, or a e^β
    slopes = []
    for a in (0.0, scale):
        law = PairLaw(64, noise, PairAttention(kind, a))
        times = np.array([16.0, 20.0]) / abs(bar - 2 * pull if a else bar)
        logs = pair_expectation(law, "log_distance", times, 0.5).mean
        energies = pair_expectation(law, "energy", times, 0.5).mean
        slopes.append(np.array([np.diff(logs)[0], np.diff(np.log(energies))[0]]) / np.diff(times))
    change = slopes[1] - slopes[0]
    assert abs(change[0] + pull) < 2e-3 * abs(pull)
    assert abs(change[1] + 2 * pull) < 2e-3 * abs(2 * pull)


@pytest.mark.parametrize(
    ("kind", "strength"), [("softmax", lambda r: 2 / (np.exp(1 - r) + 1)), ("unnormalised", np.exp)]
)
def test_attention_moves_two_tokens_as_their_equation_says(kind, strength):
    # the noise is negligible: ρ' = a (1-ρ²) e^{ρ} times 1 or 2/(e + e^ρ), THEORY §7 at N = 2
    law = PairLaw(3, (vector_noise(1e-7),), PairAttention(kind, 0.7))
    flow = solve_ivp(lambda t, r: 0.7 * (1 - r**2) * strength(r), (0, 1), [0.1], rtol=1e-10, atol=1e-12)
    assert abs(pair_expectation(law, "overlap", [1.0], 0.1).mean[0] - flow.y[0, -1]) < 1e-6


def test_quantiles_and_exceedance_invert_each_other():
    kernel = Kernel("silu", 8, 0.1)
    quantiles = pair_expectation(kernel, "quantiles", [1.0, 4.0], levels=[0.2, 0.5, 0.9]).mean
    assert quantiles.shape == (2, 3)
    assert (np.diff(quantiles, axis=1) > 0).all()
    for level, rho in zip((0.2, 0.5, 0.9), quantiles[1], strict=True):
        above = pair_expectation(kernel, "exceedance", [4.0], threshold=float(rho)).mean[0]
        assert abs(above - (1 - level)) < 1e-6


@pytest.mark.parametrize(("name", "dim", "sigma", "power"), [("sigmoid", 64, 0.0, 0.0), ("relu", 5, 0.1, 1.5)])
def test_energies_keep_their_digits_however_small(name, dim, sigma, power):
    law = kernel_law(Kernel(name, dim, sigma, sigma))
    rate = sharp_rate(law).rate
    times = np.array([40.0, 80.0, 160.0, 240.0]) / -rate
    energy = pair_expectation(law, "energy", times)
    assert energy.mean[-1] < 1e-100
    relative = energy.error / energy.mean
    assert (relative < [1e-6, 1e-6, 1e-4, 1e-2]).all()
    # what is left of log E - (rate t - power log t) tends to a constant, like 1/t where there is a power
    rest = np.log(energy.mean) - rate * times + power * np.log(times)
    assert (np.abs(np.diff(rest)) < relative[1:] + (1e-6 if power == 0 else 0.2)).all()
    alone = pair_expectation(law, "energy", times[1:2])
    assert abs(alone.mean[0] - energy.mean[1]) < 5 * (alone.error[0] + energy.error[1])


def test_log_distances_beyond_the_grid_are_not_trusted():
    kernel = Kernel("relu", 5, 0.1, 0.1)
    with pytest.warns(PairAccuracyWarning, match="accurate to about"):
        far = pair_expectation(kernel, "log_distance", [1000.0, 1e4], 0.3)
    assert far.error[0] < 1e-6
    assert far.error[1] > abs(far.mean[1] - lambda_1(kernel) * 1e4)


def test_a_barely_attracting_end_is_not_trusted_to_keep_what_it_gets():
    law = kernel_law(Kernel("sin:4.45", 64))
    assert law.ends[0].kind == law.ends[1].kind == "attracting"
    with pytest.warns(PairAccuracyWarning, match="accurate to about"):
        result = pair_expectation(law, "overlap", [1e6], 0.3)
    # the chance to come back from the last state of the grid, e^{-2 |μ| y / s} there and back
    end = law.ends[0]
    assert result.error[0] > 0.5 * np.exp(-4 * 290 * abs(end.exponent) / end.variance)


def test_uniform_start_moments():
    for dim in (2, 3, 10, 4096):
        kernel = Kernel("relu", dim)
        assert abs(pair_expectation(kernel, lambda rho: rho**2, [0.0]).mean[0] - 1 / dim) < 1e-8
        energy = 0.5 * (np.exp(2.0) - hyp0f1(dim / 2, 1.0))  # E e^{βρ} = 0F1(d/2, β²/4)
        assert abs(pair_expectation(kernel, "energy", [0.0], beta=2.0).mean[0] - energy) < 1e-7


def test_starts_at_the_ends():
    odd, tilted = Kernel("tanh", 5), Kernel("tanh", 5, 0.0, 0.2)
    assert pair_expectation(odd, "overlap", [3.0], 1.0).mean[0] == pytest.approx(1.0, abs=1e-12)
    assert pair_expectation(odd, "overlap", [3.0], -1.0).mean[0] == pytest.approx(-1.0, abs=1e-12)
    near = pair_expectation(tilted, "overlap", [3.0], -1.0 + 1e-9).mean[0]
    assert pair_expectation(tilted, "overlap", [3.0], -1.0).mean[0] == pytest.approx(near, abs=1e-6)
    assert near > -0.99


def test_theorem_1_4_is_never_violated():
    times = np.array([0.0, 0.1, 0.5, 2.0, 10.0, 40.0])
    for name, dim, sigma, beta in (("relu", 10, 0.2, 1.0), ("gelu", 32, 0.1, 4.0), ("tanh", 5, 0.0, 0.5)):
        kernel = Kernel(name, dim, sigma, sigma)
        energy = pair_expectation(kernel, "energy", times, beta=beta).mean
        bound = energy[0] * np.exp(lambda_bar_prime(kernel, beta) * times)
        assert (energy <= bound * (1 + 1e-6)).all()


def test_stationary_overlap_where_tokens_do_not_merge():
    kernel = Kernel("sin:8", 16, 0.1, 0.2)
    assert lambda_1(kernel) > 0
    stationary = stationary_overlap(kernel_law(kernel))
    late = pair_expectation(kernel, "overlap", [400.0]).mean[0]
    assert abs(stationary.mean - late) < 1e-6
    area = np.sum(0.5 * (stationary.density[1:] + stationary.density[:-1]) * np.diff(stationary.overlap))
    assert abs(area - 1) < 1e-3
    above = pair_expectation(kernel, "exceedance", [400.0], threshold=0.5).mean[0]
    assert abs(1 - np.interp(0.5, stationary.overlap, stationary.cumulative) - above) < 1e-4
    assert stationary_overlap(kernel_law(Kernel("relu", 5))) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"observable": "overlop"}, "did you mean 'overlap'"),
        ({"times": [-1.0]}, "times"),
        ({"rho0": 1.5}, "rho0"),
        ({"observable": "quantiles", "levels": [1.0]}, "levels"),
        ({"observable": "exceedance", "threshold": 1.0}, "threshold"),
    ],
)
def test_bad_input_is_one_line(change, says):
    arguments = {"observable": "overlap", "times": [1.0]} | change
    with pytest.raises(UserError, match=says):
        pair_expectation(Kernel("relu", 4), **arguments)


def test_what_the_solver_cannot_do_is_refused():
    law = PairLaw(64, (field_noise(Kernel("relu", 64)),), PairAttention("unnormalised", -1e9, 250.0))
    with pytest.raises(RunError, match="out of the solver's reach"):
        pair_expectation(law, "overlap", [1.0])


def test_unknown_pair_attention():
    with pytest.raises(UserError, match="softmax"):
        PairAttention("sinkhorn")


def test_gaps_are_relatively_accurate():
    epsilon, eta = gaps(np.array([-40.0, 40.0]))
    np.testing.assert_allclose(epsilon[0], 2 * np.exp(-80.0), rtol=1e-14)
    np.testing.assert_allclose(eta[1], 2 * np.exp(-80.0), rtol=1e-14)
