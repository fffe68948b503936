"""Everything the theory says about one choice of activation, dimension and biases, as one dictionary."""

from __future__ import annotations

from typing import Any

from synchronoise.activations import Activation
from synchronoise.kernel import Kernel, Real
from synchronoise.theory.exponents import (
    assumption_1,
    lambda_1,
    lambda_bar,
    lambda_bar_prime,
    lyapunov_spectrum,
)


def theory_report(
    activation: str | Activation = "relu",
    dim: int = 64,
    sigma_u: Real = 0.0,
    sigma_w: Real = 0.0,
    beta: Real = 1.0,
) -> dict[str, Any]:
    """κ(1), κ'(1), λ_1, λ̄, λ̄', ... of THEORY §6, and a verdict in words: plain numbers, ready for JSON.

    >>> report = theory_report("relu", dim=5)
    >>> report["lambda_1"].__round__(12), report["assumption_1"]
    (-0.1, False)
    """
    kernel = Kernel(activation, dim, sigma_u, sigma_w)
    return {
        "activation": kernel.activation.name,
        "dim": kernel.dim,
        "sigma_u": kernel.sigma_u,
        "sigma_w": kernel.sigma_w,
        "beta": float(beta),
        "kappa_1": kernel.kappa_1,
        "dkappa_1": kernel.dkappa_1,
        "lambda_1": lambda_1(kernel),
        "lyapunov_spectrum": lyapunov_spectrum(kernel),
        "lambda_bar": lambda_bar(kernel),
        "lambda_bar_prime": lambda_bar_prime(kernel, beta),
        "sharp_rate": None,
        "odd": kernel.odd,
        "assumption_1": assumption_1(kernel),
        "verdict": verdict(kernel, float(beta)),
    }


def verdict(kernel: Kernel, beta: float) -> str:
    """Whether tokens synchronise under the noise alone, and whether Theorem 1.4 says so, in words."""
    top, bar, bound = lambda_1(kernel), lambda_bar(kernel), lambda_bar_prime(kernel, beta)
    if top >= 0:
        words = [f"tokens do not synchronise: λ_1 = {top:.4g} is not negative"]
    elif kernel.odd:
        words = [f"odd field: tokens synchronise up to sign at rate {top:.4g}, into two antipodal clusters"]
    else:
        words = [f"tokens synchronise almost surely, distances decay at rate {top:.4g}"]
    if bound < 0:
        words.append(f"Theorem 1.4 bounds the mean energy by e^({bound:.4g} t)")
    elif kernel.odd:
        words.append("Theorem 1.4 does not apply because the field is odd")
    elif bar >= 0:
        words.append(f"Theorem 1.4 does not apply because λ̄ = {bar:.4g} is not negative")
    else:
        words.append(f"Theorem 1.4 gives no decay at this β because λ̄' = {bound:.4g} is not negative")
    return "; ".join(words)
