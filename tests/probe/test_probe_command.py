"""`synchronoise probe` from start to end: tiny models of every kind, real weights, and every mistake in one line."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from synchronoise import cli
from synchronoise.store import load

torch = pytest.importorskip("torch", reason="probe needs PyTorch")
transformers = pytest.importorskip("transformers", reason="probe needs transformers")

from synchronoise.probe import (  # noqa: E402
    Architecture,
    DrawnTransformer,
    architecture,
    measure_seeds,
    predict,
    trained_laws,
    verdict,
)
from synchronoise.probe.prediction import PredictionWarning, block_law  # noqa: E402
from synchronoise.probe.report import confirm_rows  # noqa: E402
from synchronoise.probe.sources import from_folder  # noqa: E402
from synchronoise.probe.verdict import what_if  # noqa: E402

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 40}  # fmt: skip
TEXT = "the tokens of a deep transformer collapse or they do not and noise decides which of these it is"
WORDS = TEXT.split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verdict, "DEEPEST", 20)  # only the time it takes
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    return tmp_path


def ask(capsys, *arguments: str) -> dict:
    assert cli.status(["probe", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_configuration_is_measured_predicted_and_written(folder, capsys):
    got = ask(capsys, "--config", "tiny.json", "--seeds", "4", "--tokens", "16", "--out", "a.nc")
    assert (got["weights"], got["depth"], got["seeds"]) == ("random", 2, 4)
    assert [(row["layer"], row["site"]) for row in got["layers"]] == [
        (0, "embedding"), (1, "resid_mid"), (1, "resid_post"), (2, "resid_mid"), (2, "resid_post"), (2, "final_norm"),
    ]  # fmt: skip
    last = got["layers"][4]
    assert abs(last["mean_cosine"] - last["predicted_mean_cosine"]) < 0.05 + 4 * last["mean_cosine_se"]
    assert got["mean_absolute_error"] < 0.1
    assert "collapse" in got["verdict"]
    assert got["paper"]["horizon"] > 0
    dataset, provenance = load("a.nc", kind="probe")
    assert provenance["probe"]["config"] == "tiny.json"
    assert provenance["versions"]["torch"] == torch.__version__
    assert float(dataset.mean_cosine.sel(layer=2, site="resid_post")) == last["mean_cosine"]
    assert (folder / "a.png").stat().st_size > 10_000
    assert ask(capsys, "--config", "tiny.json", "--seeds", "4", "--tokens", "16", "--out", "a.nc", "--overwrite") == got


def test_the_table_says_what_the_json_says(folder, capsys):
    assert cli.status(["probe", "--config", "tiny.json", "--seeds", "2", "--tokens", "8", "--light"]) == 0
    said = capsys.readouterr()
    for word in ("layer site", "final_norm", "predicted", "in the paper's parameters: T ", "what if", "wrote probe.nc"):
        assert word in said.out
    assert "> 0.999" not in said.out  # light


def test_a_checkpoint_reads_a_text_with_its_own_tokenizer(folder, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["[UNK]", *dict.fromkeys(WORDS)])}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained("model")
    config = transformers.CONFIG_MAPPING["llama"](**{k: v for k, v in CONFIG.items() if k != "model_type"})
    transformers.AutoModel.from_config(config).save_pretrained("model")
    (folder / "a.txt").write_text(" ".join(WORDS * 3))
    with pytest.warns(PredictionWarning, match="weights are given"):
        got = ask(capsys, "model", "--inputs", "a.txt", "--tokens", "18", "--seeds", "8")
    assert (got["weights"], got["prediction"], got["seeds"]) == ("given", "weights", 3)  # 54 words are three pieces
    repeated = got["layers"][0]["mean_cosine"]
    assert repeated == pytest.approx(got["layers"][0]["predicted_mean_cosine"], abs=0.02)
    (folder / "b.txt").write_text("utterly unfamiliar vocabulary everywhere")
    assert cli.status(["probe", "model", "--inputs", "b.txt", "--out", "b.nc"]) == 2
    assert "b.txt: 4 of 4 tokens are unknown to the tokenizer in model" in capsys.readouterr().err
    assert cli.status(["probe", "model", "--depth", "3", "--out", "b.nc"]) == 2
    assert "depth: got 3, expected at most 2; only shared blocks can go deeper" in capsys.readouterr().err


def test_embeddings_are_where_the_prediction_starts(folder, capsys):
    x = np.random.default_rng(0).standard_normal((10, 64)) + 2.0
    np.save("x.npy", x)
    got = ask(capsys, "--config", "tiny.json", "--inputs", "x.npy", "--seeds", "3")
    first = got["layers"][0]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    exact = (unit @ unit.T)[1:, 1:][np.triu_indices(9, 1)].mean()
    assert first["mean_cosine"] == pytest.approx(exact, abs=1e-5)
    assert first["predicted_mean_cosine"] == pytest.approx(exact, abs=1e-5)
    light = ask(capsys, "--config", "tiny.json", "--inputs", "x.npy", "--seeds", "1", "--light", "--out", "b.nc")
    assert light["layers"][0]["predicted_mean_cosine"] == pytest.approx(exact, abs=1e-5)


def test_what_enters_the_first_block_starts_a_simulation(folder, capsys):
    x = np.random.default_rng(0).standard_normal((10, 64)) + 2.0
    np.save("x.npy", x)
    asked = ["--config", "tiny.json", "--inputs", "x.npy", "--seeds", "1", "--save-embeddings", "tokens.npy"]
    assert ask(capsys, *asked)["embeddings"] == "tokens.npy"
    saved = np.load("tokens.npy")
    np.testing.assert_allclose(saved, x / np.linalg.norm(x, axis=1, keepdims=True), atol=1e-6)
    assert not np.allclose(saved, x, atol=1e-2)
    assert cli.status(["simulate", "--start", "tokens.npy", "--layers", "2", "--replicas", "1", "--out", "s.nc"]) == 0
    assert load("s.nc")[0].sizes["token"] == 10
    capsys.readouterr()
    assert cli.status(["probe", *asked, "--out", "b.nc"]) == 2
    assert "tokens.npy exists; --overwrite, or another name" in capsys.readouterr().err
    assert cli.status(["probe", *asked[:-1], "tokens.txt", "--out", "b.nc"]) == 2
    assert "expected a name ending in .npy" in capsys.readouterr().err


def test_weights_in_half_precision_are_measured_and_read(folder, capsys):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=50, n_positions=40)
    model = transformers.GPT2Model(config)
    model.save_pretrained("single")
    model.bfloat16().save_pretrained("half")
    np.save("x.npy", np.random.default_rng(0).standard_normal((10, 64)))
    curves = []
    for name in ("single", "half"):
        with pytest.warns(PredictionWarning, match="weights are given"):
            got = ask(capsys, name, "--inputs", "x.npy", "--out", f"{name}.nc")
        curves.append([[row["mean_cosine"], row["predicted_mean_cosine"]] for row in got["layers"]])
    np.testing.assert_allclose(curves[1], curves[0], atol=3e-3)


def test_a_factory_of_pytorchs_encoder(folder, capsys, monkeypatch):
    (folder / "mine.py").write_text(
        "from torch import nn\n"
        "def cloned():\n"
        "    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)\n"
        "    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)\n"
        "def fresh():\n"
        "    encoder = cloned()\n"
        "    for module in encoder.modules():\n"
        "        if module is not encoder and hasattr(module, 'reset_parameters'):\n"
        "            module.reset_parameters()\n"
        "        elif hasattr(module, '_reset_parameters'):\n"
        "            module._reset_parameters()\n"
        "    return encoder\n"
        "def number():\n    return 3\n"
        "def fails():\n    return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(folder)
    got = ask(capsys, "--module", "mine:fresh", "--seeds", "6", "--tokens", "24", "--out", "a.nc")
    assert got["architecture"]["placement"] == "post"
    assert got["architecture"]["mlp_in_bias"] > 0
    assert got["mean_absolute_error"] < 0.02
    with pytest.warns(UserWarning, match="hold the same weights"):
        ask(capsys, "--module", "mine:cloned", "--seeds", "1", "--tokens", "8", "--out", "b.nc")
    for name, message in [
        ("mine:number", "mine:number: got 'int', expected a torch.nn.Module"),
        ("mine:none", "cannot import mine:none"),
        ("mine:fails", "mine:fails raised ZeroDivisionError: division by zero"),
        ("mine", "module: got 'mine', expected package.module:factory"),
    ]:
        assert cli.status(["probe", "--module", name, "--out", "c.nc"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2-smal"], "unknown model 'gpt2-smal'; did you mean 'gpt2-small'?"),
        ([], "name one model"),
        (["gpt2-small", "--config", "tiny.json"], "name one model"),
        (["--config", "none.json"], "cannot read none.json: No such file or directory"),
        (["--config", "tiny.json", "--tokens", "2"], "tokens: got 2, expected an integer >= 3"),
        (["--config", "tiny.json", "--tokens", "41"], "tokens: got 41, expected at most 40"),
        (["--config", "tiny.json", "--seeds", "0"], "seeds: got 0, expected an integer >= 1"),
        (["--config", "tiny.json", "--inputs", "x.npy"], "cannot read x.npy"),
        (
            ["--config", "tiny.json", "--inputs", "flat.npy"],
            "flat.npy: got 'float64 of shape (3,)', expected finite floats",
        ),
        (["--config", "tiny.json", "--inputs", "narrow.npy"], "LlamaModel does not take these inputs"),
        (["--config", "tiny.json", "--inputs", "a.txt"], "a text needs a tokenizer, which llama has not"),
        (["--config", "tiny.json", "--inputs", "rnadom"], "did you mean 'random'?"),
        (
            ["--config", "tiny.json", "--tokens", "8", "--blocks", "nowhere"],
            "blocks: got 'nowhere', expected the name of a list of blocks",
        ),
        (["--config", "tiny.json", "--out", "a.txt"], "expected a name ending in .nc"),
        (["--config", "tiny.json", "--predict", "--light"], "--predict measures nothing"),
        (["."], "cannot read config.json"),
        (["--config", "flat.npy"], "flat.npy is not JSON"),
    ],
)
def test_a_mistake_is_one_line(folder, capsys, arguments, message):
    np.save("flat.npy", np.zeros(3))
    np.save("narrow.npy", np.ones((5, 7)))
    assert cli.status(["probe", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (folder / "probe.nc").exists()


def test_without_pytorch_the_prediction_works_and_the_rest_says_how_to_install(tmp_path):
    def run(*arguments: str):
        script = "import sys; sys.modules['torch'] = None; from synchronoise.cli import main; main()"
        command = [sys.executable, "-c", script, "probe", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    done = run("gpt2-small", "--predict", "--tokens", "16", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["layers"][-1]["site"] == "final_norm"
    refused = run("gpt2-small")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "probe needs torch; pip install 'synchronoise[probe]'" in refused.stderr
    assert "CPU build" in refused.stderr


def test_laws_of_given_weights_are_those_of_the_architecture_when_the_weights_are_random():
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 2}
    for family in ("bert", "llama"):
        model = transformers.AutoModel.from_config(transformers.CONFIG_MAPPING[family](**sizes, vocab_size=50))
        read, exact = trained_laws(model)[0], block_law(architecture(model))
        assert read.attention_gain == pytest.approx(exact.attention_gain, rel=0.05)
        assert read.logit_variance == pytest.approx(exact.logit_variance, rel=0.05)
        for c in (0.5, 0.9, 1.0):
            assert float(read.mlp(c)) == pytest.approx(float(exact.mlp(c)), rel=0.1)
        with torch.no_grad():  # weights twice as large are seen
            model.get_submodule("encoder.layer" if family == "bert" else "layers")[0].apply(
                lambda module: module.weight.mul_(2) if isinstance(module, torch.nn.Linear) else None
            )
        assert trained_laws(model)[0].attention_gain > 10 * exact.attention_gain


TINY = Architecture("tiny", 3, 256, 4, 512, "gelu", "pre", 0.03, 0.05, 0.05, 0.05, 0.05, causal=True)


@pytest.mark.stat
@pytest.mark.parametrize(
    ("placement", "gated"),
    [
        ("pre", False),
        ("post", True),
        ("parallel", False),
        pytest.param("pre", True, marks=pytest.mark.slow),
        pytest.param("post", False, marks=pytest.mark.slow),
        pytest.param("parallel", True, marks=pytest.mark.slow),
    ],
)
def test_drawn_models_follow_the_prediction(placement, gated):
    which = replace(TINY, placement=placement, gated=gated, mlp_in_bias=0.2, mlp_out_bias=0.1)
    measured = measure_seeds(
        lambda seed: DrawnTransformer(which),
        lambda model, seed: model.embeddings(24),
        8,
        special_first=False,
        full=False,
    )
    predicted = predict(which, 24)
    gap = abs(measured.mean_cosine - predicted.mean_cosine)
    assert float(gap.max()) < 0.01 + 4 * float(measured.mean_cosine_se.max())
    assert float(measured.mean_cosine_se.max()) < 0.015
    wrong = predict(replace(which, causal=False, mlp_out_bias=0.4), 24)
    assert float(abs(measured.mean_cosine - wrong.mean_cosine).max()) > 0.05


@pytest.mark.stat
def test_rows_of_the_what_if_table_are_confirmed_and_wrong_ones_are_not():
    rows = what_if(TINY, 24)
    confirm_rows(rows, TINY, 24, 4)
    assert len(rows) >= 5
    assert all(row["confirmed"] for row in rows), rows
    doubled = replace(TINY, mlp_out_std=0.2, mlp_in_std=0.1)
    swapped = [{"change": "none"}]
    confirm_rows(swapped, doubled, 24, 4)
    assert abs(swapped[0]["measured"] - rows[0]["mean_cosine"]) > 0.05


ALBERT = importlib.util.find_spec("rxnmapper")


@pytest.mark.skipif(ALBERT is None, reason="no trained weights here: pip install --no-deps rxnmapper==0.4.3")
def test_near_identical_pairs_rise_with_depth_in_trained_shared_blocks():
    """The small trained ALBERT of rxnmapper, its one block run 12 to 96 times."""
    path = f"{ALBERT.submodule_search_locations[0]}/models/transformers/albert_heads_8_uspto_all_1310k"
    source = from_folder(path, tokens=48, depth=96)
    got = measure_seeds(source.build, source.inputs, 2).sel(site="resid_post")
    assert got.sizes["layer"] == 97
    share = got.near_identical.sel(layer=[12, 24, 48, 96]).values
    assert (np.diff(share) >= 0).all()
    assert share[0] < 0.01
    assert share[-1] > 0.05
    assert got.clusters[96] < 0.8 * got.clusters[12]
    with pytest.warns(PredictionWarning, match="share their weights"):
        predict(source.architecture, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bar"),
    [("gpt2-small", 0.01), ("bert-base", 0.02), ("llama-small", 0.02), ("vit-base", 0.02), ("pythia-160m", 0.02)],
)
def test_random_models_of_every_family_are_predicted_to_the_bar(folder, capsys, name, bar):
    """8 seeds, 64 tokens: the mean absolute error of the mean cosine over layers, and every "what if" row measured."""
    got = ask(capsys, name, "--confirm")
    assert got["mean_absolute_error"] < bar
    assert sum(row["confirmed"] for row in got["what_if"]) >= 4
