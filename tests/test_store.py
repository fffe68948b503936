"""Result files are whole or absent, say what made them, and refuse to be misread."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr

from synchronoise import store
from synchronoise.errors import RunError, UserError
from synchronoise.store import check_output, load, save, write_atomically

PROVENANCE = {"config": {"dim": 5, "activation": "relu"}, "seed": 7, "command": "synchronoise simulate"}


@pytest.fixture
def dataset():
    values = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    return xr.Dataset(
        {"energy": (("replica", "layer"), values, {"long_name": "energy E_β"})},
        coords={"layer": np.arange(4), "time": ("layer", np.linspace(0, 1, 4))},
    )


def test_what_is_saved_is_loaded(tmp_path, dataset):
    save(dataset, tmp_path / "run.nc", PROVENANCE)
    again, provenance = load(tmp_path / "run.nc")
    xr.testing.assert_identical(again, dataset)
    assert again.energy.dtype == np.float32
    assert provenance == PROVENANCE
    assert os.listdir(tmp_path) == ["run.nc"]


def test_the_same_result_is_the_same_bytes(tmp_path, dataset):
    for name in ("a.nc", "b.nc"):
        save(dataset, tmp_path / name, PROVENANCE)
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()
    save(dataset, tmp_path / "b.nc", {**PROVENANCE, "seed": 8})
    assert (tmp_path / "a.nc").read_bytes() != (tmp_path / "b.nc").read_bytes()


def test_ctrl_c_waits_for_a_file_that_is_being_written(tmp_path, dataset, monkeypatch):
    seal, handler = store._seal, signal.getsignal(signal.SIGINT)

    def interrupted(content):
        signal.raise_signal(signal.SIGINT)
        return seal(content)

    monkeypatch.setattr(store, "_seal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(dataset, tmp_path / "run.nc", PROVENANCE)
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(RunError, match="cannot write"):  # what ends the run as well goes first
        save(dataset, tmp_path / "no" / "run.nc", PROVENANCE)
    monkeypatch.undo()
    xr.testing.assert_identical(load(tmp_path / "run.nc")[0], dataset)
    with ThreadPoolExecutor(1) as pool:  # where no signal arrives
        assert pool.submit(load, tmp_path / "run.nc").result()[1] == PROVENANCE


def test_nothing_in_a_file_is_pickled(tmp_path, dataset):
    with pytest.raises((TypeError, ValueError)):
        save(dataset.assign(thing=("x", np.array([{1}, {2}], dtype=object))), tmp_path / "run.nc", PROVENANCE)
    assert os.listdir(tmp_path) == []


def test_any_netcdf_reader_reads_a_result(tmp_path, dataset):
    save(dataset, tmp_path / "run.nc", PROVENANCE)
    with xr.open_dataset(tmp_path / "run.nc", engine="h5netcdf") as again:
        np.testing.assert_array_equal(again.energy, dataset.energy)
        assert again.attrs["format_version"] == 1


def test_a_stranger_or_another_kind_is_refused(tmp_path, dataset):
    foreign = tmp_path / "foreign.nc"
    dataset.to_netcdf(foreign, engine="h5netcdf")
    (tmp_path / "text.nc").write_text("energy")
    (tmp_path / "empty.nc").touch()
    for name in ("foreign.nc", "text.nc", "empty.nc"):
        with pytest.raises(RunError, match="not written by synchronoise"):
            load(tmp_path / name)
    save(dataset, tmp_path / "part.nc", PROVENANCE, kind="checkpoint")
    with pytest.raises(RunError, match="is a synchronoise checkpoint, not a run"):
        load(tmp_path / "part.nc")
    assert load(tmp_path / "part.nc", kind="checkpoint")[1] == PROVENANCE
    with pytest.raises(UserError, match="No such file"):
        load(tmp_path / "none.nc")


@pytest.mark.parametrize("older_or_newer", [0, 2])
def test_another_format_version_is_refused(tmp_path, dataset, monkeypatch, older_or_newer):
    monkeypatch.setattr(store, "FORMAT_VERSION", older_or_newer)
    save(dataset, tmp_path / "run.nc", PROVENANCE)
    monkeypatch.undo()
    with pytest.raises(RunError, match=f"format version {older_or_newer}, this synchronoise reads 1"):
        load(tmp_path / "run.nc")


def test_a_damaged_file_is_refused(tmp_path, dataset):
    """Cut anywhere, or one bit flipped anywhere."""
    path = tmp_path / "run.nc"
    save(dataset, path, PROVENANCE)
    content = path.read_bytes()
    generator = np.random.default_rng(1)
    for length in generator.integers(0, len(content), 50):
        path.write_bytes(content[:length])
        with pytest.raises(RunError, match="cut short"):
            load(path)
    for position in generator.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(RunError):
            load(path)
    path.write_bytes(content)
    assert load(path)[1] == PROVENANCE


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "run.nc"
    write_atomically(path, b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*run\.nc: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.nc"]


def test_a_file_too_large_for_the_disk_is_a_failed_run(tmp_path):
    """The same with a real refusal by the operating system, in a process of its own."""
    script = (
        "import resource, sys\n"
        "from synchronoise.store import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "write_atomically(sys.argv[1], bytes(100_000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run.nc")], capture_output=True, text=True, check=False
    )
    assert "RunError: cannot write" in done.stderr
    assert os.listdir(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_results_are_as_readable_as_any_new_file(tmp_path):
    write_atomically(tmp_path / "run.nc", b"")
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "run.nc").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_an_output_that_should_not_be_written_is_refused(tmp_path, dataset, monkeypatch):
    path = tmp_path / "run.nc"
    assert check_output(path) == path
    save(dataset, path, PROVENANCE)
    with pytest.raises(UserError, match="exists; --overwrite"):
        check_output(path)
    assert check_output(path, overwrite=True) == path
    path.write_text("somebody's notes")
    with pytest.raises(UserError, match="not overwritten"):
        check_output(path, overwrite=True)
    with pytest.raises(UserError, match="does not exist"):
        check_output(tmp_path / "missing" / "run.nc")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match="is not writable"):
        check_output(tmp_path / "new.nc")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"ending in \.nc"):
        check_output(tmp_path / "run.txt")
    (tmp_path / "folder.nc").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        check_output(tmp_path / "folder.nc", overwrite=True)
