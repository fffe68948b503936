import jax.numpy as jnp
import numpy as np
import pytest

from checks import uniform_tokens
from synchronoise import SoftmaxAttention, UnnormalisedAttention
from synchronoise.errors import UserError

RNG = np.random.default_rng(3)
Q, K, V = (RNG.standard_normal((2, 5)), RNG.standard_normal((2, 5)), RNG.standard_normal((5, 5)))


def by_loops(kind, x, weights, query, key, value):
    """THEORY §1 written out, one token at a time."""
    n = len(x)
    out = np.zeros_like(x)
    for i in range(n):
        e = np.array([np.exp((query @ x[i]) @ (key @ x[j])) for j in range(n)]) * weights
        shares = e / e.sum() if kind is SoftmaxAttention else e
        for j in range(n):
            out[i] += shares[j] * (value @ x[j])
    return out


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention])
@pytest.mark.parametrize("weighted", [False, True])
def test_against_loops(kind, weighted, x64):
    x = uniform_tokens(6, 5, dtype="float64")
    weights = RNG.dirichlet(np.ones(6)) if weighted else np.full(6, 1 / 6)
    given = jnp.asarray(weights) if weighted else None
    general = kind(query=Q, key=K, value=V)(jnp.asarray(x), given)
    np.testing.assert_allclose(general, by_loops(kind, x, weights, Q, K, V), rtol=1e-12)
    assert np.abs(general - by_loops(kind, x, weights, K, Q, V)).max() > 1e-3
    assert np.abs(general - by_loops(kind, x, weights, Q, K, V.T)).max() > 1e-3
    scalar = kind(beta=1.7, scale=-0.5)(jnp.asarray(x), given)
    root = np.sqrt(1.7) * np.eye(5)
    np.testing.assert_allclose(scalar, by_loops(kind, x, weights, root, root, -0.5 * np.eye(5)), rtol=1e-12)


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention])
def test_weights_stand_for_repeated_tokens(kind, x64):
    x = jnp.asarray(uniform_tokens(3, 4, dtype="float64"))
    repeated = x[jnp.array([0, 0, 0, 1, 2, 2])]
    weighted = kind(2.0)(x, jnp.array([3.0, 1.0, 2.0]) / 6)
    np.testing.assert_allclose(kind(2.0)(repeated)[jnp.array([0, 3, 4])], weighted, rtol=1e-13)


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention])
def test_equivariance(kind, x64):
    x = jnp.asarray(uniform_tokens(7, 4, dtype="float64"))
    order = RNG.permutation(7)
    rotation = np.linalg.qr(RNG.standard_normal((4, 4)))[0]
    attention = kind(beta=3.0, scale=0.7)
    np.testing.assert_allclose(attention(x[order]), attention(x)[order], atol=1e-14)
    np.testing.assert_allclose(attention(x @ rotation), attention(x) @ rotation, atol=1e-14)


def test_row_stochastic_attention_keeps_equal_tokens(x64):
    x = jnp.tile(jnp.asarray(uniform_tokens(1, 6, dtype="float64")), (5, 1))
    np.testing.assert_allclose(SoftmaxAttention(4.0)(x), x, atol=1e-15)
    np.testing.assert_allclose(UnnormalisedAttention(4.0)(x), np.exp(4.0) * x, rtol=1e-14)


def test_other_points_see_the_same_attention(x64):
    x = jnp.asarray(uniform_tokens(6, 4, dtype="float64"))
    attention = SoftmaxAttention(2.0)
    np.testing.assert_allclose(attention(x, at=x[2:4]), attention(x)[2:4], atol=1e-15)


def test_softmax_does_not_overflow():
    x = jnp.asarray(uniform_tokens(5, 3))
    assert np.isfinite(SoftmaxAttention(beta=1e4)(x)).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"beta": np.nan},
        {"scale": np.inf},
        {"query": Q},
        {"value": np.ones((2, 3))},
        {"query": np.ones((2, 3)), "key": np.ones((2, 4))},
    ],
)
def test_bad_parameters(bad):
    with pytest.raises(UserError):
        SoftmaxAttention(**bad)
