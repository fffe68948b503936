"""The exact theory of synchronization by noise: NumPy and SciPy only, never the simulator or JAX."""

from synchronoise.theory.exponents import (
    assumption_1,
    critical_moment,
    lambda_1,
    lambda_bar,
    lambda_bar_prime,
    lyapunov_spectrum,
    moment_exponent,
)
from synchronoise.theory.report import theory_report

__all__ = [
    "assumption_1",
    "critical_moment",
    "lambda_1",
    "lambda_bar",
    "lambda_bar_prime",
    "lyapunov_spectrum",
    "moment_exponent",
    "theory_report",
]
