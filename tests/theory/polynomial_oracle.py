"""A second solver for E f(ρ_t), sharing nothing with the chain: polynomials in s = √(1-ρ) and a matrix exponential.

u(t, ρ) = E^ρ f(ρ_t) solves u_t = b u' + a u''/2.  In s the coefficients are smooth at both ends, also for kinked
φ, and both ends are regular points where the solution is analytic, so collocation needs no boundary condition.
It resolves scales of 1/degree², so a trap near ρ = -1 or a boundary layer near ρ = 1 is beyond it: two degrees
then disagree, and it refuses.
"""

import numpy as np
from scipy.linalg import expm


class OracleRefuses(Exception):
    """Two degrees disagree: the solution is not a polynomial of this degree."""


def _differentiation(nodes):
    n = nodes.size - 1
    c = np.where((np.arange(n + 1) == 0) | (np.arange(n + 1) == n), 2.0, 1.0) * (-1.0) ** np.arange(n + 1)
    gaps = nodes[:, None] - nodes[None, :] + np.eye(n + 1)
    matrix = np.outer(c, 1 / c) / gaps
    return matrix - np.diag(matrix.sum(axis=1))


def _values(kernel, f, t, rho0, degree):
    s = np.sqrt(0.5) * (1 + np.cos(np.pi * np.arange(degree + 1) / degree))
    d, k1, epsilon = kernel.dim, kernel.kappa_1, s**2
    delta = kernel.variogram(epsilon)
    a = 2 * epsilon * (2 - epsilon) * (epsilon * k1 + (1 - epsilon) * delta)
    b = (d - 1) * (k1 * epsilon - delta) - (k1 - delta) * epsilon * (2 - epsilon)
    safe = np.where(s > 0, s, 1.0)
    variance, drift = a / (4 * safe**2), -b / (2 * safe) - a / (8 * safe**3)
    first = _differentiation(s)
    generator = drift[:, None] * first + 0.5 * variance[:, None] * (first @ first)
    u = expm(t * generator) @ f(1 - epsilon)
    return float(np.polynomial.chebyshev.chebval(np.sqrt(2 * (1 - rho0)) - 1, _coefficients(s, u)))


def _coefficients(s, u):
    return np.linalg.solve(np.polynomial.chebyshev.chebvander(np.sqrt(2) * s - 1, s.size - 1), u)


def oracle(kernel, f, t, rho0, tolerance=5e-7):
    """E f(ρ_t) from ρ_0; raises `OracleRefuses` unless two degrees agree within the tolerance."""
    values = [_values(kernel, f, t, rho0, degree) for degree in (48, 72)]
    if not abs(values[1] - values[0]) <= tolerance:
        raise OracleRefuses(f"degrees 48 and 72 differ by {abs(values[1] - values[0]):.1e}")
    return values[1]
