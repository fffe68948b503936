"""The recursion of second moments: exact anchors, simulations in NumPy, and the two-token law of the paper."""

from dataclasses import replace

import numpy as np
import pytest

import synchronoise as sn
from synchronoise import UserError
from synchronoise.probe import Architecture, PredictionWarning, architecture, paper_architecture, predict
from synchronoise.probe.prediction import State, add_noise, attended, averages, block_law, start_state

TINY = Architecture("tiny", 3, 64, 4, 128, "relu", "pre", 0.1, 0.1, 0.1, 0.1, 0.1, norm_eps=0.0)


def cosines(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit @ np.swapaxes(unit, -1, -2)


def test_relu_mlp_alone_is_the_arc_cosine_kernel():
    """α² = 0: S_12 -> S_12 + m σ_2² d σ_1² κ_1(c)/2, κ_1 the arc-cosine kernel, written out here by hand."""
    which = replace(TINY, value_std=0.0, query_std=0.0, depth=1)
    added = 128 * 0.1**2 * 64 * 0.1**2
    after = predict(which, 4, start=np.eye(4) * 0.7 + 0.3).mean_cosine.sel(site="resid_post").values[1]
    c = 0.3
    kernel = (np.sqrt(1 - c * c) + (np.pi - np.arccos(c)) * c) / (2 * np.pi)
    exact = (c + added * kernel) / (1 + added / 2)
    assert after == pytest.approx(exact, abs=0.5 / which.dim)
    assert abs(after - c) > 3 / which.dim  # the block does something that the tolerance notices
    wide = replace(which, dim=64 * 1024, mlp_in_std=0.1 / 32)  # the same recursion without terms in 1/d
    assert predict(wide, 4, start=np.eye(4) * 0.7 + 0.3).mean_cosine.sel(site="resid_post").values[1] == pytest.approx(
        exact, abs=2e-5
    )


def test_averages_are_those_of_attention_with_equal_weights():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 7))
    uniform, prefix = np.full((5, 5), 0.2), np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]
    for mixing, causal in ((uniform, False), (prefix, True)):
        exact = mixing @ x @ x.T @ mixing.T
        np.testing.assert_allclose(averages(x @ x.T, causal), exact, atol=1e-12)
        assert np.abs(averages(x @ x.T, not causal) - exact).max() > 0.1


def test_moments_of_attention_with_random_logits():
    """Gaussian logits of covariance s² H_ij H_kl drawn: the ratio of means is right, equal weights are not."""
    rng, n, s = np.random.default_rng(1), 40, 0.3
    x = rng.standard_normal((n, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    h = x @ x.T
    logits = s * x @ rng.standard_normal((5_000, 3, 3)) @ x.T
    weights = np.exp(logits)
    weights /= weights.sum(-1, keepdims=True)
    drawn = np.diag((weights @ h @ np.swapaxes(weights, 1, 2)).mean(0))
    assert np.abs(np.diag(attended(h, h, s**2, causal=False)) - drawn).max() < 0.005
    assert np.abs(np.diag(attended(h, h, 0.0, causal=False)) - drawn).max() > 0.02


def test_fluctuation_and_drift_at_finite_dimension():
    """x + g for Gaussian g with correlated tokens, drawn: mean and variance of the cosine to first order in 1/d."""
    rng, d = np.random.default_rng(2), 48
    before, added = np.array([[1.0, 0.2], [0.2, 1.3]]), np.array([[0.8, 0.5], [0.5, 0.6]])
    a, b = np.linalg.cholesky(before), np.linalg.cholesky(added)
    x = a @ np.linalg.qr(rng.standard_normal((d, 2)))[0].T * np.sqrt(d)  # overlaps exactly `before`
    drawn = cosines(x + b @ rng.standard_normal((200_000, 2, d)))[:, 0, 1]
    after = add_noise(State(before, np.zeros((2, 2))), added, 0.0, d)
    plain = (before + added)[0, 1] / np.sqrt(np.prod(np.diag(before + added)))
    assert after.cosine[0, 1] == pytest.approx(drawn.mean(), abs=6e-4)
    assert abs(plain - drawn.mean()) > 3e-3  # without the drift it is wrong
    assert after.variance[0, 1] == pytest.approx(drawn.var(), rel=0.03)


@pytest.mark.parametrize(("act", "dim", "sigma"), [("relu", 64, 0.1), ("tanh", 128, 0.1), ("silu", 64, 0.0)])
def test_the_papers_module_follows_the_two_token_law(act, dim, sigma):
    """Without attention every pair follows THEORY §5, solved there without Monte Carlo: a second derivation."""
    which = paper_architecture(act, dim, sigma, sigma, attention_scale=0.0, layers=800, horizon=5.0, width=4096)
    got = predict(which, 8).mean_cosine.sel(site="resid_post").values[1:]
    times = np.array([1.0, 2.5, 5.0])
    law = sn.MLP(act, dim, sigma, sigma).kernel()
    exact = sn.pair_expectation(law, "overlap", times).mean
    assert np.abs(got[[159, 399, 799]] - exact).max() < 0.01
    doubled = predict(replace(which, mlp_out_std=2**0.5 * which.mlp_out_std), 8).mean_cosine.sel(site="resid_post")
    assert np.abs(doubled.values[[160, 400, 800]] - exact).max() > 0.02 or sigma == 0


def test_identity_attention_is_the_deterministic_map():
    """V = aI and no MLP: the overlaps of the tokens themselves after three layers of THEORY §1."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6, 16))
    x *= 4 / np.linalg.norm(x, axis=1, keepdims=True)
    which = replace(paper_architecture(dim=16, layers=3, horizon=0.9, beta=2.0), mlp_out_std=0.0)
    with pytest.warns(PredictionWarning, match="d = 16 is small"):
        got = predict(which, start=x @ x.T / 16).mean_cosine.sel(site="resid_post").values[3]
    for _ in range(3):
        weights = np.exp(2.0 * x @ x.T / 16)
        x = x + 0.3 * weights / weights.sum(1, keepdims=True) @ x
        x *= 4 / np.linalg.norm(x, axis=1, keepdims=True)
    assert got == pytest.approx(cosines(x)[np.triu_indices(6, 1)].mean(), abs=1e-12)


def test_embeddings_share_what_is_common_to_all_tokens():
    assert start_state(architecture("bert-base"), 8).cosine[1, 2] == pytest.approx(1 / 3, abs=1e-4)
    assert start_state(architecture("gpt2-small"), 8).cosine[1, 2] == pytest.approx(0, abs=1e-4)
    vit = start_state(architecture("vit-base"), 8)
    assert vit.lengths[0] < vit.lengths[1] / 5  # the class token is no patch


def test_post_norm_keeps_lengths_and_parallel_blocks_have_no_middle():
    bert = predict("bert-base", 8)
    np.testing.assert_allclose(bert.norm.sel(site="resid_post").values[1:], 768**0.5, rtol=1e-6)
    assert np.isnan(bert.mean_cosine.sel(site="final_norm")).all()
    assert np.isnan(predict("pythia-160m", 8).mean_cosine.sel(site="resid_mid")).all()


def test_every_law_is_used_and_their_number_checked():
    laws = [block_law(TINY)] * 3
    with pytest.warns(PredictionWarning, match="weights are given"):
        assert predict(TINY, 8, laws=laws).equals(predict(TINY, 8))
    silent = replace(block_law(TINY), attention_gain=0.0)
    with pytest.warns(PredictionWarning, match="weights are given"):
        assert not predict(TINY, 8, laws=[silent] * 3).equals(predict(TINY, 8))
    with pytest.raises(UserError, match="laws: got 2, expected one for each of 3 blocks"):
        predict(TINY, 8, laws=laws[:2])


def test_what_is_rough_is_announced_and_what_is_wrong_refused():
    with pytest.warns(PredictionWarning, match="attention logits deviate by 2.6"):
        predict(replace(TINY, query_std=0.2), 8)
    with pytest.warns(PredictionWarning, match="share their weights"):
        predict("albert-base", 8)
    with pytest.raises(UserError, match="tokens: got 2, expected an integer >= 3"):
        predict("gpt2-small", 2)
    with pytest.raises(UserError, match=r"start: got 'shape \(2, 3\)'"):
        predict(TINY, start=np.ones((2, 3)))
