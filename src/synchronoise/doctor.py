"""Health of the installation: versions, devices, precision, and whether it computes what is known exactly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from synchronoise.problems import PROBLEMS, Problem
from synchronoise.simulation import simulate
from synchronoise.store import environment

# One row more than the blocks in which the broken compiler split the loop (jax issue #39103).
CANARY_ROWS = {"float32": 32_769, "float64": 16_385}
REPLICAS = 2048


def canary(dtype: str) -> float:
    """max_i |f(x_i) - exact| / exact, f(x) = Σ_k (A x)_k^p for p = 1, 2, rows x_i of width 3.

    There are `CANARY_ROWS[dtype]` rows.  A vmapped small mat-vec followed by a sum, under `jit`: jaxlib
    0.9.0-0.10.2 compiles it to wrong numbers on some processors, silently (jax issue #39103; 0.9.1-0.10.1
    fail p = 1, 0.10.2 fails p = 2).  Every entry is positive, so a right compiler is within a few ulp of
    NumPy in float64.

    >>> canary("float32") < 1e-6
    True
    """
    with jax.enable_x64(True):
        matrix = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 10]], dtype=dtype)
        rows = np.arange(1, 3 * CANARY_ROWS[dtype] + 1, dtype=dtype).reshape(-1, 3)
        products = rows.astype("float64") @ matrix.T.astype("float64")
        worst = 0.0
        for power in (1, 2):
            computed = jax.jit(jax.vmap(lambda row, power=power: jnp.sum((matrix @ row) ** power)))(rows)
            exact = np.sum(products**power, axis=1)
            worst = max(worst, float(np.max(np.abs(np.asarray(computed, dtype="float64") - exact) / exact)))
        return worst


def is_right(dtype: str, error: float) -> bool:
    """Whether the canary's relative error is rounding: at most eight ulp of `dtype`.

    >>> is_right("float32", 1e-3)
    False
    """
    return error <= 8 * float(np.finfo(dtype).eps)


def measure(problem: Problem) -> dict[str, float]:
    """A reference problem simulated by `REPLICAS` replicas: mean, its standard error, and the exact value.

    >>> sorted(measure(PROBLEMS["token decay"]))
    ['bias', 'exact', 'mean', 'se']
    """
    run = simulate(
        problem.model, problem.start, observers=problem.observers, every=problem.model.layers, replicas=REPLICAS
    )
    values = np.asarray(problem.read(run), dtype=float)
    return {
        "mean": float(values.mean()),
        "se": float(values.std(ddof=1) / np.sqrt(values.size)),
        "exact": problem.exact,
        "bias": problem.bias,
    }


def agrees(measured: dict[str, float]) -> bool:
    """Whether |mean - exact| <= 5 standard errors and the bias of the problem's finite depth.

    >>> agrees({"mean": 0.75, "se": 0.01, "exact": 0.7, "bias": 0.002})
    True
    >>> agrees({"mean": 0.80, "se": 0.01, "exact": 0.7, "bias": 0.002})
    False
    """
    return abs(measured["mean"] - measured["exact"]) <= 5 * measured["se"] + measured["bias"]


def examine() -> dict[str, Any]:
    """Everything `synchronoise doctor` prints, and under "healthy" whether results can be trusted here.

    >>> examine()["healthy"]
    True
    """
    errors = {dtype: canary(dtype) for dtype in CANARY_ROWS}
    measured = {name: measure(PROBLEMS[name]) for name in ("token decay", "pair energy")}
    return {
        **environment(),
        "devices": [str(device) for device in jax.devices()],
        "x64": jax.dtypes.canonicalize_dtype("float64") == "float64",
        "canary": errors,
        **measured,
        "healthy": all(is_right(dtype, error) for dtype, error in errors.items())
        and all(map(agrees, measured.values())),
    }
