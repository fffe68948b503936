"""Signs of λ_1, λ̄ and λ̄' with proof: every number is an interval that contains the exact one (THEORY §6).

Ball arithmetic of Arb, through python-flint (the extra `certify`).  ReLU and linear are closed forms.  For
analytic φ the kernel is its Hermite series, κ = σ_W² + Σ_n a_n² c^n, a_n = E φ(√q Z) He_n(Z)/√n!, c = (u/d + σ_U²)/q,
by rigorous quadrature; what the first terms leave of Σ n a_n² = q E φ'(√q Z)² bounds all the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nextafter
from typing import Any

from synchronoise.errors import UserError, did_you_mean
from synchronoise.kernel import Real
from synchronoise.theory.exponents import check_energy_beta

PRECISION = 128  # bits
REACH = 14  # standard deviations integrated; what lies beyond is bounded
TERMS = 48  # Hermite coefficients
PIECES = 4000  # intervals of ε at most, in the search for inf F


def certificate(
    activation: str, dim: int, sigma_u: Real = 0.0, sigma_w: Real = 0.0, beta: Real = 1.0
) -> dict[str, dict[str, Any]]:
    """Intervals that contain λ_1, λ̄ and λ̄', and their signs: {"lambda_1": {"interval": [lo, hi], "sign": "negative"}}.

    For relu, linear, erf, tanh, sigmoid and gelu; the parameters are taken as the exact floats they are.  Where an
    interval contains 0 the sign is None and "refused" says so.  Raises `UserError` for another activation or
    without python-flint.

    >>> certificate("relu", 64, 0.1, 0.1)["lambda_bar"]["sign"]
    'negative'
    """
    check_energy_beta(beta)
    flint = _flint()
    activation = activation.strip().lower()
    with flint.ctx.workprec(PRECISION):
        law = _kernel(flint, activation, dim, float(sigma_u), float(sigma_w))
        d, k1, slope = law.dim, law.kappa_1, law.dkappa_1
        found = {
            "lambda_1": ((d - 3) * slope - (d - 1) * k1) / 2,
            "lambda_bar": (d - 1) * slope - (d - 3) * k1,
            "lambda_bar_prime": -_infimum(flint, law, flint.arb(float(beta))),
        }
        return {name: _verdict(name, value) for name, value in found.items()}


def _flint() -> Any:
    try:
        import flint
    except ImportError:
        raise UserError("certificates need python-flint", mend="pip install 'synchronoise[certify]'") from None
    return flint


def _verdict(name: str, value: Any) -> dict[str, Any]:
    # To the nearest double, then outwards.
    low, high = nextafter(float(value.lower()), -inf), nextafter(float(value.upper()), inf)
    entry: dict[str, Any] = {
        "interval": [low, high],
        "sign": "negative" if high < 0 else "positive" if low > 0 else None,
    }
    if entry["sign"] is None:
        entry["refused"] = f"the interval of {name} contains 0: its sign is not certified"
    return entry


class _Law:
    """κ(1), κ'(1) and an enclosure of s(ε) = (κ(1) - κ(1-ε))/ε over an interval of ε, as balls."""

    def __init__(self, dim: int, kappa_1: Any, dkappa_1: Any, chord: Callable[[Any, Any], Any]):
        self.dim, self.kappa_1, self.dkappa_1, self.chord = dim, kappa_1, dkappa_1, chord


def _kernel(flint: Any, activation: str, dim: int, sigma_u: float, sigma_w: float) -> _Law:
    arb = flint.arb
    d, noise = arb(dim), arb(sigma_w) ** 2
    q = 1 / d + arb(sigma_u) ** 2
    if activation == "linear":
        return _Law(dim, q + noise, 1 / d, lambda low, high: 1 / d)
    if activation == "relu":
        return _Law(dim, q / 2 + noise, 1 / (2 * d), _relu_chord(flint, d, q))
    if activation not in ANALYTIC:
        raise UserError(
            "activation to certify",
            got=activation,
            expected="one with a proof",
            mend=did_you_mean(activation, CERTIFIED),
        )
    return _hermite_law(flint, activation, d, q, noise)


def _relu_chord(flint: Any, d: Any, q: Any) -> Callable[[Any, Any], Any]:
    arb = flint.arb

    def at(epsilon: Any) -> Any:
        if epsilon == 0:
            return 1 / (2 * d)
        c = 1 - epsilon / (d * q)
        root = (1 - c * c).max(arb(0)).sqrt()
        # The exact c is at least -1; its ball may reach a little beyond, where acos is not defined.
        acos = c.acos() if c > -1 else arb.pi().union(c.upper().max(arb(-1)).acos())
        return q * (arb.pi() * (1 - c) - root + c * acos) / (2 * arb.pi() * epsilon)

    # κ' increases with u, so its mean over [1-ε, 1] decreases with ε.
    return lambda low, high: at(low).union(at(high))


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + (-z).exp())


def _gelu_prime(z: Any, half: Any, pi: Any) -> Any:
    return (-z * half.sqrt()).erfc() * half + z * (-z * z * half).exp() / (2 * pi).sqrt()


# φ, φ', and bounds b: φ(z)² <= b_0 + b_1 z², φ'(z)² <= b_2 for real z.
ANALYTIC: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[float, float, float]]] = {
    "erf": (lambda z, half, pi: z.erf(), lambda z, half, pi: 2 * (-z * z).exp() / pi.sqrt(), (1, 0, 2)),
    "tanh": (lambda z, half, pi: z.tanh(), lambda z, half, pi: z.sech() ** 2, (1, 0, 1)),
    "sigmoid": (lambda z, half, pi: _sigmoid(z), lambda z, half, pi: _sigmoid(z) * _sigmoid(-z), (1, 0, 1)),
    "gelu": (lambda z, half, pi: z * half * (-z * half.sqrt()).erfc(), _gelu_prime, (0, 1, 2)),
}
CERTIFIED = ("relu", "linear", *ANALYTIC)


def _hermite_law(flint: Any, activation: str, d: Any, q: Any, noise: Any) -> _Law:
    arb, acb = flint.arb, flint.acb
    half, pi, root_q, reach = acb(arb("0.5")), acb(arb.pi()), acb(q.sqrt()), arb(REACH)
    phi, prime, (b0, b1, b2) = ANALYTIC[activation]
    outside = (reach / arb(2).sqrt()).erfc()
    second = outside + reach * (2 / arb.pi()).sqrt() * (-reach * reach / 2).exp()  # ∫ z² over |z| > REACH
    tail = b0 * outside + b1 * q * second

    def mean(f: Callable[[Any], Any], beyond: Any) -> Any:
        """E f(Z), where |E f(Z) 1{|Z| > REACH}| <= beyond."""
        density = lambda z, _: f(z) * (-z * z * half).exp() / (2 * pi).sqrt()  # noqa: E731
        # Short panels keep the balls of the quadrature away from the poles of tanh.
        panels = (acb.integral(density, acb(k), acb(k + 2)).real for k in range(-REACH, REACH, 2))
        return sum(panels, arb(0, beyond.upper()))

    power = mean(lambda z: phi(root_q * z, half, pi) ** 2, tail)
    slopes = mean(lambda z: prime(root_q * z, half, pi) ** 2, b2 * outside)

    def normalised_hermite(z: Any, n: int) -> Any:
        before, here = acb(0), acb(1)
        for k in range(n):
            before, here = here, (z * here - acb(k).sqrt() * before) / acb(k + 1).sqrt()
        return here

    # Beyond REACH: Cauchy-Schwarz, He_n/√n! has norm 1.
    squares = [
        mean(lambda z, n=n: phi(root_q * z, half, pi) * normalised_hermite(z, n), tail.sqrt()) ** 2
        for n in range(TERMS)
    ]
    rest = q * slopes
    for n, square in enumerate(squares):
        rest = rest - n * square

    def chord(low: Any, high: Any) -> Any:
        c = 1 - low.union(high) / (d * q)
        # (1 - c^n)/(1 - c) = 1 + c + ... + c^{n-1}; beyond TERMS each is at most n, so together at most `rest`.
        geometric, total = arb(0), arb(0)
        for square in squares[1:]:
            geometric = 1 + c * geometric
            total = total + square * geometric
        return (total + arb(0, rest.upper())) / (d * q)

    return _Law(int(d.unique_fmpz()), power + noise, slopes / d, chord)


def _infimum(flint: Any, law: _Law, beta: Any) -> Any:
    """An enclosure of inf F over 0 <= ε <= 2, F of `exponents.energy_form`, by branch and bound."""
    arb, d, k1 = flint.arb, law.dim, law.kappa_1

    def weight(epsilon: Any) -> Any:
        x = beta * epsilon
        return arb(1) if x == 0 else x / x.expm1()

    def form(low: Any, high: Any) -> Any:
        epsilon = low.union(high)
        rest = 2 - epsilon
        bracket = k1 * ((d - 1) - rest * (1 - beta * epsilon))
        bracket = bracket - law.chord(low, high) * (d - 1 - epsilon * rest * (1 + beta * (1 - epsilon)))
        return weight(low).union(weight(high)) * bracket  # the weight decreases with ε

    # Dyadic ends, so that they are exact.
    pieces = [(arb(k) / 32, arb(k + 1) / 32) for k in range(64)]
    best = min(form(low, low).upper() for low, _ in pieces)
    lowest, count = None, 0
    while pieces:
        low, high = pieces.pop()
        count += 1
        value = form(low, high)
        best = min(best, form(high, high).upper())
        if value.lower() > best:
            continue
        narrow = value.upper() - value.lower() <= (1 + k1) * arb(2) ** -40
        if narrow or high - low < arb(2) ** -40 or count > PIECES:
            lowest = value.lower() if lowest is None else min(lowest, value.lower())
        else:
            middle = (low + high) / 2
            pieces += [(low, middle), (middle, high)]
    return best if lowest is None else lowest.union(best)
