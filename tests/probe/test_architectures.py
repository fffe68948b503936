"""Names, configurations and files become an architecture; what does not is one clear line."""

import json

import pytest

from synchronoise import UserError
from synchronoise.probe import Architecture, architecture, paper_architecture
from synchronoise.probe.architectures import CONFIGURATIONS, without_biases


@pytest.mark.parametrize("name", sorted(CONFIGURATIONS))
def test_every_name_is_an_architecture(name):
    which = architecture(name)
    assert which.name == name
    assert which.token_std > 0
    assert architecture(which) is which


def test_gpt2_scales_what_it_writes_into_the_stream_and_bert_does_not():
    gpt2, bert = architecture("gpt2-small"), architecture("bert-base")
    assert gpt2.output_std == gpt2.mlp_out_std == pytest.approx(0.02 / 24**0.5)
    assert bert.output_std == bert.mlp_out_std == 0.02
    assert (gpt2.placement, bert.placement) == ("pre", "post")
    assert gpt2.causal
    assert not bert.causal


def test_what_a_configuration_leaves_out_is_the_default_of_its_family(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4}))
    for source in (path, str(path), tmp_path):
        which = architecture(source)
        assert (which.depth, which.dim, which.activation, which.gated, which.norm) == (32, 256, "silu", True, "rms")


def test_the_papers_transformer_has_unit_gain():
    """W_1 = U/d on |x|² = d is U/√d on the unit sphere: pre-activations of variance 1/d."""
    which = paper_architecture("relu", 16, 0.3, 0.2, layers=4, horizon=1.0, width=64)
    assert which.mlp_in_std**2 * which.dim == pytest.approx(1 / 16)
    assert which.hidden * which.mlp_out_std**2 == pytest.approx(0.25 * 16)
    assert which.mlp_out_bias == pytest.approx(0.2 * 2.0)
    assert without_biases(which).mlp_in_bias == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gpt2-smol", "unknown model 'gpt2-smol'; did you mean 'gpt2-small'?"),
        ({"model_type": "gtp2"}, "did you mean 'gpt2'?"),
        ({"model_type": "gpt2", "activation_function": "gellu"}, "did you mean 'gelu'?"),
        ({"model_type": "gpt2", "n_head": 7}, "gpt2: heads: got 7, expected a divisor of dim=768"),
        ({"model_type": "bert", "num_hidden_layers": 0}, "depth: got 0, expected an integer >= 1"),
        ({"model_type": "bert", "initializer_range": -1.0}, "got -1.0, expected a finite number >= 0"),
        ("missing/config.json", "cannot read missing/config.json: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(source, message):
    with pytest.raises(UserError) as error:
        architecture(source)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_no_configuration(tmp_path):
    for text in ("not json", "[1]"):
        path = tmp_path / "config.json"
        path.write_text(text)
        with pytest.raises(UserError, match=r"is not JSON|holds no configuration"):
            architecture(path)


def test_an_architecture_by_hand():
    with pytest.raises(UserError, match="did you mean 'relu'"):
        Architecture("mine", 2, 8, 2, 16, "rellu", "pre", 0.1, 0.1, 0.1, 0.1, 0.1)
