"""The folder of the paper's results: what is there and current is kept, what is somebody else's is never touched."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from synchronoise.errors import RunError, UserError
from synchronoise.paper.experiments import Run
from synchronoise.store import clear_leftovers, environment, load, save, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "synchronoise paper 1"
MEND = "remove it, or choose another --out"
_KEY = "Made-from"  # the text field of a PNG that names the data it shows


class Folder:
    """`out`/summary.json, tables and figures, and `out`/data/*.nc, one for each run.

    A folder is ours when it was empty or its summary.json says so.  Raises `UserError` for another one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     Folder(place).summary
    {'format': 'synchronoise paper 1'}
    """

    def __init__(self, out: str | Path, *, overwrite: bool = False):
        self.out, self.data, self.overwrite = Path(out), Path(out) / "data", overwrite
        self.fingerprints: dict[str, str] = {}
        self.summary: dict[str, Any] = {"format": FORMAT}
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if any(self.out.iterdir()):
                self.summary = self._read_summary()
            else:
                self.write_summary()
            self.data.mkdir(exist_ok=True)
        except OSError as failure:
            raise UserError(
                f"cannot use the folder {self.out}: {failure.strerror}", mend="choose another --out"
            ) from None

    def _read_summary(self) -> dict[str, Any]:
        path = self.out / "summary.json"
        if not path.is_file():
            raise UserError(
                f"the folder {self.out} holds other files", mend="choose an empty or a new folder for --out"
            )
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            if summary["format"] == FORMAT:
                return summary
        except (ValueError, KeyError, TypeError):
            pass
        raise UserError(f"{path} is damaged or not ours", mend=MEND)

    def write_summary(self) -> None:
        """Write summary.json as it stands."""
        write_atomically(self.out / "summary.json", json.dumps(self.summary, indent=1, ensure_ascii=False).encode())

    def read(self, name: str, run: Run) -> xr.Dataset | None:
        """The stored result of a run; None when it has to be computed.

        Raises `UserError` for a file that is damaged or foreign, and, without `overwrite`, for one of other settings.
        """
        path, settings = self._path(name), _provenance(run)
        if not path.exists():
            return None
        try:
            dataset, made_by = load(path)
        except RunError as failure:
            raise UserError(str(failure), mend=MEND) from None
        if made_by == settings:
            self._remember(name, path)
            return dataset
        if self.overwrite:
            return None
        raise UserError(
            f"{path} was made with other settings ({_first_difference(made_by, settings)})",
            mend="--overwrite replaces it, another --out keeps it",
        )

    def keep(self, name: str, run: Run, dataset: xr.Dataset) -> None:
        """Store the result of a run, whole or not at all."""
        path = self._path(name)
        clear_leftovers(path)
        save(dataset, path, _provenance(run))
        self._remember(name, path)

    def draw(self, name: str, data: list[str], figure: Callable[[], Figure]) -> bool:
        """Draw a figure of these runs, unless there is one of exactly the same data; whether it was drawn."""
        path = self.out / name
        text = "".join(self.fingerprints[run] for run in data) + environment()["synchronoise"]
        made_from = hashlib.sha256(text.encode()).hexdigest()
        if path.exists() and not self.overwrite and _made_from(path) == made_from:
            return False
        content = io.BytesIO()
        figure().savefig(content, format="png", dpi=200, metadata={_KEY: made_from})
        write_atomically(path, content.getvalue())
        return True

    def _path(self, name: str) -> Path:
        return self.data / f"{name}.nc"

    def _remember(self, name: str, path: Path) -> None:
        self.fingerprints[name] = hashlib.sha256(path.read_bytes()).hexdigest()


def _provenance(run: Run) -> dict[str, Any]:
    return {"settings": asdict(run), "environment": environment()}


def _first_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    for part in ours:
        then, now = theirs.get(part) or {}, ours[part]
        for name in now:
            if then.get(name) != now[name]:
                return f"{name} {then.get(name)}, now {now[name]}"
    return "a setting this version does not know"


def _made_from(path: Path) -> str | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.info.get(_KEY)
    except (UnidentifiedImageError, OSError):
        return None
