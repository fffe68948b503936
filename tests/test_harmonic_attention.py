"""Attention in harmonics is the dense one, up to rounding; where digits are lost it is made densely."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_chebyt, eval_legendre

from checks import uniform_tokens
from synchronoise import (
    HarmonicAttention,
    SoftmaxAttention,
    Transformer,
    Uniform,
    UnnormalisedAttention,
    UserError,
    simulate,
)
from synchronoise.harmonic_attention import DenseTokens, lost_below
from synchronoise.harmonics import harmonics
from synchronoise.runs import prepare, produce, provenance
from synchronoise.spectral import exponential_degree, exponential_weights, moments, series
from synchronoise.testing import check_attention, check_observable

DENSE = {"softmax": SoftmaxAttention, "unnormalised": UnnormalisedAttention}


@pytest.mark.parametrize("dim", [2, 3])
def test_moments_and_series_are_sums_over_harmonics(dim, x64):
    x, rng = uniform_tokens(5000, dim, dtype="float64"), np.random.default_rng(1)
    y, f = harmonics(x, 12), rng.standard_normal((5000, 3))
    a = rng.standard_normal((y.shape[1], 2))
    assert np.allclose(moments(jnp.asarray(x), jnp.asarray(f), 12), y.T @ f, atol=1e-10)
    assert np.allclose(series(jnp.asarray(x), jnp.asarray(a), 12), y @ a, atol=1e-11)
    assert not np.allclose(series(jnp.asarray(x), jnp.asarray(a[::-1]), 12), y @ a, atol=1)


@pytest.mark.parametrize(("dim", "polynomial"), [(2, eval_chebyt), (3, eval_legendre)])
@pytest.mark.parametrize("beta", [0.0, 1.0, -7.0, 20.0, 100.0])
def test_the_weights_of_the_exponential(dim, polynomial, beta):
    u = np.linspace(-1, 1, 41)

    def gap(degree):
        weights = exponential_weights(beta, dim, degree)
        whole = sum(c * polynomial(n, u) for n, c in enumerate(weights))
        return np.abs(whole - np.exp(beta * u - abs(beta))).max()

    degree = exponential_degree(beta, dim, "float64")
    assert gap(degree) < 2e-15 * (1 + degree)
    if beta:
        assert gap(exponential_degree(beta, dim, "float32")) < 1e-7
        assert gap(degree // 2) > 1e-9  # it takes that many


@pytest.mark.parametrize(("kind", "dim"), [("softmax", 2), ("unnormalised", 3)])
def test_it_is_an_attention(kind, dim):
    check_attention(HarmonicAttention(2.0, 0.5, dim=dim, kind=kind))


@pytest.mark.parametrize(("kind", "dim", "beta"), [
    ("softmax", 2, 5.0), pytest.param("softmax", 2, -5.0, marks=pytest.mark.slow),
    ("softmax", 3, 20.0), ("unnormalised", 2, 20.0), ("unnormalised", 3, 1.0)
])  # fmt: skip
def test_it_equals_the_dense_sum(kind, dim, beta, x64):
    n = 4096
    uniform = uniform_tokens(n, dim, dtype="float64")
    bunched = np.concatenate([uniform[:10], uniform[10:] * 0.02 + uniform[10]])  # ten of them alone
    bunched /= np.linalg.norm(bunched, axis=1, keepdims=True)
    weights = jnp.asarray(np.arange(1, n + 1) * 2.0 / (n * (n + 1.0)))
    value = np.array([[0.5, -1.0, 0.3], [0.2, 0.7, 0.0], [0.1, 0.0, 1.0]])[:dim, :dim]
    fast, dense = HarmonicAttention(beta, value, dim=dim, kind=kind), DENSE[kind](beta, value=value)
    fast, dense = eqx.filter_jit(fast), eqx.filter_jit(dense)
    scale = np.exp(abs(beta)) if kind == "unnormalised" else 1.0
    at = jnp.asarray(uniform_tokens(50, dim, seed=9, dtype="float64"))
    for arguments in ((uniform,), (bunched,), (uniform, weights), (uniform, None, at)):
        arguments = [None if part is None else jnp.asarray(part) for part in arguments]
        assert np.abs(fast(*arguments) - dense(*arguments)).max() <= 1e-10 * scale
    other = HarmonicAttention(beta * (1 + 1e-6), value, dim=dim, kind=kind)(jnp.asarray(uniform))
    assert np.abs(other - dense(jnp.asarray(uniform))).max() > 1e-10 * scale  # a small change of β is seen


def test_where_digits_are_lost_it_sums_densely(x64):
    """Tokens of weight 1e-9 opposite to all others: their denominators are e^{-2β} of the largest kernel."""
    n, beta = 1000, 12.0
    x = jnp.asarray(np.concatenate([uniform_tokens(n - 5, 2, dtype="float64") * 0.05 + [1, 0], [[-1.0, 0.0]] * 5]))
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    weights = jnp.full(n, 1 / (n - 5)).at[-5:].set(1e-9)
    fast = HarmonicAttention(beta, dim=2)
    dense = SoftmaxAttention(beta)(x, weights)
    assert int(fast.lost(x, weights).sum()) == int(DenseTokens(fast)(x, weights)) == 5
    assert jnp.abs(eqx.filter_jit(fast)(x, weights) - dense).max() < 1e-10
    sums = fast._sums(x, weights, x)
    unmended = jnp.abs(sums[:, 1:] / sums[:, :1] - dense).max(axis=1)
    assert unmended[-5:].max() > 1e-8 > 1e-10 > unmended[:-5].max()
    # With weights of 1/n every token sees itself, and nothing is lost.
    assert int(fast.lost(x).sum()) == 0
    assert lost_below("float64") < 1 / 4096


def test_what_harmonics_cannot_do():
    for values, words in (
        ({"dim": 4}, "dim 2 or 3.*--method dense"),
        ({"dim": 2, "kind": "l2"}, "softmax or unnormalised"),
        ({"dim": 2, "beta": 1e3}, "at most 200"),
    ):
        with pytest.raises(UserError, match=words):
            HarmonicAttention(**values)
    check_observable(DenseTokens(HarmonicAttention(1.0, dim=3)), dim=3)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "beta", "most"), [(2, 5.0, 1.0), (3, 1.0, 8.0), (3, 20.0, 60.0)])
def test_a_million_tokens(dim, beta, most):
    """Seconds a step in float32, growing at most like n^1.1, in memory O(n)."""
    attention = HarmonicAttention(beta, dim=dim, dtype="float32")
    call = jax.jit(lambda x: attention(x))
    seconds = []
    for n in (10_000, 100_000, 1_000_000):
        x = jnp.asarray(uniform_tokens(n, dim))
        jax.block_until_ready(call(x))
        times = []
        for _ in range(5):
            begin = time.process_time()  # of this process alone, on a machine that others use
            jax.block_until_ready(call(x))
            times.append(time.process_time() - begin)
        seconds.append(min(times))
    assert seconds[-1] < most
    assert np.log10(seconds[-1] / seconds[0]) / 2 <= 1.1
    memory = call.lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4e8


def test_tokens_follow_the_same_path(x64):
    start = Uniform(tokens=300, dim=3)
    x = {}
    for name, attention in {"dense": SoftmaxAttention(4.0), "fast": HarmonicAttention(4.0, dim=3)}.items():
        run = simulate(Transformer(attention, None, layers=40, horizon=4.0), start, replicas=1, observers=(),
                       save_tokens=True, dtype="float64")  # fmt: skip
        x[name] = run["tokens"].values
    assert np.abs(x["dense"] - x["fast"]).max() < 1e-9


def test_the_method_of_a_run(tmp_path):
    small = {"dim": 2, "tokens": 8, "layers": 4, "horizon": 1.0, "replicas": 2, "noise": "none", "beta": 3.0}
    ends = {}
    for method in ("dense", "harmonic"):
        job = prepare({**small, "method": method})
        assert ("harmonics" in provenance(job)["route"]) == (method == "harmonic")
        ends[method] = produce(job, tmp_path / f"{method}.nc")["energy_end"]
    assert ends["dense"] == pytest.approx(ends["harmonic"], rel=1e-4)
    assert "harmonics" in provenance(prepare({**small, "tokens": 5000}))["route"]
    assert "harmonics" not in provenance(prepare({**small, "tokens": 5000, "attention": "l2"}))["route"]
    for wrong, words in (
        ({"attention": "causal"}, "fixed softmax or unnormalised"),
        ({"redraw": 2}, "redrawn"),
        ({"dim": 4}, "dim 2 or 3"),
    ):
        with pytest.raises(UserError, match=words):
            prepare({**small, "method": "harmonic", **wrong})
