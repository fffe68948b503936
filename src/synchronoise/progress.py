"""Progress on stderr: what, how far, how fast, and when it will be done."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar on a terminal, a plain line every few seconds elsewhere, nothing when ``shown`` is false.

    >>> with Progress("simulate", 10, "layer", shown=False) as progress:
    ...     progress.advance(10)
    """

    seconds_between_lines = 10.0

    def __init__(self, what: str, total: int, unit: str, *, done: int = 0, shown: bool = True):
        self.what, self.total, self.unit, self.done, self.first = what, total, unit, done, done
        self.shown = shown
        self.bar = None
        self.start = self.last = time.monotonic()
        if shown and sys.stderr.isatty():
            self.bar = tqdm(desc=what, total=total, unit=unit, initial=done, file=sys.stderr, leave=False)

    def advance(self, steps: int) -> None:
        """Count ``steps`` more as done."""
        self.done += steps
        if self.bar is not None:
            self.bar.update(steps)
        elif self.shown and time.monotonic() - self.last >= self.seconds_between_lines:
            self._line()

    def _line(self) -> None:
        self.last = time.monotonic()
        line = tqdm.format_meter(
            self.done, self.total, self.last - self.start, prefix=self.what, unit=self.unit, initial=self.first, ncols=0
        )
        print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.last > self.start and kind is None:
            self._line()  # whoever saw it begin sees it end
