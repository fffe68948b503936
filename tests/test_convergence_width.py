"""The coupling in width and in depth: optimal, with both marginals right; the rates; and the twins that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import sqrtm

from checks import uniform_tokens
from synchronoise import (
    MLP,
    DrawnMLP,
    Energy,
    Equiangular,
    GaussianField,
    SoftmaxAttention,
    Transformer,
    Uniform,
    UserError,
    simulate,
)
from synchronoise.convergence.coupling import coupled, optimal
from synchronoise.convergence.fit import grid_fit, slope
from synchronoise.noise import Noise, semidefinite_cholesky
from synchronoise.randomness import replica_keys, step_key

LAW = MLP("relu", 3)


class Private(Noise):
    """Independent noise of the right one-token speed for each token."""

    mlp: MLP
    common = False
    in_law_only = True
    route = "private"

    def factor(self, key, x):
        return jnp.sqrt(LAW.kernel().kappa_1) * jnp.eye(x.shape[0], dtype=x.dtype)

    def floor(self, dtype):
        return 0.0


class ForgottenRoot(Private):
    """φ without its 1/√m."""

    drawn: DrawnMLP
    common = True

    def factor(self, key, x):
        return self.drawn.width**0.5 * self.drawn.factor(key, x)


def model(noise, layers=8, attention=None):
    return Transformer(attention, noise, layers=layers, horizon=1.0)


def fields(width, count, couple):
    """``count`` pairs (MLP increment, coupled field) at four fixed tokens, one coordinate each."""
    x = jnp.asarray(uniform_tokens(4, 3, dtype="float64"))
    target = semidefinite_cholesky(GaussianField(LAW).covariance(x))

    def one(key):
        factor = DrawnMLP(LAW, width).factor(step_key(key, 0), x)
        xi, eta = jax.random.normal(step_key(key, 1), (factor.shape[1],)), jax.random.normal(step_key(key, 2), (4,))
        return factor @ xi, couple(factor, target, xi, eta)

    pairs = jax.jit(jax.vmap(one))(replica_keys(0, count))
    return np.asarray(target @ target.T), *(np.asarray(pair) for pair in pairs)


def ours(factor, target, xi, eta):
    p, q = optimal(factor, target)
    return target @ (p @ (q.T @ xi - p.T @ eta) + eta)


def pseudo_inverse(factor, target, xi, eta):
    """The textbook map S^{-1/2}(S^{1/2} K S^{1/2})^{1/2} S^{-1/2} with S = F Fᵀ singular."""

    def root(matrix, power):
        values, vectors = jnp.linalg.eigh(matrix)
        kept = values > 1e-10 * values[-1]
        return vectors @ jnp.diag(jnp.where(kept, jnp.where(kept, values, 1) ** power, 0)) @ vectors.T

    s, k = factor @ factor.T, target @ target.T
    half, inverse = root(s, 0.5), root(s, -0.5)
    return inverse @ root(half @ k @ half, 0.5) @ inverse @ factor @ xi


def has_covariance(samples, expected):
    products = samples[:, :, None] * samples[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(samples))
    assert 5 * error.max() < 0.1 * expected.max()
    return bool((np.abs(products.mean(axis=0) - expected) <= 5 * error).all())


@pytest.mark.stat
@pytest.mark.parametrize("width", [2, 4, 32])
def test_both_fields_have_the_covariance_of_the_limit(width, x64):
    expected, of_mlp, of_limit = fields(width, 40_000, ours)
    assert has_covariance(of_mlp, expected)
    assert has_covariance(of_limit, expected)
    kurtosis = np.mean(of_limit**4, axis=0) / np.mean(of_limit**2, axis=0) ** 2
    assert np.allclose(kurtosis, 3, atol=0.2)  # Gaussian, as the field of few neurons is not
    if width == 4:
        assert (np.mean(of_mlp**4, axis=0) / np.mean(of_mlp**2, axis=0) ** 2).min() > 4


@pytest.mark.stat
def test_a_pseudo_inverse_gives_the_limit_the_wrong_law(x64):
    expected, _, of_limit = fields(4, 40_000, pseudo_inverse)
    assert not has_covariance(of_limit, expected)


def test_the_coupling_attains_the_wasserstein_distance(x64):
    x = jnp.asarray(uniform_tokens(4, 3, dtype="float64"))
    target = semidefinite_cholesky(GaussianField(LAW).covariance(x))
    for width in (2, 7):
        factor = DrawnMLP(LAW, width).factor(step_key(replica_keys(3, 1)[0], 0), x)
        k, s = np.asarray(target @ target.T), np.asarray(factor @ factor.T)
        exact = np.trace(k) + np.trace(s) - 2 * np.trace(sqrtm(sqrtm(k) @ s @ sqrtm(k))).real
        p, q = optimal(factor, target)
        attained = np.trace(k) + np.trace(s) - 2 * float(jnp.trace(target @ p @ q.T @ factor.T))
        assert attained == pytest.approx(exact, abs=1e-6)
        assert np.trace(k) + np.trace(s) > 1.2 * exact  # independent fields are farther


@pytest.mark.stat
@pytest.mark.parametrize("refine", [1, 4])
def test_both_halves_keep_their_laws(refine, x64):
    """The finite half against the finite model, the limit half against the Euler scheme at its own step."""
    runs = coupled(model(DrawnMLP(LAW, 2)), Uniform(3, 3), refine=refine, replicas=2000)
    halves = {"finite": (DrawnMLP(LAW, 2), 8), "limit": (GaussianField(LAW), 8 * refine)}
    for name, (noise, layers) in halves.items():
        alone = simulate(model(noise, layers), Uniform(3, 3), replicas=2000, seed=9, every=layers, dtype="float64")
        expected = alone["energy"].values[:, -1]
        x = getattr(runs, name)
        energy = np.asarray(jax.vmap(lambda y: Energy()(y, None))(jnp.asarray(x)))
        error = np.hypot(energy.std(), expected.std()) / np.sqrt(2000)
        assert 5 * error < 0.08 * expected.mean()
        assert abs(energy.mean() - expected.mean()) <= 5 * error


WIDTHS = np.array([16, 48, 144])


def width_errors(noise_of_width, replicas=256, widths=WIDTHS, **how):
    return np.stack(
        [coupled(model(noise_of_width(int(m)), **how), Uniform(2, 3), replicas=replicas).error for m in widths], axis=1
    )


@pytest.mark.stat
def test_width_converges_at_its_rate_and_far_below_independent_noise(x64):
    errors = width_errors(lambda m: DrawnMLP(LAW, m), attention=SoftmaxAttention())
    rate = slope(WIDTHS, errors)
    assert -1.2 < rate.value < -0.8
    assert rate.high - rate.low < 0.4
    runs = coupled(model(DrawnMLP(LAW, 48), attention=SoftmaxAttention()), Uniform(2, 3), replicas=64)
    assert runs.independent.mean() > 5 * runs.error.mean()


@pytest.mark.stat
@pytest.mark.parametrize(
    "twin", [lambda m: Private(LAW), lambda m: ForgottenRoot(LAW, DrawnMLP(LAW, m))], ids=["private", "root m"]
)
def test_wrong_noises_do_not_converge(twin, x64):
    ends = WIDTHS[[0, -1]]
    errors = width_errors(twin, replicas=64, widths=ends)
    assert slope(ends, errors).low > -0.5
    assert errors.mean(axis=0)[-1] > 0.02


def test_merged_tokens_stay_merged_in_both_halves(x64):
    runs = coupled(model(DrawnMLP(LAW, 1), attention=SoftmaxAttention()), Equiangular(3, 3, 1.0), replicas=2)
    for x in (runs.finite, runs.limit):
        assert np.isfinite(x).all()
        assert np.abs(x - x[:, :1]).max() < 1e-7


def test_infinite_width_leaves_the_error_of_the_depth(x64):
    exact = coupled(model(GaussianField(LAW)), Uniform(2, 3), replicas=64)
    # The square of the floor of a Cholesky factor, where two tokens are nearly collinear; rounding elsewhere.
    assert exact.error.max() < 1e-15
    assert np.median(exact.error) < 1e-28
    deeper = [coupled(model(GaussianField(LAW), layers), Uniform(2, 3), refine=8, replicas=64) for layers in (4, 16)]
    assert 2 < deeper[0].error.mean() / deeper[1].error.mean() < 8


@pytest.mark.stat
@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 16])
def test_the_limits_commute(tokens, x64):
    layers, widths = np.array([8, 16, 32]), np.array([32, 128, 512, np.inf])
    law = MLP("relu", 5)
    error = np.zeros((3, 4))
    for j, m in enumerate(widths):
        noise = GaussianField(law) if np.isinf(m) else DrawnMLP(law, int(m))
        for i, depth in enumerate(layers.tolist()):
            finite = model(noise, depth, SoftmaxAttention())
            runs = coupled(finite, Uniform(tokens, 5), refine=256 // depth, replicas=96)
            error[i, j] = runs.error.mean()
    fit = grid_fit(layers, widths, error)
    assert fit.r_squared > 0.98
    # A grid that forgets one of the two is not explained.
    assert grid_fit(layers, widths, np.broadcast_to(error[:1], error.shape)).r_squared < 0.98


def test_a_noise_without_a_law_has_no_limit(x64):
    with pytest.raises(UserError, match="noise"):
        coupled(Transformer(None, None, layers=2, horizon=1.0), Uniform(2, 3))
