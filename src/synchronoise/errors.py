"""Errors a user can make, said in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in what was asked for: the message says what, what was got, what is expected, and the mend.

    The command line prints it without a traceback and exits with 2.

    >>> raise UserError("dim", got=1, expected="an integer >= 2", mend="use --dim 2 or more")
    Traceback (most recent call last):
    synchronoise.errors.UserError: dim: got 1, expected an integer >= 2; use --dim 2 or more
    """

    def __init__(self, what: str, *, got: object = None, expected: str = "", mend: str = ""):
        message = what
        if expected:
            message += f": got {got!r}, expected {expected}"
        if mend:
            message += f"; {mend}"
        super().__init__(message)


class RunError(RuntimeError):
    """A run that failed although it was asked for correctly (exit 1): a full disk, a NaN, a foreign file."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known names, the closest one first suggested.

    >>> did_you_mean("rellu", ["relu", "tanh"])
    "did you mean 'relu'? known: relu, tanh"
    """
    names = sorted(known)
    close = get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names)}"
