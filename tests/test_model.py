"""The layer map and its invariants (THEORY §1)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import synchronoise as sn
from checks import LAW, NOISES, many_keys, uniform_tokens
from synchronoise.errors import UserError

KEY = many_keys(1)[0]


def model_of(noise, attention=None, **options):
    return sn.Transformer(attention, noise, layers=10, horizon=1.0, **options)


def test_a_layer_is_the_formula(x64):
    x = uniform_tokens(6, 5, dtype="float64")
    attention, noise = sn.SoftmaxAttention(2.0, -0.5), sn.DrawnMLP(LAW, 7)
    after, seen = sn.step(KEY, jnp.asarray(x), model_of(noise, attention), 0.1, [sn.Energy()])
    y = x + 0.1 * np.asarray(attention(jnp.asarray(x)))
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    z = y + np.sqrt(0.1) * np.asarray(noise.increment(KEY, jnp.asarray(y)))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(after, z, atol=1e-14)
    assert seen["energy"] == pytest.approx(float(sn.energy(after, 1.0)))


def test_scalings_of_the_user(x64):
    x = jnp.asarray(uniform_tokens(4, 5, dtype="float64"))
    noise, attention = NOISES["drawn"], sn.SoftmaxAttention()
    given = model_of(noise, attention, alpha_1=lambda depth: 1.0 / depth, alpha_2=lambda depth: depth**-0.5)
    np.testing.assert_allclose(
        sn.step(KEY, x, given, 0.1)[0], sn.step(KEY, x, model_of(noise, attention), 0.1)[0], atol=1e-15
    )
    other = model_of(noise, attention, alpha_2=lambda depth: 1.0 / depth)
    assert np.abs(sn.step(KEY, x, other, 0.1)[0] - sn.step(KEY, x, given, 0.1)[0]).max() > 1e-3
    with pytest.raises(UserError, match="scalings"):
        other.limit()


@pytest.mark.parametrize("name", NOISES)
def test_tokens_stay_on_the_sphere_and_equal_tokens_equal(name, x64):
    x = uniform_tokens(5, 5, dtype="float64")
    x = jnp.asarray(np.concatenate([x, x[1:2], -x[:1], x[:1]]))
    model = model_of(NOISES[name], sn.SoftmaxAttention(3.0))
    run = jax.jit(
        lambda x: jax.lax.fori_loop(0, 200, lambda k, x: sn.step(jax.random.fold_in(KEY, k), x, model, 0.1)[0], x)
    )
    after = np.asarray(run(x))
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, atol=1e-12)
    assert np.array_equal(after[1], after[5])
    assert np.array_equal(after[0], after[7])
    assert not np.array_equal(after[0], after[1])


@pytest.mark.parametrize("name", [name for name, noise in NOISES.items() if not noise.in_law_only])
def test_permutations_act_pathwise_on_fields(name, x64):
    x = jnp.asarray(uniform_tokens(9, 5, dtype="float64"))
    order = np.random.default_rng(0).permutation(9)
    model = model_of(NOISES[name], sn.SoftmaxAttention(2.0))
    np.testing.assert_allclose(sn.step(KEY, x[order], model, 0.1)[0], sn.step(KEY, x, model, 0.1)[0][order], atol=1e-14)


@pytest.mark.parametrize("kind", [sn.SoftmaxAttention, sn.UnnormalisedAttention])
@pytest.mark.parametrize("beta", [0.0, 1.0, 8.0])
def test_the_energy_never_rises_without_noise(kind, beta, x64):
    scale = np.exp(-beta) if kind is sn.UnnormalisedAttention else 1.0
    model = sn.Transformer(kind(beta, scale), None, layers=400, horizon=20.0)
    run = sn.simulate(model, sn.Uniform(12, 3), replicas=4, observers=[sn.Energy(max(beta, 1e-3))], dtype="float64")
    energies = run["energy"].values
    assert (np.diff(energies, axis=1) <= 1e-15).all()
    assert energies[:, -1].mean() < energies[:, 0].mean()
    repelled = sn.Transformer(kind(beta, -scale), None, layers=400, horizon=20.0)
    up = sn.simulate(repelled, sn.Uniform(12, 3), replicas=4, observers=[sn.Energy(max(beta, 1e-3))], dtype="float64")
    assert (np.diff(up["energy"].values, axis=1) > 0).any()  # the same check would see a rise


def test_two_tokens_follow_tanh(x64):
    """N = 2, β = 0, ρ_0 = 0: ρ = tanh t (THEORY §7), to the order of the Euler step."""
    errors = []
    for layers in (400, 800):
        model = sn.Transformer(sn.SoftmaxAttention(0.0), None, layers=layers, horizon=2.0)
        run = sn.simulate(model, sn.Equiangular(2, 2), replicas=1, observers=[sn.MeanOverlap()], dtype="float64")
        errors.append(np.abs(run["mean_overlap"].values[0] - np.tanh(run["time"].values)).max())
    assert errors[0] < 2e-3
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


def test_the_limit_has_the_same_law_and_another_route():
    finite = sn.Transformer(sn.SoftmaxAttention(), sn.DrawnMLP(LAW, 64), layers=20, horizon=2.0)
    assert finite.limit().route == "Gaussian field, Cholesky factor"
    assert finite.limit(features=3, layers=50).route == "Gaussian field, 3 fresh features"
    assert finite.limit(layers=50).layers == 50
    assert finite.describe()["noise"]["mlp"]["activation"] == "relu"


@pytest.mark.parametrize(
    "options",
    [{"layers": 0}, {"horizon": -1.0}, {"horizon": float("inf")}, {"weights": [1.0, -1.0]}, {"weights": [0.0, 0.0]}],
)
def test_impossible_models_are_one_line(options):
    with pytest.raises(UserError) as caught:
        sn.Transformer(None, None, **options)
    assert "\n" not in str(caught.value)
