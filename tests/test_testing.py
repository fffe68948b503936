"""Every noise and attention of ours passes the conformance checks, together too; wrong ones do not."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import synchronoise as sn
from checks import LAW, NOISES, many_keys, uniform_tokens
from synchronoise import testing
from synchronoise.attention import block_heads
from synchronoise.model import step
from synchronoise.observables import OverlapHistogram

RNG = np.random.default_rng(5)
Q, K, V = RNG.standard_normal((2, 5)), RNG.standard_normal((2, 5)), RNG.standard_normal((5, 5))
ATTENTIONS = {
    "softmax": sn.SoftmaxAttention(2.0, -0.5),
    "unnormalised": sn.UnnormalisedAttention(1.0),
    "l2": sn.L2Attention(1.5),
    "sinkhorn": sn.SinkhornAttention(2.0),
    "causal": sn.CausalAttention(2.0),
    "multihead": sn.MultiHeadAttention(sn.SoftmaxAttention(1.0), sn.L2Attention(query=Q, key=K, value=V)),
    "blocks": block_heads(2.0, 1.0, dim=6, heads=3),
    **{f"{kind.__name__} by matrices": kind(query=Q, key=K, value=V) for kind in
       (sn.SoftmaxAttention, sn.UnnormalisedAttention, sn.L2Attention, sn.SinkhornAttention, sn.CausalAttention)},
    "random": sn.RandomAttention(sn.SinkhornAttention, 2.0, dim=6, heads=2).draw(jax.random.key(0)),
}  # fmt: skip


def kappa(x):
    return LAW.kernel()(np.clip(x @ x.T, -1, 1))


def outputs(attention):
    def covariance(x):
        m = np.asarray(attention(jnp.asarray(x)), float)
        return 0.3**2 * m @ m.T

    return covariance


ALL_NOISES = {
    **{name: (noise, None if "sum" in name else kappa) for name, noise in NOISES.items()},
    "private": (sn.PrivateNoise(0.3), lambda x: 0.09 * np.eye(len(x))),
    "vector": (sn.VectorNoise(0.3), lambda x: np.full((len(x), len(x)), 0.09)),
    "scaled": (sn.ScaledNoise(sn.VectorNoise(0.6), -0.5), lambda x: np.full((len(x), len(x)), 0.09)),
    **{f"values of {name}": (sn.ValueNoise(ATTENTIONS[name], 0.3), outputs(ATTENTIONS[name]))
       for name in ("softmax", "sinkhorn", "SoftmaxAttention by matrices")},
    "mlp and values": (sn.SumNoise(NOISES["drawn"], sn.ValueNoise(sn.SoftmaxAttention(2.0), 0.3)),
                       lambda x: kappa(x) + outputs(sn.SoftmaxAttention(2.0))(x)),
    "mlp and private": (sn.SumNoise(NOISES["drawn"], sn.PrivateNoise(0.3)), None),
}  # fmt: skip


@pytest.mark.stat
@pytest.mark.parametrize(  # sum_in_law is a sum as well
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "sum")) for name in ALL_NOISES]
)
def test_our_noises_conform(name, x64):
    noise, covariance = ALL_NOISES[name]
    testing.check_noise(noise, dim=5, covariance=covariance)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_our_attentions_conform(name, x64):
    testing.check_attention(ATTENTIONS[name])


@pytest.mark.parametrize(
    "observable",
    [sn.Energy(), sn.MeanOverlap(), sn.OverlapQuantiles(), OverlapHistogram(), sn.LogDistance(), sn.LargestDistance()],
    ids=lambda observable: observable.name,
)
def test_our_observables_conform(observable):
    testing.check_observable(observable)


@pytest.mark.parametrize("attention", ["softmax", "unnormalised", "l2", "sinkhorn", "causal", "multihead"])
@pytest.mark.parametrize("name", ALL_NOISES)
def test_every_noise_with_every_attention(name, attention, x64):
    """A layer of both: unit rows, equal tokens equal where both allow it, later tokens invisible to causal ones."""
    noise, mix, key = ALL_NOISES[name][0], ATTENTIONS[attention], many_keys(1)[0]
    x = jnp.asarray(uniform_tokens(4, 5, dtype="float64"))
    x = jnp.concatenate([x, x[1:2], -x[:1]])
    model = sn.Transformer(mix, noise, layers=10, horizon=1.0)
    after = step(key, x, model, 0.1)[0]
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, atol=1e-14)
    assert model.merging == (noise.common and mix.symmetric)
    assert bool((after[1] == after[4]).all()) == model.merging
    if attention == "causal" and name in ("drawn", "vector", "field"):
        other = step(key, x.at[5].set(x[2]), model, 0.1)[0]
        assert (other[:5] == after[:5]).all()
        assert (other[5] != after[5]).any()


class Wrong(sn.Noise):
    """A noise with one fault."""

    fault: str

    @property
    def common(self):
        return True

    @property
    def in_law_only(self):
        return self.fault in ("says it is no field", "private")

    @property
    def route(self):
        return "wrong"

    def floor(self, dtype):
        return 1e-15

    def factor(self, key, x):
        if self.fault == "private":
            return 0.3 * jnp.eye(x.shape[0], dtype=x.dtype)
        if self.fault == "order":
            return 0.3 * jnp.where(jnp.arange(x.shape[0])[:, None] > 2, 1.0, 0.5)
        if self.fault == "interacting":
            return 0.3 * x.mean(axis=0) * jnp.ones_like(x)
        if self.fault == "kink":
            return jnp.sqrt(jnp.maximum(1 + x @ testing._tokens(5)[:1].T, 0))  # an infinite slope at the antipode
        return jnp.full((x.shape[0], 1), 0.6 if self.fault == "twice" else 0.3, x.dtype)

    def field(self, key):
        if self.fault == "says it is no field":
            return lambda points: self.increment(key, points)
        return super().field(key)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("twice", "is not h C_ij"), ("private", "common noise, but"), ("order", "the order of the tokens"),
        ("interacting", "depends on the others"), ("says it is no field", "in_law_only, but gives"),
        ("kink", "gradients are not finite"),
    ],
)  # fmt: skip
def test_a_wrong_noise_is_told_what_is_wrong(fault, says, x64):
    formula = (lambda x: np.full((len(x), len(x)), 0.09)) if fault == "twice" else None
    testing.check_noise(sn.VectorNoise(0.3), dim=5, covariance=lambda x: np.full((len(x), len(x)), 0.09))
    with pytest.raises(AssertionError, match=says):
        testing.check_noise(Wrong(fault), dim=5, covariance=formula)


class Biased(sn.MatrixAttention):
    """An attention that looks at the first token only, and forgets weights, but says that it is symmetric."""

    fault: str
    bilinear = 1.0
    value = 1.0

    @property
    def symmetric(self):
        return True

    def mixing(self, x, at, weights):
        if self.fault == "order":
            return jnp.ones((at.shape[0], 1)) * jnp.eye(1, x.shape[0])
        if self.fault == "turned":
            return jax.nn.softmax(at[:, :1] * x[:, 0])
        return jax.nn.softmax(self.logits(x, at))


@pytest.mark.parametrize(
    ("fault", "says"), [("order", "symmetric"), ("turned", "turning the tokens"), ("weights", "weights k_j/n")]
)
def test_a_wrong_attention_is_told_what_is_wrong(fault, says, x64):
    with pytest.raises(AssertionError, match=says):
        testing.check_attention(Biased(fault))


def test_a_wrong_observable_is_told_what_is_wrong():
    class Rows(sn.Observable):
        name, long_name, reference, dims = "rows", "rows", "none", ()

        def __call__(self, x, weights):
            return x

    with pytest.raises(AssertionError, match="2 axes, but dims"):
        testing.check_observable(Rows())


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 45
    exec(compile(code, "extending.md", "exec"), {"__name__": "example"})
