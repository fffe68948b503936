"""In law depth alone suffices: every width has the two-token value as its limit, at rate 1/L; and the failing twins."""

import jax.numpy as jnp
import numpy as np
import pytest

from checks import agrees
from synchronoise import MLP, DrawnMLP, GaussianField, Transformer, Uniform, simulate
from synchronoise.convergence.fit import slope
from synchronoise.convergence.law import paired_energies, rotation
from synchronoise.theory import pair_expectation

LAW = MLP("relu", 16, 0.3, 0.3)
EXACT = float(pair_expectation(LAW.kernel(), "energy", [1.0]).mean[0])


def energies(width, layers, replicas):
    noise = GaussianField(LAW) if width is None else DrawnMLP(LAW, width)
    return paired_energies(Transformer(None, noise, layers=layers, horizon=1.0), Uniform(2, 16), replicas=replicas)


@pytest.mark.parametrize("seed", range(4))
def test_the_polar_factor_is_the_best_rotation(seed):
    matrix = np.random.default_rng(seed).standard_normal((2, 2)).astype("float32")
    u, _, v = np.linalg.svd(matrix)
    assert np.allclose(rotation(jnp.asarray(matrix)), u @ v, atol=1e-5)
    assert np.allclose(rotation(jnp.zeros((2, 2))), np.eye(2))


@pytest.mark.stat
def test_each_level_has_its_own_law():
    """Both levels of a pair against the model alone, at a width and a depth far from the limit."""
    pair = energies(1, 8, 8_000)
    for layers, found in ((8, pair.coarse), (16, pair.fine)):
        model = Transformer(None, DrawnMLP(LAW, 1), layers=layers, horizon=1.0)
        alone = 2 * simulate(model, Uniform(2, 16), replicas=8_000, seed=5, every=layers)["energy"].values[:, -1]
        error = np.hypot(found.std(), alone.std()) / np.sqrt(8_000)
        assert abs(found.mean() - alone.mean()) <= 5 * error
        assert abs(found.mean() - EXACT) > 10 * error


@pytest.mark.stat
@pytest.mark.parametrize("width", [pytest.param(16, marks=pytest.mark.slow), None])
def test_the_error_in_law_is_of_order_one_over_depth(width):
    levels = np.array([16, 32, 64])
    pairs = [energies(width, int(layers), 8_192) for layers in levels]
    differences = np.stack([pair.coarse - pair.fine for pair in pairs], axis=1)
    rate = slope(levels, differences)
    assert -1.25 < rate.value < -0.85
    # Richardson: 2 E(2L) - E(L) has the two-token value up to 1/L²; one level alone has not.
    assert agrees(2 * pairs[-1].fine - pairs[-1].coarse, EXACT, resolution=0.03 * EXACT * 2)
    assert not agrees(pairs[0].coarse, EXACT, resolution=0.03 * EXACT * 2)
