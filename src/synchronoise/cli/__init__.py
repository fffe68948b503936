"""The command `synchronoise`: argument parsing, and nothing else.

Every command imports what it needs when it runs, so that help is immediate.  Results go to stdout, progress
and warnings to stderr.  Exit status: 0 done, 1 failed, 2 asked for wrongly, 130 interrupted.  A mistake is
one line.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence

from cyclopts import CycloptsError

from synchronoise.cli import exact, flow, meanfield, probe, run, study
from synchronoise.cli.common import app
from synchronoise.errors import RunError, UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # σ on an ASCII terminal, a file name that is no UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"synchronoise: warning: {message}\n"
    sys.exit(status(arguments))


def status(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; here every error a person can cause becomes one line and an exit status."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_none")
        sys.stdout.flush()
    except CycloptsError as error:
        error.verbose = False
        return _say(" ".join(str(error).split()) + " See --help.", 2)
    except UserError as error:
        return _say(str(error), 2)
    except RunError as error:
        return _say(str(error), 1)
    except MemoryError:
        return _say("out of memory; use fewer --replicas or --tokens, or a smaller --width", 1)
    except KeyboardInterrupt as interrupt:
        return _say(str(interrupt) or "interrupted", 130)
    except OSError as error:
        if error.filename is None:
            # The reader of our output has gone (`| head`), or its disk is full: let Python's exit flush elsewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else _say(f"{error.filename or 'output'}: {error.strerror}", 1)
    return 0


def _say(message: str, status: int) -> int:
    print(f"synchronoise: {message}", file=sys.stderr)
    return status
