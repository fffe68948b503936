"""Harmonics obey the addition theorem; frozen fields have the covariance they say and sum over fine steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_chebyt, eval_legendre

from checks import uniform_tokens
from synchronoise import MLP, UserError
from synchronoise.banks import FeatureBank, HarmonicField, frozen_field
from synchronoise.convergence.depth import _sums
from synchronoise.harmonics import degrees, harmonics
from synchronoise.randomness import Role, address

POLYNOMIAL = {2: eval_chebyt, 3: eval_legendre}


@pytest.mark.parametrize("dim", [2, 3])
def test_addition_theorem(dim):
    x = uniform_tokens(7, dim, dtype="float64")
    y, degree = harmonics(x, 40), degrees(dim, 40)
    for n in range(41):
        columns = y[:, degree == n]
        expected = columns.shape[1] * POLYNOMIAL[dim](n, np.clip(x @ x.T, -1, 1))
        assert np.allclose(columns @ columns.T, expected, atol=1e-9)
        if n > 0:  # another degree is not mistaken for this one
            assert not np.allclose(columns @ columns.T, columns.shape[1] * POLYNOMIAL[dim](n - 1, x @ x.T), atol=0.1)


@pytest.mark.parametrize("dim", [2, 3])
def test_harmonics_are_orthonormal_over_the_sphere(dim):
    angle = 2 * np.pi * np.arange(24) / 24
    if dim == 2:
        x, weight = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(24, 1 / 24)
    else:
        z, half = np.polynomial.legendre.leggauss(12)
        flat = np.sqrt(1 - z**2)[:, None]
        parts = (flat * np.cos(angle), flat * np.sin(angle), np.broadcast_to(z[:, None], (12, 24)))
        x, weight = np.stack(parts, axis=-1).reshape(-1, 3), np.repeat(half / 2 / 24, 24)
    y = harmonics(x, 10)
    assert np.allclose(y.T @ (weight[:, None] * y), np.eye(y.shape[1]), atol=1e-12)


def test_harmonics_know_their_dimensions():
    with pytest.raises(UserError, match="2 or 3"):
        harmonics(np.eye(4), 2)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_a_harmonic_field_is_the_kernel_up_to_what_it_lacks(name, dim, x64):
    law = MLP(name, dim, 0.1, 0.2)
    kernel = law.kernel()
    x = uniform_tokens(6, dim, dtype="float64")
    overlaps = np.clip(x @ x.T, -1, 1)
    for degree, tolerance in ((24, 1e-3 * kernel.kappa_1), (1, None)):
        field = HarmonicField(law, degree)
        f = np.asarray(field.functions(jnp.asarray(x)))
        weights = kernel.gegenbauer_weights(degree + 1)
        series = sum(c * POLYNOMIAL[dim](n, overlaps) for n, c in enumerate(weights))
        assert np.allclose(f @ f.T, series, atol=1e-9)
        n = np.arange(degree + 1)
        slope = np.sum(weights * n * (n + dim - 2)) / (dim - 1)
        assert field.missing_slope == pytest.approx(1 - slope / kernel.dkappa_1, abs=1e-7)
        if tolerance is not None:
            assert np.abs(f @ f.T - kernel(overlaps)).max() < tolerance
            assert 0 <= field.missing_slope + 1e-9 < 0.03


def test_a_feature_bank_approaches_the_kernel(x64):
    law = MLP("gelu", 5, 0.3, 0.2)
    x = uniform_tokens(5, 5, dtype="float64")
    exact = law.kernel()(x @ x.T)
    deviation = []
    for size in (64, 64 * 64):
        f = np.asarray(FeatureBank(law, size).functions(jnp.asarray(x)))
        deviation.append(np.abs(f @ f.T - exact).max() / exact.max())
    assert deviation[1] < 0.05 < deviation[0]
    assert abs(FeatureBank(law, 64 * 64).missing_slope) < 0.03


@pytest.mark.parametrize("dim", [2, 5])
def test_a_coarse_increment_is_the_sum_of_the_fine_ones(dim, x64):
    field = frozen_field(MLP("tanh", dim))
    x = jnp.asarray(uniform_tokens(3, dim, dtype="float64"))
    keys = [address(5, 2, j, Role.START) for j in range(4)]
    fine = jnp.stack([jax.random.normal(jax.random.fold_in(k, int(Role.OUTPUT)), (field.rank, dim)) for k in keys])
    total = sum(field.increment(k, x) for k in keys)
    coarse = 2 * field.functions(x) @ _sums(fine, 1)[0]
    assert np.allclose(coarse, total, atol=1e-12)
    assert not np.allclose(2 * field.functions(x) @ fine[0], total, atol=1e-2)
