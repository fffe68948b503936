"""Whatever stops a run, resuming it ends with the same bytes, and nothing half-written is left under its name."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from checks import interrupt_second_chunk
from synchronoise import cli, runs, store
from synchronoise.errors import RunError, UserError
from synchronoise.store import claimed, load, save

SMALL = {"dim": 4, "tokens": 6, "layers": 12, "replicas": 3, "width": 8, "chunk": 2, "save_tokens": True}
COMMAND = [sys.executable, "-c", "from synchronoise.cli import main; main()"]


@pytest.fixture(scope="module")
def job() -> runs.Job:
    return runs.prepare(SMALL)


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "run.nc"
    runs.run(job, out)
    assert os.listdir(out.parent) == ["run.nc"]
    return out.read_bytes()


def stop_at(monkeypatch, save_number: int, error: BaseException) -> None:
    """Let the run's `save_number`-th write (of a checkpoint or the result) raise `error` instead."""
    count = 0

    def counting(*arguments, **keywords):
        nonlocal count
        count += 1
        if count == save_number:
            raise error
        save(*arguments, **keywords)

    monkeypatch.setattr(runs, "save", counting)


@pytest.mark.filterwarnings("ignore:nothing to resume")  # stopped at the first write
@pytest.mark.parametrize("save_number", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("error", [RunError("cannot write: No space left on device"), SystemExit(9)], ids=repr)
def test_stopped_at_any_write_and_resumed(tmp_path, monkeypatch, job, whole, save_number, error):
    out = tmp_path / "run.nc"
    stop_at(monkeypatch, save_number, error)
    with pytest.raises(type(error)):
        runs.run(job, out)
    monkeypatch.undo()
    left = ["run.nc.partial"] if save_number > 1 else []
    assert os.listdir(tmp_path) == left
    if left:
        checkpoint, _ = load(tmp_path / "run.nc.partial", kind="checkpoint")
        assert checkpoint.attrs["rows"] == min(13, 2 * (save_number - 1))
        with pytest.raises(UserError, match="--resume continues it, --overwrite starts again"):
            runs.run(job, out)
    runs.run(job, out, resume=True)
    assert out.read_bytes() == whole
    assert os.listdir(tmp_path) == ["run.nc"]


def test_interrupted_it_says_how_to_go_on(tmp_path, monkeypatch, capsys, job, whole):
    out = tmp_path / "run.nc"
    arguments = ["simulate", "--out", str(out), "--save-tokens"]
    arguments += [word for name in SMALL if name != "save_tokens" for word in (f"--{name}", str(SMALL[name]))]
    stop_at(monkeypatch, 3, KeyboardInterrupt())
    assert cli.status(arguments) == 130
    assert "interrupted at layer 5 of 12; --resume continues" in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.status([*arguments, "--resume"]) == 0
    assert out.read_bytes() == whole
    assert cli.status([*arguments, "--resume"]) == 0, "resuming what is complete changes nothing"
    assert out.read_bytes() == whole


def test_checkpoints_come_by_time_unless_asked_for(tmp_path, monkeypatch):
    """A run stopped between two of them is written then, and resumed; Ctrl-C waits for one that is being written."""
    job, out = runs.prepare({**SMALL, "chunk": 0}), tmp_path / "run.nc"
    runs.run(job, tmp_path / "whole.nc")
    rows = []
    monkeypatch.setattr(
        runs, "save", lambda data, *rest, **how: (rows.append(data.attrs["rows"]), save(data, *rest, **how))
    )
    interrupt_second_chunk(monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="layer 1 of 12; --resume continues"):
        runs.run(job, out)
    assert rows == [2]  # not due yet, but left behind
    monkeypatch.undo()
    monkeypatch.setattr(runs, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    seal = store._seal

    def interrupted_seal(content):
        signal.raise_signal(signal.SIGINT)  # a checkpoint is due at once: in the middle of writing it
        return seal(content)

    (tmp_path / "run.nc.partial").unlink()
    monkeypatch.setattr(store, "_seal", interrupted_seal)
    with pytest.raises(KeyboardInterrupt, match="--resume continues"):
        runs.run(job, out)
    monkeypatch.undo()
    assert load(tmp_path / "run.nc.partial", kind="checkpoint")[0].attrs["rows"] == 2
    runs.run(job, out, resume=True)
    assert out.read_bytes() == (tmp_path / "whole.nc").read_bytes()


def test_resuming_with_nothing_there_starts(tmp_path, job, whole):
    with pytest.warns(UserWarning, match="nothing to resume, no run.nc.partial: the run starts at layer 0"):
        runs.run(job, tmp_path / "run.nc", resume=True)
    assert (tmp_path / "run.nc").read_bytes() == whole


def test_a_checkpoint_that_does_not_belong_is_refused(tmp_path, monkeypatch, job):
    out, partial = tmp_path / "run.nc", tmp_path / "run.nc.partial"
    stop_at(monkeypatch, 3, SystemExit(9))
    with pytest.raises(SystemExit):
        runs.run(job, out)
    monkeypatch.undo()
    content = partial.read_bytes()
    with pytest.raises(UserError, match="is of another run: seed: got 1, expected 0 as there"):
        runs.run(runs.prepare({**SMALL, "seed": 1}), out, resume=True)
    dataset, made_by = load(partial, kind="checkpoint")
    older = {**made_by, "environment": {**made_by["environment"], "jax": "0.7.0"}}
    save(dataset, partial, older, kind="checkpoint")
    with pytest.warns(UserWarning, match=r"was made by jax 0\.7\.0"):
        runs.run(job, out, resume=True)
    out.unlink()
    for bad, message in (
        (content[: len(content) // 2], "cut short"),
        (content[:3000] + b"x" + content[3001:], "damaged"),
        (b"", "not written by synchronoise"),
    ):
        partial.write_bytes(bad)
        with pytest.raises(RunError, match=message):
            runs.run(job, out, resume=True)
        assert not out.exists()


def test_two_runs_at_once_do_not_write_one_file(tmp_path, job, whole):
    """The second is refused, whatever it may overwrite; the first ends as if alone."""
    out = tmp_path / "run.nc"
    with claimed(out):
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match=r"another run is writing .*run\.nc"):
                runs.run(job, out, **how)
        assert os.listdir(tmp_path) == [".run.nc.lock"]
    runs.run(job, out)
    assert out.read_bytes() == whole
    assert os.listdir(tmp_path) == ["run.nc"]


def test_a_claim_ends_with_its_process(tmp_path, job, whole):
    script = f"""
import os, pathlib, signal
from synchronoise.store import claimed
with claimed(pathlib.Path({str(tmp_path / "run.nc")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".run.nc.lock"]
    runs.run(job, tmp_path / "run.nc")
    assert os.listdir(tmp_path) == ["run.nc"]
    assert (tmp_path / "run.nc").read_bytes() == whole


def test_another_chunk_may_continue(tmp_path, monkeypatch, job, whole):
    out = tmp_path / "run.nc"
    stop_at(monkeypatch, 3, SystemExit(9))
    with pytest.raises(SystemExit):
        runs.run(job, out)
    monkeypatch.undo()
    resumed = runs.run(runs.prepare({**SMALL, "chunk": 3}), out, resume=True)
    (tmp_path / "whole.nc").write_bytes(whole)
    for name, values in load(tmp_path / "whole.nc")[0].data_vars.items():
        assert values.values.tobytes() == resumed[name].values.tobytes()


def test_what_is_not_finite_stops_the_run_there(tmp_path, capsys):
    """Unnormalised attention at β = 88 overflows float32 (e^{89} does) at once; the noise is not to blame."""
    out = tmp_path / "run.nc"
    flags = ["--dim", "4", "--tokens", "3", "--layers", "6", "--replicas", "2", "--chunk", "1", "--out", str(out)]
    assert cli.status(["simulate", "--attention", "unnormalised", "--beta", "88", *flags]) == 1
    said = capsys.readouterr().err
    assert said.startswith("synchronoise: the attention is not finite in replica 0 at layer 1; ")
    assert "good up to layer 0 (attention = unnormalised, beta = 88.0, attention_scale = 1.0)" in said
    assert said.count("\n") == 1
    checkpoint, _ = load(f"{out}.partial", kind="checkpoint")
    assert checkpoint.attrs["rows"] == 1
    assert np.isfinite(checkpoint["state"]).all()
    assert not out.exists()
    assert cli.status(["show", f"{out}.partial"]) == 0
    assert "--beta 88.0" in capsys.readouterr().out


def test_a_full_disk_is_one_line(tmp_path):
    """A real refusal by the operating system (a limit on file size), in a process of its own."""
    script = (
        "import resource\nfrom synchronoise.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\nmain()"
    )
    flags = ["--tokens", "50", "--dim", "8", "--width", "8", "--layers", "20", "--chunk", "1", "--save-tokens"]
    arguments = ["simulate", *flags, "--replicas", "4", "--out", str(tmp_path / "run.nc")]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    # on a slow machine lines of progress come before it
    assert [line for line in done.stderr.splitlines() if not line.startswith("simulate: ")][1:] == []
    assert "cannot write" in done.stderr
    assert os.listdir(tmp_path) == ["run.nc.partial"]
    assert load(tmp_path / "run.nc.partial", kind="checkpoint")[0].attrs["rows"] > 0


LONG = [
    "simulate", "--tokens", "16", "--dim", "8", "--width", "16", "--replicas", "8", "--layers", "600",
    "--chunk", "4", "--every", "5", "--save-tokens",
]  # fmt: skip


def test_ctrl_c_while_a_checkpoint_is_put_together_loses_nothing(tmp_path, monkeypatch):
    job, out = runs.prepare(SMALL), tmp_path / "run.nc"
    build, calls = runs.xr.Dataset, []

    def interrupted(*arguments, **how):
        calls.append(None)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return build(*arguments, **how)

    monkeypatch.setattr(runs.xr, "Dataset", interrupted)
    with pytest.raises(KeyboardInterrupt, match="--resume continues"):
        runs.run(job, out)
    monkeypatch.undo()
    assert load(tmp_path / "run.nc.partial", kind="checkpoint")[0].attrs["rows"] > 0


@pytest.mark.slow
def test_killed_twenty_times_and_resumed(tmp_path):
    """SIGKILL at random moments, from before the first chunk to after the last: the same file in the end."""
    whole, out = tmp_path / "whole" / "run.nc", tmp_path / "run.nc"
    whole.parent.mkdir()
    started = time.monotonic()
    subprocess.run([*COMMAND, *LONG, "--out", str(whole)], check=True, capture_output=True)
    duration = time.monotonic() - started
    moments = random.Random(0)
    kills = 0
    while kills < 20:
        process = subprocess.Popen(
            [*COMMAND, *LONG, "--out", str(out), "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            _, said = process.communicate(timeout=moments.uniform(0.4, 1.0) * duration)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
        if process.returncode == 0:
            assert out.read_bytes() == whole.read_bytes()
            out.unlink()  # it was done before the kill: begin again, and kill earlier
            out.with_suffix(".png").unlink()
            duration *= 0.8
            continue
        kills += 1
        assert process.returncode == -signal.SIGKILL, said.decode()
        assert not out.exists() or out.read_bytes() == whole.read_bytes()
        partial = Path(f"{out}.partial")
        if partial.exists():
            assert load(partial, kind="checkpoint")[0].attrs["rows"] > 0
    subprocess.run([*COMMAND, *LONG, "--out", str(out), "--resume"], check=True, capture_output=True)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["run.nc", "run.png", "whole"]


@pytest.mark.slow
def test_ctrl_c_ends_at_the_next_chunk_and_resumes(tmp_path):
    out = tmp_path / "run.nc"
    # a shell's background job starts with Ctrl-C ignored: undo that, so that the test is the same everywhere
    script = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from synchronoise.cli import main\nmain()"
    )
    command = [sys.executable, "-c", script, *LONG, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not Path(f"{out}.partial").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume continues" in said
    assert "Traceback" not in said
    subprocess.run([*COMMAND, *LONG, "--out", str(out), "--resume"], check=True, capture_output=True)
    assert np.isfinite(load(out)[0]["tokens"]).all()
