import jax.numpy as jnp
import numpy as np
import pytest

import synchronoise as sn
from checks import uniform_tokens
from synchronoise import SoftmaxAttention, UnnormalisedAttention, attention
from synchronoise.attention import (
    CausalAttention,
    L2Attention,
    MultiHeadAttention,
    RandomAttention,
    SinkhornAttention,
    block_heads,
)
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


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention, L2Attention])
def test_blocks_of_rows_are_the_whole(kind, monkeypatch, x64):
    x, weights = jnp.asarray(uniform_tokens(23, 5, dtype="float64")), jnp.arange(1.0, 24) / 276
    whole = kind(2.0, -0.5)(x, weights)
    monkeypatch.setattr(attention, "BLOCK", 23 * 4)  # blocks of four rows, and three left over
    np.testing.assert_allclose(kind(2.0, -0.5)(x, weights), whole, atol=1e-15)
    assert kind.rowwise
    assert not CausalAttention.rowwise


@pytest.mark.parametrize("beta", [-30.0, -5.0, 5.0, 30.0, 31.0])
def test_softmax_with_and_without_the_maximum_of_a_row(beta):
    """In float32 at both sides of the switch, against float64; merged, antipodal and far tokens among them."""
    x = uniform_tokens(8, 3)
    x = np.concatenate([x, -x[:1], x[:1]])
    logits = beta * x.astype(float) @ x.T.astype(float)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    exact = share @ x / share.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(SoftmaxAttention(beta)(jnp.asarray(x)), exact, atol=abs(beta) * 4e-7)


def test_l2_attention_is_its_formula(x64):
    x, weights = uniform_tokens(6, 5, dtype="float64"), RNG.dirichlet(np.ones(6))
    shares = weights * np.exp(-(((x @ Q.T)[:, None] - (x @ K.T)[None]) ** 2).sum(-1))
    exact = shares / shares.sum(axis=1, keepdims=True) @ x @ V.T
    attention = L2Attention(query=Q, key=K, value=V)
    np.testing.assert_allclose(attention(jnp.asarray(x), jnp.asarray(weights)), exact, rtol=1e-12)
    softmax = SoftmaxAttention(query=2 * Q, key=K, value=V)(jnp.asarray(x), jnp.asarray(weights))
    assert np.abs(softmax - exact).max() > 1e-3  # the keys' lengths count


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parameters", [{"beta": 4.0}, {"beta": -2.0}, {"query": Q, "key": K}], ids=str)
def test_sinkhorn_rows_and_columns_sum_to_one(parameters, weighted, x64):
    x = jnp.asarray(uniform_tokens(12, 5, dtype="float64"))
    weights = jnp.asarray(RNG.dirichlet(np.ones(12))) if weighted else None
    w = np.full(12, 1 / 12) if weights is None else np.asarray(weights)
    for kind, small in ((SinkhornAttention, True), (SoftmaxAttention, False)):
        a = np.asarray(kind(**parameters).mixing(x, x, weights))
        np.testing.assert_allclose(a.sum(axis=1), 1, atol=1e-12)
        assert (np.abs(w @ a / w - 1).max() < 1e-10) == small


def test_one_head_is_single_head_bit_for_bit():
    x = jnp.asarray(uniform_tokens(7, 6))
    head = SoftmaxAttention(2.0, -0.5)
    assert (MultiHeadAttention(head)(x) == head(x)).all()
    assert (block_heads(2.0, -0.5, dim=6, heads=1)(x) == head(x)).all()
    assert (block_heads(2.0, -0.5, dim=6, heads=3)(x) != head(x)).any()
    # equal heads of V/3 add up to one head
    third = SoftmaxAttention(2.0, -0.5 / 3)
    np.testing.assert_allclose(MultiHeadAttention(third, third, third)(x), head(x), rtol=1e-5, atol=1e-7)


def test_random_attention_is_redrawn_every_few_layers_at_its_address():
    random = RandomAttention(SoftmaxAttention, 2.0, dim=4, heads=2, every=3)
    model = sn.Transformer(random, None, layers=9, horizon=1.0)
    replica = sn.randomness.replica_keys(0, 1)[0]
    drawn = [np.asarray(model.drawn(replica, layer).attention.heads[0].bilinear) for layer in range(9)]
    for layer in range(9):
        assert (drawn[layer] == drawn[layer // 3 * 3]).all()
    assert (drawn[0] != drawn[3]).any()
    assert (drawn[3] != drawn[6]).any()
    with pytest.raises(UserError, match="before it is drawn"):
        random(jnp.eye(4))
    once = sn.Transformer(RandomAttention(SoftmaxAttention, 2.0, dim=4, heads=2, every=9), None, layers=9, horizon=1.0)
    ends = [sn.simulate(m, sn.Uniform(3, 4), replicas=2)["energy"].values[:, -1] for m in (model, once, model)]
    assert (ends[0] == ends[2]).all()
    assert (ends[0] != ends[1]).all()


def test_random_attention_has_the_variance_it_states():
    x = jnp.asarray(uniform_tokens(2, 8))
    random = RandomAttention(SoftmaxAttention, 1.5, 0.7, dim=8, heads=4)
    keys = sn.randomness.replica_keys(0, 2000)
    logits, values = [], []
    for key in keys[:400]:
        heads = random.draw(key).heads
        logits += [float(head.logits(x, x)[0, 1]) for head in heads]
        values += [float(jnp.sum(sum(x[0] @ head.value.T for head in heads) ** 2))]
    assert abs(np.mean(np.square(logits)) / 1.5**2 - 1) < 5 * np.std(np.square(logits)) / 1.5**2 / 40
    assert abs(np.mean(values) / 0.7**2 - 1) < 5 * np.std(values) / 0.7**2 / 20


@pytest.mark.parametrize(("n", "beta", "target", "exact"), [(16, 1.0, 0.9, 2.621146), (64, 4.0, 0.5, 3.167944)])
def test_equiangular_tokens_reach_their_overlap_in_time(n, beta, target, exact, x64):
    """ρ' = 2e^{βρ}(1-ρ)((N-1)ρ+1)/(e^β+(N-1)e^{βρ}) by layers extrapolated in the step (THEORY §7)."""

    def hitting_time(layers, kind=SoftmaxAttention, beta=beta):
        model = sn.Transformer(kind(beta), None, layers=layers, horizon=4.0)
        run = sn.simulate(model, sn.Equiangular(n, n), replicas=1, observers=[sn.MeanOverlap()], dtype="float64")
        overlap, time = run["mean_overlap"].values[0], run["time"].values
        after = int(np.argmax(overlap > target))
        near = slice(after - 3, after + 3)
        return np.polyval(np.polyfit(overlap[near] - target, time[near], 4), 0.0)

    coarse, fine = hitting_time(200), hitting_time(400)
    assert abs(2 * fine - coarse - exact) < 1e-4
    assert abs(fine - exact) > 1e-3  # the extrapolation does it
    if n == 16:
        assert abs(hitting_time(200, UnnormalisedAttention) - exact) > 1e-2
        # equiangular overlaps leave every row the same: Sinkhorn is softmax, and L2 at β/2 too
        assert abs(hitting_time(200, SinkhornAttention) - coarse) < 1e-9
        assert abs(hitting_time(200, L2Attention, beta / 2) - coarse) < 1e-9


def test_two_tokens_without_logits_follow_tanh(x64):
    """N = 2, β = 0, ρ_0 = 0: ρ = tanh t (THEORY §7); causal attention moves the second token only."""
    ends = {}
    for kind in (SoftmaxAttention, CausalAttention):
        for layers in (500, 1000):
            model = sn.Transformer(kind(0.0), None, layers=layers, horizon=1.0)
            run = sn.simulate(model, np.eye(2), replicas=1, observers=[sn.MeanOverlap()], every=layers, dtype="float64")
            ends[kind, layers] = run["mean_overlap"].values[0, -1]
    extrapolated = {kind: 2 * ends[kind, 1000] - ends[kind, 500] for kind in (SoftmaxAttention, CausalAttention)}
    assert abs(extrapolated[SoftmaxAttention] - np.tanh(1.0)) < 1e-6
    assert abs(extrapolated[CausalAttention] - np.tanh(0.5)) < 1e-6  # the first does not move: half the speed
