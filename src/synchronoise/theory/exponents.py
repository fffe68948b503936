"""Exponents and rates of the noise alone, as plain functions of a kernel (THEORY §6)."""

from __future__ import annotations

import numpy as np

from synchronoise.errors import UserError
from synchronoise.kernel import Kernel, Real


def lambda_1(kernel: Kernel) -> float:
    """λ_1 = ((d-3) κ'(1) - (d-1) κ(1)) / 2, the top Lyapunov exponent of the flow of tokens (THEORY §6).

    The distance of two close tokens behaves like e^{λ_1 t}: they merge where λ_1 < 0.

    >>> round(lambda_1(Kernel("relu", 5)), 12)
    -0.1
    """
    d = kernel.dim
    return ((d - 3) * kernel.dkappa_1 - (d - 1) * kernel.kappa_1) / 2


def lyapunov_spectrum(kernel: Kernel) -> list[float]:
    """λ_k = λ_1 - (k-1) κ'(1), k = 1..d-1 (THEORY §6).

    >>> [round(x, 12) for x in lyapunov_spectrum(Kernel("relu", 5))]
    [-0.1, -0.2, -0.3, -0.4]
    """
    top = lambda_1(kernel)
    return [top - k * kernel.dkappa_1 for k in range(kernel.dim - 1)]


def lambda_bar(kernel: Kernel) -> float:
    """λ̄ = (d-1) κ'(1) - (d-3) κ(1) = 2 λ_1 + 2 (κ(1) + κ'(1)) (THEORY §6).

    The growth rate of E|x-y|² for close tokens; not to be confused with the typical rate 2 λ_1 < λ̄.

    >>> round(lambda_bar(Kernel("relu", 5)), 12)
    0.2
    """
    d = kernel.dim
    return (d - 1) * kernel.dkappa_1 - (d - 3) * kernel.kappa_1


def moment_exponent(kernel: Kernel, p: Real) -> float:
    """Λ(p) = p λ̄ + 2 p (p-1) (κ(1) + κ'(1)) = 2 λ_1 p + 2 s p², the growth rate of E ε^p for close tokens.

    ε = |x-y|²/2 (THEORY §6, ours).  It is the rate of E ε^p up to p = p* (`critical_moment`).

    >>> kernel = Kernel("gelu", 8, 0.1)
    >>> moment_exponent(kernel, 1.0) == lambda_bar(kernel)
    True
    """
    return p * lambda_bar(kernel) + 2 * p * (p - 1) * (kernel.kappa_1 + kernel.dkappa_1)


def critical_moment(kernel: Kernel) -> float:
    """p* = -λ_1 / (2 (κ(1) + κ'(1))), where Λ is smallest (THEORY §6).

    >>> round(critical_moment(Kernel("relu", 5)), 12)
    0.25
    """
    return -lambda_1(kernel) / (2 * (kernel.kappa_1 + kernel.dkappa_1))


def energy_form(kernel: Kernel, beta: Real, epsilon: np.ndarray) -> np.ndarray:
    """F(1-ε) of λ̄' = -inf F, without a cancellation as ε -> 0, where F = -λ̄ (THEORY §6).

    F = (G/ε) βε / (e^{βε} - 1),
    G/ε = κ(1) ((d-1) - (2-ε)(1-βε)) - (δ(ε)/ε) (d-1 - ε(2-ε)(1 + β(1-ε))).

    >>> import numpy as np
    >>> kernel = Kernel("relu", 10, 0.3)
    >>> float(energy_form(kernel, 1.0, np.zeros(1))[0] + lambda_bar(kernel)).__round__(12)
    0.0
    """
    d, k1, rest = kernel.dim, kernel.kappa_1, 2.0 - epsilon
    slope = kernel.chord_slope(epsilon)
    form = k1 * ((d - 1) - rest * (1 - beta * epsilon))
    form = form - slope * (d - 1 - epsilon * rest * (1 + beta * (1 - epsilon)))
    x = np.minimum(beta * epsilon, 700.0)  # beyond, e^x overflows and the weight is 0
    return form * np.divide(x, np.expm1(x), out=np.ones_like(x), where=x > 0)


def check_energy_beta(beta: Real) -> None:
    """Refuse a β for which E_β is no energy."""
    if not 0 <= beta < np.inf:
        raise UserError("beta", got=beta, expected="a finite number >= 0", mend="e.g. --beta 1")


def lambda_bar_prime(kernel: Kernel, beta: Real = 1.0) -> float:
    """λ̄' = -inf_{-1<=u<=1} F(u): E[E_β(μ_t)] <= e^{(ε + λ̄') t} E[E_β(μ_0)] (THEORY §6, Theorem 1.4).

    `beta` >= 0 is the β of the energy; at 0 the energy is the mean squared distance.  λ̄' >= λ̄.
    Raises `UserError` for a negative beta.

    >>> round(lambda_bar_prime(Kernel("relu", 10, 0.3), 1.0), 4)
    -0.173
    """
    check_energy_beta(beta)
    low, high, lowest = 0.0, np.pi, np.inf
    for _ in range(6):
        # ε = 1 - cos(angle): both ends are resolved evenly
        angles = np.linspace(low, high, 201)
        values = energy_form(kernel, beta, 2 * np.sin(angles / 2) ** 2)
        best = int(np.argmin(values))
        low, high, lowest = angles[max(best - 1, 0)], angles[min(best + 1, 200)], float(values[best])
    return -lowest


def assumption_1(kernel: Kernel) -> bool:
    """Assumption 1 of the paper: the field is not odd and λ̄ < 0 (needs d > 3; THEORY §6).

    >>> assumption_1(Kernel("relu", 64)), assumption_1(Kernel("relu", 64, 0.1, 0.1))
    (False, True)
    """
    return not kernel.odd and lambda_bar(kernel) < 0
