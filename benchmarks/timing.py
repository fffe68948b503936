"""How a time is taken: a first call apart, then the median of five, with what the machine is."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

CALLS = 5
PACKAGES = ("synchronoise", "jax", "numpy", "diffrax", "torch", "torchsde")


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """(median of five calls, first call): wall-clock seconds; the first one traces and compiles."""
    times = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), times[0]


def best_of_threads(call: Callable[[], Any]) -> tuple[float, float]:
    """`seconds` of a call of PyTorch, with all its threads or with one, whichever is faster: small arrays want one."""
    import torch

    threads = torch.get_num_threads()
    found = [seconds(call)]
    torch.set_num_threads(1)
    found.append(seconds(call))
    torch.set_num_threads(threads)
    return min(found)


def machine() -> dict[str, Any]:
    """The processor, its cores and their load before the benchmark, and the versions of what is compared."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {"machine": platform.machine(), "cores": cores, "load": load, "python": platform.python_version(), **found}


def peak_memory() -> float:
    """GB this process has taken at most, from its start on."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def line(case: str, setting: str, method: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    """Print one measurement as a JSON line, and return it."""
    row = {"case": case, "setting": setting, "method": method, "value": value, "unit": unit, **more}
    print(json.dumps(row), flush=True)
    return row
