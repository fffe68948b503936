"""Results on disk: one netCDF file per run, which says what made it.

A file is whole or absent: it is written under a temporary name in the same folder, flushed to the disk,
then renamed.  It carries a format version, one JSON provenance string and, after its last byte, its
SHA-256, so that a foreign, damaged or older file is refused instead of misread.  It is HDF5 without any
pickled object: opening one runs no code.  `docs/files.md` describes the format.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import json
import os
import platform
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xarray as xr

from synchronoise.errors import RunError, UserError

FORMAT = "synchronoise result"
FORMAT_VERSION = 1
_SEAL = b"\nsynchronoise sha256 "
_SEAL_LENGTH = len(_SEAL) + 64
_PACKAGES = ("synchronoise", "jax", "jaxlib", "numpy", "scipy", "xarray")


def environment() -> dict[str, str]:
    """What a rerun must share to give the same bits: machine, processor, Python and package versions.

    >>> sorted(environment())[:3]
    ['jax', 'jaxlib', 'machine']
    """
    return {
        "machine": f"{platform.system()} {platform.machine()} {_processor()}".strip(),
        "python": platform.python_version(),
        **_versions(),
    }


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in _PACKAGES}


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def check_output(path: str | Path, *, overwrite: bool = False) -> Path:
    """Refuse, before anything is computed, an output that could not or should not be written.

    Raises `UserError` when the name does not end in .nc, its folder is missing or not writable, or the file
    exists and `overwrite` is false or it is not one of ours.

    >>> check_output("run.txt")
    Traceback (most recent call last):
    synchronoise.errors.UserError: output 'run.txt': got '.txt', expected a name ending in .nc; ...
    """
    path = Path(path)
    if path.suffix != ".nc":
        raise UserError(
            f"output {str(path)!r}",
            got=path.suffix,
            expected="a name ending in .nc",
            mend=f"use --out {path.with_suffix('.nc') if path.name else 'result.nc'}",
        )
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"the folder {folder} of the output does not exist", mend="make it, or choose another --out")
    if not os.access(folder, os.W_OK):
        raise UserError(f"the folder {folder} is not writable", mend="choose another --out")
    if path.is_dir():
        raise UserError(f"{path} is a folder", mend="choose another --out")
    if path.exists():
        if not overwrite:
            raise UserError(f"{path} exists", mend="--overwrite replaces it, --out names another file")
        try:
            load(path)
        except RunError as failure:
            raise UserError(f"{failure}: not overwritten", mend="choose another --out") from None
    return path


def save(dataset: xr.Dataset, path: str | Path, provenance: Mapping[str, Any], *, kind: str = "run") -> None:
    """Write a dataset of numbers, whole or not at all; `kind` is "run" or "checkpoint".

    `provenance` is JSON data.  The same dataset and provenance always make the same bytes: nothing of the
    moment (time, duration, process) is written.  Ctrl-C waits for the end.  Raises `RunError` when the disk refuses;
    nothing is then left.

    >>> save(xr.Dataset({"energy": ("layer", [0.5, 0.25])}), "/no/such/folder/run.nc", {})
    Traceback (most recent call last):
    synchronoise.errors.RunError: cannot write /no/such/folder/run.nc: No such file or directory
    """
    ours = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "provenance": json.dumps(provenance, sort_keys=True, ensure_ascii=False, allow_nan=False),
    }
    with uninterrupted():
        content = bytes(dataset.assign_attrs(ours).to_netcdf(engine="h5netcdf"))
        write_atomically(path, content + _seal(content))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: inside the HDF5 library it can be lost, or leave a lock held for ever."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # no other one is interrupted
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:  # a failure goes first: it ends the run as well, and says why
        signal.raise_signal(signal.SIGINT)


def write_atomically(path: str | Path, content: bytes | memoryview) -> None:
    """Put `content` under `path` so that a reader sees the old file or the new one, never a part.

    Raises `RunError` when the disk refuses; the temporary file is then removed and an old file is untouched.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/a", b"whole")
    ...     os.listdir(folder)
    ['a']
    """
    path = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a result is as readable as any file its owner creates
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
        temporary = None
    except OSError as failure:
        raise RunError(f"cannot write {path}: {failure.strerror or failure}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold the output `path` while it is computed: a second run into it at the same time is a `UserError`.

    The claim is a lock that the system releases when the process ends, however it ends.

    >>> with tempfile.TemporaryDirectory() as folder, claimed(Path(folder, "run.nc")):
    ...     os.listdir(folder)
    ['.run.nc.lock']
    """
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as file:
        busy = False
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = True
        # The holder before may have removed the file between our opening and our locking it.
        if busy or not lock.exists() or not os.path.samestat(os.fstat(file.fileno()), lock.stat()):
            raise UserError(f"another run is writing {path}", mend="wait for it, or choose another --out")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def clear_leftovers(path: str | Path) -> None:
    """Remove the temporary files that a killed process left beside `path` and its checkpoint.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, ".run.nc.partial.k3jx.tmp").write_bytes(b"half")
    ...     clear_leftovers(f"{folder}/run.nc")
    ...     os.listdir(folder)
    []
    """
    path = Path(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*tmp"):
        leftover.unlink(missing_ok=True)


def load(path: str | Path, *, kind: str | None = "run") -> tuple[xr.Dataset, dict[str, Any]]:
    """The dataset of a file and its provenance, in memory; `kind` None accepts a run and a checkpoint.

    The seal is checked before anything is parsed, so no damaged file reaches the HDF5 library.  Raises
    `UserError` when there is no such file and `RunError` when it is foreign, damaged, of another kind, or
    of a format that this version does not read.

    >>> load("/no/such/run.nc")
    Traceback (most recent call last):
    synchronoise.errors.UserError: cannot read /no/such/run.nc: No such file or directory
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as failure:
        raise UserError(f"cannot read {path}: {failure.strerror}") from None
    body, seal = content[:-_SEAL_LENGTH], content[-_SEAL_LENGTH:]
    if not seal.startswith(_SEAL):
        raise RunError(f"{path} was not written by synchronoise, or is cut short")
    if seal != _seal(body):
        raise RunError(f"{path} is damaged: its bytes do not match their SHA-256")
    with uninterrupted():
        dataset = xr.load_dataset(io.BytesIO(body), engine="h5netcdf", decode_times=False)
    ours = {name: dataset.attrs.pop(name) for name in ("format", "format_version", "kind", "provenance")}
    if ours["format_version"] != FORMAT_VERSION:
        raise RunError(
            f"{path} has format version {ours['format_version']}, this synchronoise reads {FORMAT_VERSION}: "
            "make it again, or read it with the version that wrote it"
        )
    if kind is not None and ours["kind"] != kind:
        raise RunError(f"{path} is a synchronoise {ours['kind']}, not a {kind}")
    return dataset, json.loads(ours["provenance"])


def _seal(content: bytes) -> bytes:
    """What follows the netCDF bytes; HDF5 readers stop before it."""
    return _SEAL + hashlib.sha256(content).hexdigest().encode()
