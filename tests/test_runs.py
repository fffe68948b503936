"""A configuration becomes a result file: the same numbers however it is cut, and one line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from synchronoise import cli, runs
from synchronoise.config import ATTENTIONS, NOISES, RunConfig, configure, read_toml, to_toml
from synchronoise.errors import RunError, UserError
from synchronoise.store import load, save

SMALL = {"dim": 4, "tokens": 6, "layers": 12, "replicas": 3, "width": 8, "chunk": 2}
SMALL_FLAGS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]


def numbers(**changes: object) -> xr.Dataset:
    return runs._simulate(runs.prepare({**SMALL, **changes}))


@pytest.fixture(scope="module")
def reference() -> xr.Dataset:
    return numbers(save_tokens=True)


def same(part: xr.Dataset, whole: xr.Dataset) -> bool:
    """Whether every number of `part` is, bit for bit, at its place in `whole`."""
    inside = whole.sel({name: part[name] for name in ("replica", "layer")})
    return all(part[name].values.tobytes() == inside[name].values.tobytes() for name in part.data_vars)


@pytest.mark.parametrize(
    "changes",
    [{"chunk": 5}, {"replicas": 1}, {"every": 3}, {"save_tokens": False}],
    ids=str,
)
def test_cutting_it_otherwise_changes_no_number(reference, changes):
    assert same(numbers(**{"save_tokens": True, **changes}), reference)


@pytest.mark.parametrize("replicas", [16, 40])
def test_more_replicas_change_no_number(reference, replicas):
    """One full batch of replicas, and more than two."""
    assert same(reference, numbers(save_tokens=True, replicas=replicas))


def test_another_seed_does_change_them(reference):
    """The comparison above would notice."""
    assert not same(numbers(save_tokens=True, seed=1), reference)


@pytest.mark.parametrize("width", ["inf", 8])
def test_flags_and_file_are_the_same_run(tmp_path, monkeypatch, capsys, width):
    monkeypatch.chdir(tmp_path)
    flags = [*SMALL_FLAGS[:-4], "--width", str(width), "--chunk", "2"]
    (tmp_path / "file.toml").write_text(to_toml(configure({**SMALL, "width": width})))
    assert cli.status(["simulate", *flags, "--out", "flags.nc"]) == 0
    assert cli.status(["simulate", "file.toml"]) == 0
    assert (tmp_path / "flags.nc").read_bytes() == (tmp_path / "file.nc").read_bytes()
    (tmp_path / "other.toml").write_text("dim = 4\ntokens = 6\nreplicas = 3\nseed = 5\n")
    assert cli.status(["simulate", "other.toml", *flags, "--seed", "0"]) == 0
    assert (tmp_path / "flags.nc").read_bytes() == (tmp_path / "other.nc").read_bytes()
    assert capsys.readouterr().err == ""


def test_what_made_it_makes_it_again(tmp_path, capsys):
    out = tmp_path / "run.nc"
    runs.run(runs.prepare(SMALL), out)
    dataset, made_by = load(out)
    assert RunConfig(**made_by["config"]) == configure(SMALL)
    assert made_by["route"] == "width 8, weights drawn"
    assert {"jax", "python", "device", "synchronoise"} <= set(made_by["environment"])
    assert set(dataset.data_vars) == {"energy", "overlap_quantiles", "overlap_histogram"}
    assert cli.status(["show", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made_by
    assert cli.status(["rerun", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"


def test_rerun_notices_other_numbers_and_other_versions(tmp_path):
    out = tmp_path / "run.nc"
    runs.run(runs.prepare(SMALL), out)
    dataset, made_by = load(out)
    save(dataset, out, {**made_by, "config": {**made_by["config"], "seed": 1}})
    with pytest.raises(RunError, match="not what its settings give"):
        runs.rerun(out)
    older = {**made_by, "environment": {**made_by["environment"], "jax": "0.7.0"}}
    save(dataset.assign(energy=dataset["energy"] * np.float32(1 + 1e-6)), out, older)
    report = runs.rerun(out)
    assert report["verdict"] == "equal within rounding"
    assert report["environment"].startswith("jax 0.7.0, now ")
    save(dataset.assign(energy=dataset["energy"] * np.float32(1.01)), out, older)
    with pytest.raises(RunError, match=r"not what its settings give \(jax 0.7.0, now"):
        runs.rerun(out)


def test_what_is_no_run_is_not_rerun(tmp_path, capsys):
    other = tmp_path / "other.nc"
    save(xr.Dataset({"energy": ("layer", [0.5])}), other, {"settings": {"dim": 3}})
    (tmp_path / "text.nc").write_text("energy")
    for name, message in (("other.nc", "was not written by `synchronoise simulate`"), ("text.nc", "cut short")):
        assert cli.status(["rerun", str(tmp_path / name)]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert message in said


def test_tokens_from_a_file_are_kept_and_rerun_without_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((6, 4))
    np.save("tokens.npy", rows)
    np.savetxt("tokens.csv", rows, delimiter=",", fmt="%.17g")
    with pytest.warns(UserWarning, match=r"rows of tokens\.npy were not of length 1"):
        from_npy = runs.prepare({"layers": 4, "start": "tokens.npy"})
    with pytest.warns(UserWarning, match="have been normalised"):
        from_csv = runs.prepare({"layers": 4, "start": "tokens.csv"})
    np.testing.assert_array_equal(from_npy.start, from_csv.start)
    assert (from_npy.config.tokens, from_npy.config.dim) == (6, 4)
    runs.run(from_npy, "run.nc")
    os.remove("tokens.npy")
    assert cli.status(["rerun", "run.nc"]) == 0
    assert "identical" in capsys.readouterr().out
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.save("unit.npy", unit.astype(np.float32))
    np.testing.assert_allclose(runs.prepare({"start": "unit.npy"}).start, unit, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.npy", None, "existing .npy or .csv file"),
        ("empty.npy", b"", "not a table of numbers"),
        ("empty.csv", b"", "empty"),
        ("words.csv", b"one,two\nthree,four\n", "not a table of numbers"),
        ("ragged.csv", b"1,2\n3,4,5\n", "not a table of numbers"),
        ("binary.csv", b"\xff\xfe\x00", "not a table of numbers"),
        ("narrow.csv", b"1\n2\n", "expected (tokens, dim) with dim >= 2"),
        ("nan.csv", b"1,2\nnan,4\n", "row 1"),
        ("zero.csv", b"1,2\n0,0\n", "row 1"),
        ("one.csv", b"1,0\n", "one token"),
        ("wide.csv", b"1,0,0\n0,1,0\n", "dim: got 4, expected 3 as in wide.csv; use dim = 3 or leave it out"),
    ],
)
def test_a_bad_token_file_is_one_line(tmp_path, monkeypatch, capsys, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    dim = ["--dim", "4"] if name == "wide.csv" else []
    assert cli.status(["simulate", "--start", name, *dim]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_a_pickled_token_file_runs_no_code(tmp_path, monkeypatch, capsys):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.save(tmp_path / "trap.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    assert cli.status(["simulate", "--start", str(tmp_path / "trap.npy")]) == 2
    assert not (tmp_path / "sprung").exists()
    assert "not a table of numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dim", "1"], "dim: got 1, expected an integer >= 2"),
        (["--tokens", "0"], "tokens: got 0, expected an integer >= 1"),
        (["--width", "-3"], "width: got '-3', expected an integer >= 1, or inf"),
        (["--horizon", "-1"], "horizon: got -1.0, expected a finite number > 0"),
        (["--sigma-u", "-0.1"], "sigma_u: got -0.1, expected a finite number >= 0"),
        (["--sigma-w", "nan"], "sigma_w: got nan, expected a finite number >= 0"),
        (["--beta", "100"], "beta: got 100.0, expected at most 88 in size for float32"),
        (["--beta", "inf"], "beta: got inf, expected a finite number"),
        (["--activation", "rellu"], "did you mean 'relu'?"),
        (["--attention", "softmx"], "did you mean 'softmax'?"),
        (["--noise", "mpl"], "did you mean 'mlp'?"),
        (["--start", "unifrom"], "did you mean 'uniform'?"),
        (["--tokns", "3"], "Did you mean --tokens?"),
        (["--tokens", "many"], "--tokens: got 'many', expected an integer"),
        (["--layers", "10", "--every", "3"], "every: got 3, expected a divisor of layers = 10; use 1"),
        (["--start", "clusters", "--clusters", "65"], "clusters: got 65"),
        (["--start", "equiangular", "--tokens", "65"], "at least 65 for 65 tokens"),
        (["--out", "missing/run.nc"], "the folder missing of the output does not exist"),
        (["--out", "run.txt"], "expected a name ending in .nc"),
        (["--tokens", "1000000"], "GB of memory"),
        (["--dtype", "float64"], "JAX's 64-bit mode is off"),
        (["missing.toml"], "cannot read missing.toml: No such file or directory"),
        (["broken.toml"], "broken.toml is not TOML"),
        (["unknown.toml"], "unknown key 'dims' in unknown.toml; did you mean 'dim'?"),
        (["typed.toml"], "dim in typed.toml: got '64', expected an integer >= 2"),
    ],
)
def test_a_bad_run_is_one_line_and_exits_with_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    (tmp_path / "broken.toml").write_text("dim 4")
    (tmp_path / "unknown.toml").write_text("dims = 4")
    (tmp_path / "typed.toml").write_text('dim = "64"')
    before = sorted(os.listdir(tmp_path))
    with jax.enable_x64(False):
        assert cli.status(["simulate", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert message in said.err
    assert sorted(os.listdir(tmp_path)) == before


def test_an_output_is_never_overwritten_unasked(tmp_path, capsys):
    out = tmp_path / "run.nc"
    assert cli.status(["simulate", *SMALL_FLAGS, "--out", str(out)]) == 0
    content = out.read_bytes()
    assert cli.status(["simulate", *SMALL_FLAGS, "--seed", "1", "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert out.read_bytes() == content
    assert cli.status(["simulate", *SMALL_FLAGS, "--seed", "1", "--out", str(out), "--overwrite"]) == 0
    assert out.read_bytes() != content
    out.write_text("somebody's notes")
    assert cli.status(["simulate", *SMALL_FLAGS, "--out", str(out), "--overwrite"]) == 2
    assert out.read_text() == "somebody's notes"


@pytest.mark.filterwarnings("ignore:nothing to resume")
def test_a_picture_of_somebody_is_not_overwritten_by_resuming(tmp_path, capsys):
    out, picture = tmp_path / "run.nc", tmp_path / "run.png"
    picture.write_text("somebody's picture")
    assert cli.status(["simulate", *SMALL_FLAGS, "--out", str(out), "--resume"]) == 2
    assert "run.png exists" in capsys.readouterr().err
    picture.unlink()
    for _ in range(2):  # what is complete is drawn again
        assert cli.status(["simulate", *SMALL_FLAGS, "--out", str(out), "--resume"]) == 0


@pytest.mark.parametrize("beta", ["-88", "88"])
def test_extreme_temperatures_give_numbers(tmp_path, capsys, beta):
    assert cli.status(["simulate", *SMALL_FLAGS, "--beta", beta, "--json", "--out", str(tmp_path / "run.nc")]) == 0
    said = capsys.readouterr()
    assert np.isfinite(json.loads(said.out)["energy_end"])
    assert said.err == ""


def test_a_start_that_is_no_number_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runs.Clusters, "__call__", lambda self, key, dtype: np.nan * np.ones((6, 4), dtype))
    assert cli.status(["simulate", *SMALL_FLAGS, "--start", "clusters", "--out", str(tmp_path / "run.nc")]) == 1
    assert "the start is not finite in replica 0 at layer 0" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--out", "x" * 300 + ".nc"], ["--start", "x" * 300 + ".npy"]])
def test_a_name_the_system_refuses_is_one_line(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert cli.status(["simulate", *SMALL_FLAGS, *arguments]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "File name too long" in said


def test_a_token_file_whose_name_is_no_text_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff.npy")
    np.save(name, np.eye(4))
    assert cli.status(["simulate", "--start", name]) == 2
    assert "expected a file name in UTF-8" in capsys.readouterr().err


def test_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.status(["simulate", *SMALL_FLAGS, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["steps"] == 36
    assert planned["seconds"] > 0
    assert planned["memory_gb"] > 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("attention", "noise"),
    [*((attention, "mlp") for attention in ATTENTIONS), *(("softmax", noise) for noise in NOISES if noise != "mlp")],
)
def test_every_named_attention_and_noise_runs(attention, noise):
    dataset = numbers(attention=attention, noise=noise, layers=2)
    energy = dataset["energy"].values
    assert np.isfinite(energy).all()
    assert (energy[:, 0] != energy[:, -1]).all()


def test_the_library_leaves_64_bits_to_its_caller():
    with jax.enable_x64(False), pytest.raises(UserError, match="jax_enable_x64"):
        numbers(dtype="float64")


TINY = st.fixed_dictionaries(
    {
        "dim": st.integers(2, 5),
        "tokens": st.integers(1, 4),
        "layers": st.integers(1, 3),
        "replicas": st.integers(1, 3),
        "width": st.sampled_from([1, 3, "inf"]),
        "activation": st.sampled_from(["relu", "tanh", "sin:4.6"]),
        "attention": st.sampled_from(ATTENTIONS),
        "noise": st.sampled_from(NOISES),
        "sigma_u": st.floats(0, 2),
        "sigma_w": st.floats(0, 2),
        "beta": st.floats(-4, 4),
        "attention_scale": st.floats(-2, 2),
        "horizon": st.floats(0.01, 20),
        "start": st.sampled_from(["uniform", "clusters", "equiangular"]),
        "clusters": st.just(1),
        "overlap": st.floats(0, 1),
        "seed": st.integers(0, 2**32 - 1),
        "save_tokens": st.booleans(),
    }
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tokens are:UserWarning")
@settings(max_examples=12, deadline=None)
@given(TINY)
def test_file_to_run_to_file(tmp_path_factory, values):
    """A file runs, its result says the same file, and that makes the same result; or it is one line."""
    folder = tmp_path_factory.mktemp("any")
    try:
        config = configure(values)
        (folder / "run.toml").write_text(to_toml(config))
        job = runs.prepare(read_toml(folder / "run.toml"))
    except UserError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
        return
    dataset = runs.run(job, folder / "run.nc")
    assert to_toml(configure(load(folder / "run.nc")[1]["config"])) == to_toml(config)
    assert runs.rerun(folder / "run.nc")["verdict"] == "identical"
    assert all(np.isfinite(dataset[name]).all() for name in dataset.data_vars)
    if config.save_tokens:
        np.testing.assert_allclose(np.linalg.norm(dataset["tokens"], axis=-1), 1, atol=1e-5)


@pytest.mark.slow
def test_the_command_switches_64_bits_on(tmp_path):
    script = "from synchronoise.cli import main; main()"
    arguments = ["simulate", *SMALL_FLAGS, "--dtype", "float64", "--save-tokens", "--out", str(tmp_path / "run.nc")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)
    assert load(tmp_path / "run.nc")[0]["tokens"].dtype == np.float64


@pytest.mark.slow
def test_one_thread_and_two_give_the_same_file(tmp_path):
    script = "from synchronoise.cli import main; main()"
    contents = []
    for name, flags in (("one", "--xla_cpu_multi_thread_eigen=false"), ("two", "")):
        arguments = ["simulate", "--layers", "20", "--replicas", "4", "--save-tokens", "--out", f"{tmp_path / name}.nc"]
        environment = {**os.environ, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1" if name == "one" else "2"}
        subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, env=environment)
        contents.append((tmp_path / f"{name}.nc").read_bytes())
    assert contents[0] == contents[1]
