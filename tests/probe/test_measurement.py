"""Statistics of given tokens, and what hooks see of real modules: the traps that naive code falls into."""

import math
import weakref
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="probe needs PyTorch")
nn = torch.nn

import synchronoise as sn  # noqa: E402
from synchronoise import RunError, UserError  # noqa: E402
from synchronoise.probe import ClonedWeightsWarning, architecture, find_layout, measure, measure_seeds, predict  # noqa: E402
from synchronoise.probe.statistics import attention_entropy, token_statistics  # noqa: E402

transformers = pytest.importorskip("transformers", reason="probe needs transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
TINY = {
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0},
    "llama": {**SIZES, "vocab_size": 100},
    "gpt_neox": {**SIZES, "vocab_size": 100},
    "bert": {**SIZES, "vocab_size": 100},
    "albert": {**SIZES, "vocab_size": 100, "embedding_size": 16},
    "vit": {**SIZES, "image_size": 16, "patch_size": 4},
}


def build(family: str, attention: str = "eager", seed: int = 0):
    torch.manual_seed(seed)
    config = transformers.CONFIG_MAPPING[family](**TINY[family])
    return transformers.AutoModel.from_config(config, attn_implementation=attention).eval()


def given(family: str, tokens: int = 12, batch: int = 2):
    torch.manual_seed(1)
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16)}
    return {"input_ids": torch.randint(0, 100, (batch, tokens))}


def mean_cosine(x) -> float:
    x = x.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return float((x @ x.T)[np.triu_indices(len(x), 1)].mean())


def test_statistics_of_tokens_on_a_known_figure():
    """Two equal tokens and one across: every number by hand."""
    x = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    got, quantiles = token_statistics(x, special_first=False, beta=1.0)
    assert got["mean_cosine"] == pytest.approx(1 / 3)
    assert got["near_identical"] == pytest.approx(1 / 3)
    assert got["clusters"] == 2
    assert got["norm"] == pytest.approx(2)
    assert got["first_norm"] == pytest.approx(2)
    assert got["first_cosine"] == pytest.approx(0.5)
    assert got["effective_rank"] == pytest.approx(9 / 5)  # eigenvalues 2, 1, 0
    assert got["stable_rank"] == pytest.approx(3 / 2)
    assert got["rank_one_residual"] == pytest.approx(math.sqrt(1 - 5 / 9))
    assert got["energy"] == pytest.approx(0.5 * 4 * (math.e - 1) / 9)
    assert got["cosine_sd"] == pytest.approx(math.sqrt(2) / 3)
    assert quantiles[0] == pytest.approx(0)
    assert quantiles[-1] == pytest.approx(1)


def test_energy_is_that_of_the_simulations_and_merged_tokens_keep_their_digits():
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    got, _ = token_statistics(x, special_first=False, beta=2.0)
    assert got["energy"] == pytest.approx(float(sn.energy(jnp.asarray(unit), 2.0)), rel=1e-5)
    close = torch.ones(4, 64, dtype=torch.float64) + 1e-10 * torch.randn(4, 64, dtype=torch.float64)
    residual = token_statistics(close, special_first=False)[0]["rank_one_residual"]
    assert 1e-11 < residual < 1e-9


@pytest.mark.parametrize("spread", [10.0, 1.0, 1e-2, 1e-3])
def test_single_precision_keeps_the_spread_of_cosines_of_near_tokens(spread):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, generator=generator) + spread * torch.randn(64, 256, generator=generator)
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    half_squares = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist") ** 2 / 2
    exact = float(half_squares[*np.triu_indices(64, 1)].std(correction=0))
    got = token_statistics(x, special_first=False)[0]["cosine_sd"]
    assert got == pytest.approx(exact, rel=0.02, abs=1.5e-7)
    single = torch.nn.functional.normalize(x, dim=1)
    cosine = single @ single.T
    squares = (float(torch.linalg.vector_norm(cosine)) ** 2 - 64) / (64 * 63)
    naive = max(squares - ((float(cosine.sum()) - 64) / (64 * 63)) ** 2, 0.0) ** 0.5
    assert spread > 0.1 or naive != pytest.approx(exact, rel=0.02, abs=1.5e-7)


def test_two_antipodal_clusters_of_one_size_have_stable_rank_one():
    x = torch.ones(8, 4)
    x[4:] *= -1
    assert token_statistics(x, special_first=False)[0]["stable_rank"] == pytest.approx(1, rel=1e-5)


def test_a_first_token_that_is_special_is_kept_apart():
    x = torch.ones(5, 8) + 0.1 * torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    x[0] = -1000.0
    apart, together = (token_statistics(x, special_first=special)[0] for special in (True, False))
    assert apart["mean_cosine"] == pytest.approx(mean_cosine(x[1:]), abs=1e-6)
    assert together["mean_cosine"] == pytest.approx(mean_cosine(x), abs=1e-6)
    assert apart["mean_cosine"] - together["mean_cosine"] > 0.5
    assert apart["first_norm"] > 100


def test_entropy_is_relative_to_equal_weights():
    causal = torch.tril(torch.ones(4, 4)) / torch.arange(1, 5)[:, None]
    assert attention_entropy(causal[None]) == pytest.approx(1)
    assert attention_entropy(torch.eye(4)[None] * 0.98 + 0.005) < 0.1


@pytest.mark.parametrize("family", TINY)
def test_layers_and_sites_are_those_of_the_hidden_states(family):
    """Against `output_hidden_states`, whose last entry of GPT-2, Llama, ... is after the final norm."""
    model, inputs = build(family), given(family)
    got = measure(model, inputs)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    assert got.sizes["layer"] == len(states) == 4
    final = "final_norm" if family in ("gpt2", "llama", "gpt_neox") else "resid_post"
    for row in range(2):
        for layer, state in enumerate(states):
            site = "embedding" if layer == 0 else final if layer == 3 else "resid_post"
            measured = got.mean_cosine.sel(input=row, layer=layer, site=site)
            assert float(measured) == pytest.approx(mean_cosine(state[row][1:]), abs=2e-6)
            length = float(state[row][1:].norm(dim=1).mean())
            assert float(got.norm.sel(input=row, layer=layer, site=site)) == pytest.approx(length, rel=1e-5)
    if final == "final_norm":  # before the norm the tokens are not what the last hidden state says
        before = got.norm.sel(layer=3, site="resid_post").values
        assert np.abs(before / got.norm.sel(layer=3, site="final_norm").values - 1).min() > 0.05
    middle = got.mean_cosine.sel(site="resid_mid").values[:, 1:]
    assert np.isnan(middle).all() == (family == "gpt_neox")  # its attention and MLP are parallel


def test_the_middle_is_between_attention_and_mlp():
    model, inputs = build("gpt2"), given("gpt2")
    middle = measure(model, inputs).mean_cosine.sel(layer=1, site="resid_mid", input=0)
    seen = []
    model.h[0].mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        after = model(**inputs, output_hidden_states=True).hidden_states[1]
    assert float(middle) == pytest.approx(mean_cosine((after - seen[0])[0, 1:]), abs=2e-6)
    assert float(middle) != pytest.approx(mean_cosine(after[0, 1:]), abs=1e-3)


def test_a_shared_block_is_one_layer_each_time_it_runs():
    layout = find_layout(build("albert"))
    assert len(layout.blocks) == 1  # counting blocks would give one layer
    assert measure(build("albert"), given("albert")).sizes["layer"] == 4


def test_fused_attention_returns_no_weights_and_that_is_said():
    eager = measure(build("gpt2"), given("gpt2"))
    assert float(eager.attention_entropy[:, 1:].min()) > 0.9
    assert eager.attrs["note"] == ""
    fused = measure(build("gpt2", "sdpa"), given("gpt2"))
    assert np.isnan(fused.attention_entropy).all()
    assert "fused attention returns no weights" in fused.attrs["note"]
    np.testing.assert_allclose(eager.mean_cosine, fused.mean_cosine, atol=1e-5)


def test_padding_changes_nothing():
    model, inputs = build("bert"), given("bert", tokens=9, batch=1)
    padded = {
        "input_ids": torch.cat([inputs["input_ids"], torch.zeros(1, 4, dtype=torch.long)], dim=1),
        "attention_mask": torch.tensor([[1] * 9 + [0] * 4]),
    }
    alone, masked = measure(model, inputs), measure(model, padded)
    np.testing.assert_allclose(masked.mean_cosine, alone.mean_cosine, atol=2e-6)
    np.testing.assert_allclose(masked.attention_entropy, alone.attention_entropy, atol=1e-5)
    blind = measure(model, {"input_ids": padded["input_ids"]})
    assert np.nanmax(np.abs(blind.mean_cosine - alone.mean_cosine)) > 0.01


@pytest.mark.parametrize("norm_first", [True, False])
def test_pytorchs_own_encoder(norm_first):
    """Its clones hold equal weights, which is announced; its fused fast path is not taken while hooks watch."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    x = torch.randn(1, 10, 32)
    with pytest.warns(ClonedWeightsWarning, match="hold the same weights"):
        measure(encoder, x)
    for block in encoder.layers:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
            if isinstance(module, nn.MultiheadAttention):
                module._reset_parameters()
    got = measure(encoder, x, special_first=False)
    with torch.no_grad():
        y, first = x, encoder.eval().layers[0]
        attended = first.self_attn(first.norm1(y), first.norm1(y), first.norm1(y))[0] if norm_first else None
        middle = y + attended if norm_first else first.norm1(y + first.self_attn(y, y, y)[0])
        assert float(got.mean_cosine.sel(layer=1, site="resid_mid", input=0)) == pytest.approx(
            mean_cosine(middle[0]), abs=2e-6
        )
        for depth, block in enumerate(encoder.layers, 1):
            y = block(y)
            assert float(got.mean_cosine.sel(layer=depth, site="resid_post", input=0)) == pytest.approx(
                mean_cosine(y[0]), abs=2e-6
            )


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x


def test_blocks_that_are_not_found_can_be_named():
    x = torch.randn(1, 6, 8)
    with pytest.raises(UserError, match=r"no blocks found: looked for .* in Renamed .*name the list: --blocks"):
        measure(Renamed(), x)
    assert measure(Renamed(), x, blocks="stages").sizes["layer"] == 3
    with pytest.raises(UserError, match=r"blocks: got 'stage', expected .*lists of modules: stages"):
        measure(Renamed(), x, blocks="stage")


def test_bad_input_is_one_line_and_leaves_no_hook():
    model = build("gpt2")
    with pytest.raises(UserError, match="GPT2Model does not take these inputs"):
        measure(model, {"input_ids": torch.full((1, 8), 100)})
    with pytest.raises(UserError, match="tokens: got 2, expected at least 3"):
        measure(model, given("gpt2", tokens=2))
    with torch.no_grad():
        model.h[1].mlp.c_proj.weight[0, 0] = float("nan")
    with pytest.raises(RunError, match=r"layer 2 \(resid_post\) has NaN"):
        measure(model, given("gpt2"))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_encoder_of_one_layer_many_times_shares_its_blocks():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)
    assert not sn.probe.describe(encoder).shared_blocks
    encoder.layers = nn.ModuleList([encoder.layers[0]] * 3)
    assert sn.probe.describe(encoder).shared_blocks
    assert measure(encoder, torch.randn(1, 8, 16)).sizes["layer"] == 4


def test_a_model_in_training_is_measured_without_dropout_and_left_as_it_was():
    model = build("bert").train()
    model.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    one, two = (measure(model, given("bert")) for _ in range(2))
    np.testing.assert_array_equal(one.mean_cosine, two.mean_cosine)
    assert [module.training for module in model.modules()] == before
    assert True in before
    assert False in before


def test_the_light_set_is_a_part_of_the_full_one():
    light, full = (measure(build("bert"), given("bert"), full=full) for full in (False, True))
    assert set(light.data_vars) < set(full.data_vars)
    for name in light.data_vars:
        np.testing.assert_array_equal(light[name], full[name])


def test_standard_errors_are_over_seeds_or_over_inputs():
    several = measure_seeds(lambda seed: build("bert", seed=seed), lambda model, seed: given("bert"), 3)
    single = [measure(build("bert", seed=seed), given("bert")).mean_cosine.mean("input") for seed in range(3)]
    np.testing.assert_allclose(several.mean_cosine_se, np.std(single, axis=0, ddof=1) / 3**0.5, atol=1e-12)
    one = measure_seeds(lambda seed: build("bert", seed=seed), lambda model, seed: given("bert"), 1)
    assert one.attrs["across"] == "input"
    assert float(one.mean_cosine_se.sel(layer=1, site="resid_post")) > 0


@pytest.mark.stat
@pytest.mark.parametrize("placement", ["gpt2", "bert"])
def test_random_models_follow_the_prediction(placement):
    """12 seeds at d = 256, 4 layers; without the residual scale the GPT-2 prediction is far away."""
    small = {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 500, "bos_token_id": 0, "eos_token_id": 0}
    if placement == "bert":
        small = {**SIZES, "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 500}
    config = {"model_type": placement, **small}

    def make(seed):
        return transformers.AutoModel.from_config(
            transformers.CONFIG_MAPPING[placement](**{**small, "attn_implementation": "eager"})
        )

    def ids(model, seed):
        return {"input_ids": torch.randint(0, 500, (2, 48))}

    measured = measure_seeds(make, ids, 12, full=False)
    predicted = predict(config, 48)
    gap = np.nanmax(np.abs(measured.mean_cosine - predicted.mean_cosine))
    assert float(gap) < 0.01 + 3 * float(measured.mean_cosine_se.max())
    assert float(measured.mean_cosine_se.max()) < 0.02
    if placement == "gpt2":
        right = architecture(config)
        wrong = predict(replace(right, mlp_out_std=8**0.5 * right.mlp_out_std), 48)
        assert np.nanmax(np.abs(measured.mean_cosine - wrong.mean_cosine)) > 0.08


def test_no_activation_outlives_its_layer():
    """When a block ends, of all outputs before it only its own input is still there."""
    model = transformers.AutoModel.from_config(transformers.CONFIG_MAPPING["gpt2"](**{**TINY["gpt2"], "n_layer": 6}))

    def alive(keep: list) -> list[int]:
        outputs, counts = [], []

        def watch(module, args, output):
            counts.append(sum(reference() is not None for reference in outputs))
            outputs.append(weakref.ref(output))
            keep.append(output)
            del keep[:-1]

        handles = [block.register_forward_hook(watch) for block in model.h]
        measure(model, given("gpt2"))
        for handle in handles:
            handle.remove()
        return counts

    assert max(alive([])) == 1

    class Hoard(list):
        def __delitem__(self, index):
            pass

    assert max(alive(Hoard())) == 5  # the watch sees what is kept


def test_two_lists_of_blocks_ask_which():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    with pytest.raises(UserError, match=r"2 lists of blocks \(encoder.layers, decoder.layers\)"):
        find_layout(model)
    assert find_layout(model, "decoder.layers").names == ("decoder.layers.0",)
