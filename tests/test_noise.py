"""Every noise has the covariance and the law it claims, at its address and at its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks import LAW, NOISES, agrees, increments, many_keys, uniform_tokens
from synchronoise import MLP, DrawnMLP, GaussianField, InLawMLP, Kernel, SumNoise, mlp_noise
from synchronoise.errors import UserError
from synchronoise.noise import semidefinite_cholesky
from synchronoise.randomness import Role, role_key


def covariance_of(noise, x):
    """κ(Gram), the exact covariance over tokens of every increment here (THEORY §2)."""
    if isinstance(noise, SumNoise):
        return sum(covariance_of(part, x) for part in noise.parts)
    return noise.mlp.kernel()(np.clip(x @ x.T, -1, 1))


@pytest.mark.stat
@pytest.mark.parametrize("name", NOISES)
def test_increments_have_covariance_kappa(name):
    x = uniform_tokens(3, 5)
    x = np.concatenate([x, -x[:1], x[1:2]])  # an antipodal and an equal token
    draws = increments(NOISES[name], x, 20_000)
    exact = covariance_of(NOISES[name], x.astype(float))
    for i, j in [(0, 0), (0, 1), (1, 2), (0, 3), (1, 4)]:
        per_draw = (draws[:, i] * draws[:, j]).mean(axis=1)
        assert agrees(per_draw, exact[i, j], resolution=0.2 * exact[0, 0])
    wrong = (draws[:, 0] * draws[:, 0]).mean(axis=1) * 4  # a forgotten 1/√m at m = 4 alone does as much
    assert not agrees(wrong, exact[0, 0], resolution=0.6 * exact[0, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_takes_the_series_of_its_dtype(dtype, x64):
    """The float64 one is three times as long; the float32 one is no kernel in float64."""
    x = uniform_tokens(5, 3, dtype=dtype)
    covariance = np.asarray(GaussianField(LAW).covariance(jnp.asarray(x)))
    assert covariance.dtype == dtype
    evaluators = {name: LAW.kernel().evaluator(name) for name in ("float32", "float64")}
    off = ~np.eye(5, dtype=bool)
    overlaps = jnp.asarray(x) @ jnp.asarray(x).T
    for name, evaluator in evaluators.items():
        same = np.array_equal(np.asarray(evaluator(overlaps, jnp))[off], covariance[off])
        assert same == (name == dtype)


def test_the_drawn_mlp_is_the_formula(x64):
    """G(y) = m^{-1/2} W φ(d^{-1/2} U y + b_U) + b_W with the weights at their addresses, in NumPy (THEORY §1)."""
    x, key, noise = uniform_tokens(6, 5, dtype="float64"), many_keys(1)[0], DrawnMLP(LAW, 7)
    u = np.asarray(jax.random.normal(role_key(key, Role.HIDDEN), (7, 5)))
    b_u = 0.1 * np.asarray(jax.random.normal(role_key(key, Role.HIDDEN_BIAS), (7, 1)))[:, 0]
    out = np.asarray(jax.random.normal(role_key(key, Role.OUTPUT), (8, 5)))
    w, b_w = out[:7].T, 0.2 * out[7]

    def g(y, u, w):
        return w @ np.maximum(u @ y / np.sqrt(5) + b_u, 0) / np.sqrt(7) + b_w

    np.testing.assert_allclose(noise.increment(key, jnp.asarray(x)), [g(y, u, w) for y in x], atol=1e-14)
    # turning the weights turns the field: G_{U R', R W}(R y) = R G_{U, W}(y), so its law is rotation invariant
    r = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    b_w_kept, b_w = b_w, r @ b_w
    turned = [g(r @ y, u @ r.T, r @ w) for y in x]
    b_w = b_w_kept
    np.testing.assert_allclose(turned, [r @ g(y, u, w) for y in x], atol=1e-13)


@pytest.mark.stat
@pytest.mark.parametrize("m", [1, 4, 16])
def test_finite_width_is_not_gaussian_and_both_routes_agree(m):
    """E|G(x)|⁴ = d(d+2) E[S²], S = (1/m) Σ φ(z)² with z ~ N(0, q): for ReLU E S² = (q²/4)(1 + 5/m)."""
    d, x = 4, uniform_tokens(3, 4)
    law, q = MLP("relu", d), 1 / d
    exact = d * (d + 2) * q**2 / 4 * (1 + 5 / m)
    gaussian = d * (d + 2) * q**2 / 4
    for noise in (DrawnMLP(law, m), InLawMLP(law, m)):
        fourth = (increments(noise, x, 60_000)[:, 1] ** 2).sum(-1) ** 2
        assert agrees(fourth, exact, resolution=0.9 * (exact - gaussian))
        assert not agrees(fourth, gaussian, resolution=0.9 * (exact - gaussian))
    field = (increments(GaussianField(law), x, 60_000)[:, 1] ** 2).sum(-1) ** 2
    assert agrees(field, gaussian, resolution=0.3 * gaussian)


@pytest.mark.stat
def test_both_routes_have_the_same_joint_law():
    """A mixed moment of two tokens, E |G(x)|²|G(y)|², where only the joint law of the hidden layer enters."""
    x = uniform_tokens(3, 4, seed=5)
    mixed = []
    for noise in (DrawnMLP(MLP("tanh", 4, 0.3), 2), InLawMLP(MLP("tanh", 4, 0.3), 2)):
        draws = increments(noise, x, 60_000)
        mixed.append((draws[:, 0] ** 2).sum(-1) * (draws[:, 2] ** 2).sum(-1))
    gap, error = mixed[0].mean() - mixed[1].mean(), np.hypot(*(v.std() / np.sqrt(v.size) for v in mixed))
    assert 5 * error < 0.1 * mixed[0].mean()
    assert abs(gap) < 5 * error


@pytest.mark.parametrize("n", [2, 5, 9, 40])
@pytest.mark.parametrize("width", [1, 3, 64])
def test_in_law_factors_have_the_layers_gram_matrix(n, width, x64):
    """F Fᵀ = H Hᵀ/m + σ_W² 11ᵀ at every shape: fewer and more tokens than dimensions, than neurons."""
    noise, x = InLawMLP(LAW, width), jnp.asarray(uniform_tokens(n, 5, dtype="float64"))
    factors = jax.jit(jax.vmap(lambda key: noise.factor(key, x)))(many_keys(4000))
    assert factors.shape[-1] == min(n, width + 1)
    mean = np.einsum("kir,kjr->ij", factors, factors) / 4000
    exact = covariance_of(noise, np.asarray(x))
    # per-layer variance of an entry of F Fᵀ is at most (5/m) κ², so 5 SE of the mean is:
    assert np.abs(mean - exact).max() < 5 * np.sqrt(6 / width / 4000) * exact[0, 0] * 1.5


@pytest.mark.parametrize("law", [LAW, MLP("tanh", 5), MLP("linear", 5)])
@pytest.mark.parametrize("n", [1, 4, 40])
def test_the_field_factors_kappa_of_the_gram_matrix(law, n, x64):
    x = uniform_tokens(n, 5, dtype="float64")
    x = np.concatenate([x, x[:1], -x[:1], (x[:1] + 1e-9 * x[-1:]) / np.linalg.norm(x[:1] + 1e-9 * x[-1:])])
    factor = np.asarray(GaussianField(law).factor(many_keys(1)[0], jnp.asarray(x)))
    exact = Kernel(law.activation, 5, law.sigma_u, law.sigma_w)(np.clip(x @ x.T, -1, 1))
    np.testing.assert_allclose(factor @ factor.T, exact, atol=1e-7 * exact[0, 0])
    assert np.array_equal(factor, np.tril(factor))


@pytest.mark.parametrize("law", [MLP("relu", 5), MLP("sigmoid", 64), MLP("tanh", 8, 0.0, 1.0)], ids=repr)
@pytest.mark.parametrize("n", [2, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_field_moves_close_tokens_apart_down_to_its_floor(law, n, dtype, x64):
    """|F_i - F_j|² = 2 δ(ε) = κ'(1) r² at distance r (THEORY §2), from four times the floor; far below it is lost."""
    field, slope = GaussianField(law), law.kernel().dkappa_1

    def share(times: float) -> float:
        x = uniform_tokens(n, law.dim, dtype="float64")
        r = times * field.floor(dtype)
        aside = x[1] - (x[1] @ x[0]) * x[0]
        x[-1] = np.cos(r) * x[0] + np.sin(r) * aside / np.linalg.norm(aside)
        rows = np.asarray(field.factor(many_keys(1)[0], jnp.asarray(x, dtype)), float)
        return np.sum((rows[-1] - rows[0]) ** 2) / (slope * r**2)

    assert share(4.0) == pytest.approx(1, abs=0.2)
    if n == 2:
        assert share(1 / 8) < 0.5


def test_cholesky_of_any_rank(x64):
    rng = np.random.default_rng(0)
    for n, rank in ((6, 6), (6, 2), (12, 5), (3, 0)):
        a = rng.standard_normal((n, rank))
        k = a @ a.T
        factor = np.asarray(semidefinite_cholesky(jnp.asarray(k)))
        np.testing.assert_allclose(factor @ factor.T, k, atol=1e-7 * max(1, np.abs(k).max()))
        # beyond the rank a column is zero, or what half the digits leave of zero
        assert (np.abs(factor).sum(axis=0) > 1e-6).sum() == rank


@pytest.mark.parametrize("n", [33, 64, 100])
def test_cholesky_in_blocks(n, x64):
    """Against LAPACK; the first tokens have the same factor alone; a rank below n, equal tokens in other blocks."""
    rows = np.random.default_rng(n).standard_normal((n, 2 * n))
    k = rows @ rows.T / n
    factor = np.asarray(semidefinite_cholesky(jnp.asarray(k)))
    np.testing.assert_allclose(factor, np.linalg.cholesky(k), atol=1e-12)
    np.testing.assert_allclose(semidefinite_cholesky(jnp.asarray(k[:40, :40])), factor[:40, :40], atol=1e-13)
    low = np.concatenate([rows[:, :20][: n - 1], rows[:1, :20]])  # rank 20, and the last token is the first
    factor = np.asarray(semidefinite_cholesky(jnp.asarray(low @ low.T)))
    np.testing.assert_allclose(factor @ factor.T, low @ low.T, atol=1e-6)
    np.testing.assert_allclose(factor[-1], factor[0], atol=1e-6)
    assert np.isnan(np.asarray(jnp.linalg.cholesky(jnp.asarray(low @ low.T)))).any()  # what LAPACK makes of it


def test_the_route_is_chosen_by_the_number_of_normals():
    assert isinstance(mlp_noise(MLP("relu", 128), 2048, tokens=32), InLawMLP)
    assert isinstance(mlp_noise(MLP("relu", 4), 2048, tokens=64), DrawnMLP)
    assert isinstance(mlp_noise(MLP("relu", 4), float("inf"), tokens=64), GaussianField)


@pytest.mark.parametrize(
    "build",
    [
        lambda: MLP("relu", 1),
        lambda: MLP("relu", 4, -0.1),
        lambda: MLP("relu", 4, 0.0, float("nan")),
        lambda: MLP("rellu", 4),
        lambda: DrawnMLP(LAW, 0),
        lambda: InLawMLP(LAW, -3),
        lambda: mlp_noise(LAW, 2.5, 4),
        lambda: SumNoise(),
    ],
)
def test_impossible_noises_are_one_line(build):
    with pytest.raises(UserError) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_gradients_are_finite_at_merged_and_antipodal_tokens(x64):
    x = uniform_tokens(2, 5, dtype="float64")
    x = jnp.asarray(np.concatenate([x, x[:1], -x[:1]]))
    key = many_keys(1)[0]
    for name in ("drawn", "sum"):
        gradient = jax.grad(lambda y, noise=NOISES[name]: jnp.sum(noise.increment(key, y) ** 2))(x)
        assert np.isfinite(gradient).all(), name
