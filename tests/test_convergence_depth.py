"""Convergence in depth: rates at grid times and at all times, and scalings that must be seen not to converge."""

import numpy as np
import pytest

from synchronoise import MLP, SoftmaxAttention, Transformer, Uniform, UserError
from synchronoise.banks import HarmonicField
from synchronoise.convergence.depth import depth_errors
from synchronoise.convergence.fit import grid_fit, logarithm, slope

LEVELS = (4, 8, 16, 32)


def model(attention=True, **scalings):
    return Transformer(
        SoftmaxAttention(beta=1.0) if attention else None, HarmonicField(MLP("tanh", 2), 6), horizon=1.0, **scalings
    )


@pytest.mark.stat
def test_depth_converges_at_its_rates(x64):
    errors = depth_errors(model(), Uniform(2, 2), LEVELS, replicas=512)
    for name in ("grid", "successive"):
        rate = slope(np.array(LEVELS), getattr(errors, name))
        assert rate.low - 0.1 < -1 < rate.high + 0.1
        assert rate.high - rate.low < 0.35
    growth = logarithm(np.array(LEVELS), errors.all_times)
    assert growth.value > 5 * growth.se
    # At grid times there is no logarithm: the same test must say so.
    flat = logarithm(np.array(LEVELS), errors.successive)
    assert flat.value < 5 * flat.se


@pytest.mark.stat
@pytest.mark.parametrize(
    "wrong",
    [{"alpha_2": lambda depth: 1.0 / depth}, {"alpha_1": lambda depth: 1.0 / depth**0.5}],
    ids=["MLP by T/L", "attention by sqrt(T/L)"],
)
def test_wrong_scalings_do_not_converge(wrong, x64):
    errors = depth_errors(model(**wrong), Uniform(2, 2), LEVELS, replicas=64)
    assert slope(np.array(LEVELS), errors.grid).low > -0.7
    right = depth_errors(model(), Uniform(2, 2), LEVELS, replicas=64)
    assert errors.grid.mean(axis=0)[-1] > 20 * right.grid.mean(axis=0)[-1]


def test_numbers_belong_to_their_replica_and_level(x64):
    few = depth_errors(model(), Uniform(2, 2), (4, 8), replicas=3, seed=4)
    assert few.grid.shape == few.successive.shape == few.all_times.shape == (3, 2)
    more = depth_errors(model(), Uniform(2, 2), (4, 8), replicas=5, seed=4)
    assert np.array_equal(few.grid, more.grid[:3])


def test_what_depth_refuses(x64):
    for levels in [(8,), (8, 8), (16, 8), (8, 20), (0, 8)]:
        with pytest.raises(UserError, match="levels"):
            depth_errors(model(), Uniform(2, 2), levels)


def test_depth_refuses_32_bits():
    with pytest.raises(UserError, match="jax_enable_x64"):
        depth_errors(model(), Uniform(2, 2), (4, 8))


def test_fits_recover_their_law_and_their_uncertainty():
    rng = np.random.default_rng(1)
    levels = np.array([8, 16, 32, 64])
    inside = 0
    for _ in range(100):
        errors = rng.exponential(size=(200, 1)) * rng.exponential(size=(200, 4)) / levels
        rate = slope(levels, errors)
        inside += rate.low <= -1 <= rate.high
    assert 85 <= inside <= 100  # a 95 % interval
    widths = np.array([16.0, 64.0, np.inf])
    exact = grid_fit(levels, widths, 3 / levels[:, None] + 5 / widths)
    assert (exact.a, exact.b, exact.r_squared) == pytest.approx((3, 5, 1))
    assert grid_fit(levels, widths, 3 / levels[:, None] ** 0.3 + 5 / widths**2).r_squared < 0.98
