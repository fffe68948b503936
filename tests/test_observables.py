import jax.numpy as jnp
import numpy as np
import pytest

from checks import uniform_tokens
from synchronoise import Energy, LargestDistance, LogDistance, MeanOverlap, OverlapHistogram, OverlapQuantiles, energy
from synchronoise.observables import MOST_PAIRED, distinct_share


def test_energy_by_its_definition(x64):
    x = uniform_tokens(6, 4, dtype="float64")
    weights = np.random.default_rng(0).dirichlet(np.ones(6))
    for beta in (0.3, 1.0, 9.0, -0.3, -9.0, 0.0):
        direct = 0.5 * weights @ (np.exp(beta) - np.exp(beta * x @ x.T)) @ weights
        assert energy(jnp.asarray(x), beta, jnp.asarray(weights)) == pytest.approx(direct, rel=1e-12)
    uniform = 0.5 * np.mean(np.exp(1.0) - np.exp(x @ x.T))
    assert energy(jnp.asarray(x), 1.0) == pytest.approx(uniform, rel=1e-12)


def test_energy_of_nearly_merged_tokens_keeps_its_digits(x64):
    angle = 1e-10
    x = jnp.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    # two ordered pairs of weight 1/4: E = ½·½·(e^β - e^{βρ}) = ¼ e^β β angle²/2
    assert energy(x, 2.0) == pytest.approx(0.25 * np.exp(2.0) * 2.0 * angle**2 / 2, rel=1e-9)
    assert energy(jnp.tile(x[:1], (3, 1)), 2.0) == 0


@pytest.mark.parametrize("beta", [-88.0, -50.0, 50.0, 88.0])
def test_energy_overflows_no_sooner_than_its_value(beta):
    """In float32, antipodal tokens: ¼·2·½(e^β - e^{-β})·... = sinh(β)/2, e^88 being the last that fits."""
    assert energy(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), beta) == pytest.approx(np.sinh(beta) / 2, rel=1e-4)


def test_overlap_statistics(x64):
    x = uniform_tokens(5, 3, dtype="float64")
    overlaps = (x @ x.T)[np.triu_indices(5, 1)]
    tokens = jnp.asarray(x)
    assert MeanOverlap()(tokens, None) == pytest.approx(overlaps.mean(), rel=1e-12)
    assert LargestDistance()(tokens, None) == pytest.approx(1 - overlaps.min(), rel=1e-12)
    assert LogDistance()(tokens, None) == pytest.approx(np.log(1 - overlaps).mean(), rel=1e-12)
    quantiles = OverlapQuantiles((0.0, 0.5, 1.0))
    np.testing.assert_allclose(quantiles(tokens, None), np.quantile(overlaps, [0, 0.5, 1]), rtol=1e-12)
    histogram = OverlapHistogram(10)
    expected = np.histogram(overlaps, 10, (-1, 1))[0] / 10
    np.testing.assert_allclose(histogram(tokens, None), expected, atol=1e-15)
    np.testing.assert_allclose(histogram.coords["overlap"], np.linspace(-0.9, 0.9, 10))


def test_of_many_tokens_the_first_ones_are_paired(x64):
    many = MOST_PAIRED + 1000
    x = uniform_tokens(many, 3, dtype="float64")
    first = x[:MOST_PAIRED]
    above = np.triu_indices(MOST_PAIRED, 1)
    overlaps = (first @ first.T)[above]
    pairs = 0.5 * np.mean(np.e - np.exp(overlaps))
    tokens = jnp.asarray(x)
    assert Energy()(tokens, None) == pytest.approx(distinct_share(many) * pairs, rel=1e-12)
    assert Energy()(tokens, None) != pytest.approx((1 - 1 / many) * pairs, rel=1e-4)
    assert MeanOverlap()(tokens, None) == pytest.approx(overlaps.mean(), abs=1e-12)
    weights = np.random.default_rng(0).dirichlet(np.ones(many))
    weights[1::2] = 0
    share = weights[:MOST_PAIRED] / weights[:MOST_PAIRED].sum()
    weighted = 0.5 * share @ (np.e - np.exp(first @ first.T)) @ share
    assert Energy()(tokens, jnp.asarray(weights)) == pytest.approx(weighted, rel=1e-12)
    weights[:MOST_PAIRED] = 0
    alike = float(Energy()(tokens[:MOST_PAIRED], None))
    assert Energy()(tokens, jnp.asarray(weights)) == pytest.approx(alike, rel=1e-12)


def test_histogram_holds_the_ends_of_the_range():
    x = jnp.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    values = OverlapHistogram(4)(x, None)
    np.testing.assert_allclose(values, [2 / 3, 0, 0, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize(
    "observer", [Energy(), MeanOverlap(), OverlapQuantiles(), OverlapHistogram(), LargestDistance()]
)
def test_one_token_is_synchronised(observer):
    value = np.asarray(observer(jnp.array([[0.6, 0.8]]), None))
    assert np.isfinite(value).all()
