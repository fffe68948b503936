"""The paper's transformer in PyTorch and in JAX: the same weights, the same tokens; and tokens across the bridge."""

from dataclasses import replace

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="probe needs PyTorch")

import synchronoise as sn  # noqa: E402
from synchronoise import UserError  # noqa: E402
from synchronoise.observables import Positions  # noqa: E402
from synchronoise.probe import measure, predict, save_tokens, torch_transformer  # noqa: E402


@pytest.mark.parametrize(
    ("act", "attention"),
    [("gelu", sn.SoftmaxAttention(2.0, 0.7)), ("relu", sn.CausalAttention(1.0, -1.0)), ("tanh", None)],
)
def test_both_give_the_same_tokens_from_the_same_weights(act, attention):
    model = sn.Transformer(attention, sn.DrawnMLP(sn.MLP(act, 16, 0.2, 0.1), 32), layers=20, horizon=5.0)
    run = sn.simulate(model, sn.Uniform(12, 16), replicas=3, seed=5, observers=(Positions(),))
    tokens = run.tokens.values[2]
    with torch.no_grad():
        same, other = (
            torch_transformer(model, seed=5, replica=replica)(torch.tensor(tokens[:1])).numpy()[0] for replica in (2, 1)
        )
    assert np.abs(same - tokens[-1]).max() < 1e-5
    assert np.abs(other - tokens[-1]).max() > 0.1


@pytest.mark.stat
@pytest.mark.parametrize(
    ("dim", "sigma", "scale"), [(64, 0.1, 1.0), pytest.param(128, 0.0, 1.0, marks=pytest.mark.slow)]
)
def test_the_papers_module_is_measured_and_predicted(dim, sigma, scale):
    """N = 64, the paper's T and β: within the statistical error plus 0.01 (far off at twice the speed)."""
    noise, attention = sn.DrawnMLP(sn.MLP("relu", dim, sigma, sigma), 256), sn.SoftmaxAttention(1.0, scale)
    model = sn.Transformer(attention, noise, layers=60, horizon=5.0)
    x = np.asarray(jax.random.normal(jax.random.key(3), (8, 64, dim)))
    x = torch.tensor(x / np.linalg.norm(x, axis=-1, keepdims=True))
    curves = []
    for replica in range(8):
        module = torch_transformer(model, replica=replica)
        seen = measure(module, x[replica : replica + 1], special_first=False, full=False)
        curves.append(seen.mean_cosine.sel(site="resid_post", input=0).values[1:])
    mean, error = np.mean(curves, axis=0), np.std(curves, axis=0, ddof=1) / 8**0.5
    predicted = predict(module, 64).mean_cosine.sel(site="resid_post").values[1:]
    assert np.abs(predicted - mean).mean() < 0.01 + error.mean()
    assert error.mean() < 0.02
    which = module.architecture
    faster = replace(which, mlp_out_std=2**0.5 * which.mlp_out_std, attention_scale=2 * which.attention_scale)
    wrong = predict(faster, 64).mean_cosine.sel(site="resid_post").values[1:]
    assert np.abs(wrong - mean).mean() > 2 * (0.01 + error.mean())


def test_what_does_not_cross_is_refused():
    noise = sn.DrawnMLP(sn.MLP("relu", 8), 16)
    with pytest.raises(UserError, match="noise: got 'GaussianField'"):
        torch_transformer(sn.Transformer(None, noise).limit())
    with pytest.raises(UserError, match="attention: got 'L2Attention'"):
        torch_transformer(sn.Transformer(sn.L2Attention(), noise))
    with pytest.raises(UserError, match="by matrices"):
        torch_transformer(sn.Transformer(sn.SoftmaxAttention(value=np.eye(8)), noise))
    with pytest.raises(UserError, match="paper's scalings"):
        torch_transformer(sn.Transformer(None, noise, alpha_2=lambda depth: 1.0))


def test_embeddings_become_the_start_of_a_simulation(tmp_path):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    start, _ = sn.tokens_from_file(save_tokens(x, tmp_path / "text.npy"))
    model = sn.Transformer(None, sn.DrawnMLP(sn.MLP("relu", 8), 16), layers=2)
    first = sn.simulate(model, start, replicas=1, observers=(Positions(),)).tokens.values[0, 0]
    np.testing.assert_allclose(first, (x / x.norm(dim=1, keepdim=True)).numpy(), atol=1e-6)
    with pytest.raises(UserError, match="finite vectors"):
        save_tokens(torch.zeros(2, 8), tmp_path / "zero.npy")
