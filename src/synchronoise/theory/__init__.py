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
from synchronoise.theory.kolmogorov import PairAccuracyWarning, PairExpectation, pair_expectation
from synchronoise.theory.rates import (
    SharpRate,
    StationaryOverlap,
    absorption_probability,
    sharp_rate,
    stationary_overlap,
)
from synchronoise.theory.report import pair_report, theory_report
from synchronoise.theory.two_point import (
    PairAttention,
    PairLaw,
    field_noise,
    kernel_law,
    private_noise,
    value_noise,
    vector_noise,
)

__all__ = [
    "PairAccuracyWarning",
    "PairAttention",
    "PairExpectation",
    "PairLaw",
    "SharpRate",
    "StationaryOverlap",
    "absorption_probability",
    "assumption_1",
    "critical_moment",
    "field_noise",
    "kernel_law",
    "lambda_1",
    "lambda_bar",
    "lambda_bar_prime",
    "lyapunov_spectrum",
    "moment_exponent",
    "pair_expectation",
    "pair_report",
    "private_noise",
    "sharp_rate",
    "stationary_overlap",
    "theory_report",
    "value_noise",
    "vector_noise",
]
