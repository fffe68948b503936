"""The covariance kernel κ of the MLP noise, from the activation alone (NumPy; JAX runs its evaluator).

One route for every activation.  With c = (u/d + σ_U²)/q = cos θ the derivative κ' is the Gaussian mean
Ĝ(θ) = E φ'(Z_1)φ'(Z_2) over d, which is smooth in θ even where φ has kinks (it is not smooth in u).  A
two-dimensional quadrature split along the kink lines gives Ĝ at Chebyshev nodes in θ.  Everything else
is an integral of Ĝ with positive weights, so differences of κ never come from a subtraction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import atan2, isfinite, pi, sqrt
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import roots_legendre

from synchronoise.activations import Activation, activation
from synchronoise.errors import UserError

REACH = 9.0  # standard deviations kept: e^{-81/2} = 3e-18
NODES = 16  # Gauss-Legendre nodes on one panel
PANELS = (2, 4, 8, 16, 32, 64)  # panels on [0, REACH] tried in turn
DEGREES = (32, 64, 128)  # Chebyshev degrees tried in turn
SETTLED = 1e-10  # change at which doubling stops: the finer of the two is then far more accurate
ROUNDING = 1e-13  # relative size of the last Chebyshev coefficients kept
TRUSTED = 1e-8  # promised accuracy, in units of κ(1) + κ'(1)
REFUSED = 1e-2  # beyond this error, in the same units, there is no kernel


Real = int | float


class KernelAccuracyWarning(UserWarning):
    """A kernel is less accurate than promised, most often because φ has kinks that were not declared."""


@cache
def _gauss(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    return roots_legendre(nodes)


def _panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on every panel between the sorted edges (along the last axis)."""
    x, w = _gauss(NODES)
    half, middle = 0.5 * np.diff(edges, axis=-1), 0.5 * (edges[..., 1:] + edges[..., :-1])
    shape = (*edges.shape[:-1], -1)
    nodes = (middle[..., None] + half[..., None] * x).reshape(shape)
    return nodes, (half[..., None] * w).reshape(shape)


def _density(z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * z * z) / sqrt(2 * pi)


def _gaussian_mean(f: Callable[[np.ndarray], np.ndarray], kinks: np.ndarray, panels: int) -> float:
    """E f(Z), Z standard normal, f smooth between the kinks."""
    edges = np.sort(np.concatenate([np.linspace(-REACH, REACH, 2 * panels + 1), np.clip(kinks, -REACH, REACH)]))
    z, w = _panels(edges)
    return float(np.sum(w * _density(z) * f(z)))


def _gaussian_pair_mean(
    f: Callable[[np.ndarray, np.ndarray], np.ndarray], kinks: np.ndarray, theta: float, panels: int
) -> float:
    """E f(Z_1, Z_2), standard normals of correlation cos θ, f smooth off the lines Z_i = kink.

    In rotated coordinates Z_1 = αx + βy, Z_2 = ±(αx - βy), with x, y independent and α >= 1/√2, the kink
    lines cut every line of constant y in points that are known, and two of them meet at known y.
    """
    alpha, beta, sign = np.cos(theta / 2), np.sin(theta / 2), 1.0
    if theta > pi / 2:
        alpha, beta, sign = beta, alpha, -1.0
    grid = np.linspace(-REACH, REACH, 2 * panels + 1)
    # Along y the integrand varies β/α times slower than along x.
    coarse = np.linspace(-REACH, REACH, 2 * max(PANELS[0], int(np.ceil(panels * beta / alpha))) + 1)
    gaps = (kinks[:, None] - sign * kinks[None, :]).ravel()
    crossings = gaps[np.abs(gaps) < 2 * beta * REACH] / (2 * beta) if beta > 0 else gaps[:0]
    y, weight_y = _panels(np.sort(np.concatenate([coarse, crossings])))
    cuts = np.concatenate([kinks[None, :] - beta * y[:, None], sign * kinks[None, :] + beta * y[:, None]], axis=1)
    edges = np.concatenate([np.tile(grid, (y.size, 1)), np.clip(cuts / alpha, -REACH, REACH)], axis=1)
    x, weight_x = _panels(np.sort(edges, axis=1))
    across = beta * y[:, None]
    values = f(alpha * x + across, sign * (alpha * x - across))
    return float((weight_y * _density(y)) @ np.sum(weight_x * _density(x) * values, axis=1))


def _chebyshev(f: Callable[[np.ndarray], np.ndarray], bottom: float, top: float) -> tuple[np.ndarray, float]:
    """Chebyshev coefficients of a smooth f on [bottom, top], and the size of the first ones left out."""
    coefficients, tail = np.zeros(1), np.inf
    for degree in DEGREES:
        t = chebyshev.chebpts1(degree + 1)
        values = f(bottom + 0.5 * (top - bottom) * (t + 1.0))
        coefficients = 2.0 / (degree + 1) * chebyshev.chebvander(t, degree).T @ values
        coefficients[0] /= 2.0
        tail = float(np.max(np.abs(coefficients[-4:])))
        if tail <= ROUNDING * np.max(np.abs(coefficients)):
            break
    return coefficients, tail


@dataclass(frozen=True, eq=False)
class Series:
    """A polynomial on [-1, 1]: Σ_k a_k x^k where powers lose no digits (half the work), else Σ_k a_k T_k(x).

    A zero makes an odd length even, so that the series of near laws have one length and share a compiled program.

    >>> line = Series.of([1.0, 2.0])
    >>> line.in_powers, line.numbers.tolist(), line(np.array([0.5]), np).tolist()
    (True, [1.0, 2.0], [2.0])
    """

    in_powers: bool
    numbers: Any  #: a_0, a_1, ..., an array

    @staticmethod
    def of(coefficients: Any) -> Series:
        """The series with these Chebyshev coefficients; in powers where their sizes add up to at most twice theirs."""
        powers = chebyshev.cheb2poly(coefficients)
        in_powers = bool(np.sum(np.abs(powers)) <= 2 * np.sum(np.abs(coefficients)))
        numbers = np.zeros(2 * -(-len(coefficients) // 2))
        numbers[: len(coefficients)] = powers if in_powers else coefficients
        return Series(in_powers, numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[bool, bytes]:
        return self.in_powers, np.asarray(self.numbers).tobytes()

    def __call__(self, x: Any, xp: Any) -> Any:
        numbers = xp.asarray(self.numbers, x.dtype)
        last = len(numbers) - 1
        if self.in_powers:
            total = numbers[last] + 0.0 * x
            for k in reversed(range(last)):
                total = numbers[k] + x * total
            return total
        ahead, here = 0.0, 0.0 * x  # Clenshaw's rule
        for k in reversed(range(1, last + 1)):
            ahead, here = here, numbers[k] + 2.0 * x * here - ahead
        return numbers[0] + x * here - ahead


@dataclass(frozen=True)
class KernelEvaluator:
    """κ(u) as a short series, for the inner loop: a few multiply-adds per entry and no arccos.

    Smooth φ: κ = κ(1) - ε p(u), ε = 1 - u.  Kinked φ, with c = 1 - ε/(dq) and w = √(1 - c²):
    κ = k_0 + k_1 c + w² (E(w) + c O(w)).  Both give κ(1) at u = 1 within rounding, take u above 1 as 1, and
    have a finite derivative there.  `evaluator(u, xp)` keeps the shape and the float type of u.
    Its numbers are data of a compiled program, so that another law reuses it; `kinked` and the lengths of the series
    make the program.  THEORY §2.

    >>> import numpy as np
    >>> Kernel("relu", 3).evaluator(np.float32)(np.ones(2, np.float32)).dtype
    dtype('float32')
    """

    kinked: bool
    scale: Any
    constants: tuple[Any, Any]
    even: Any  #: a `Series`
    odd: Any  #: a `Series`, or None

    def __call__(self, u: Any, xp: Any = np) -> Any:
        u = 1.0 * xp.asarray(u)  # also of integers
        u = xp.where(u > 1.0, xp.ones_like(u), u)
        epsilon = 1.0 - u
        if not self.kinked:
            return self.constants[0] - epsilon * self.even(u, xp)
        gap = epsilon * self.scale
        c, square = 1.0 - gap, gap * (2.0 - gap)
        # Above 0: merged and antipodal tokens have square <= 0 by rounding, where √ has no derivative, or no value.
        w = xp.sqrt(xp.maximum(square, 1e-30))
        bulk = self.even(2.0 * w - 1.0, xp)
        if self.odd is not None:
            bulk = bulk + c * self.odd(2.0 * w - 1.0, xp)
        return self.constants[0] + self.constants[1] * c + square * bulk


class Kernel:
    """κ(u) = E[φ(Z_1)φ(Z_2)] + σ_W², Var Z_i = q = 1/d + σ_U², Cov(Z_1, Z_2) = u/d + σ_U², -1 <= u <= 1.

    E[G(x)G(y)^T] = κ(<x,y>) I_d is the covariance of the limit field on the sphere (THEORY §2); the hidden
    pre-activations carry the factor d^{-1/2}, the output carries none.  `act` is a name or an `Activation`,
    `dim` is d >= 2, `sigma_u` and `sigma_w` are the standard deviations of the two biases.

    Attributes: `kappa_1` = κ(1), `dkappa_1` = κ'(1), `odd` (the field is odd: odd φ and no biases),
    `error_estimate` (absolute, on κ and κ').  Warns `KernelAccuracyWarning` where that estimate exceeds
    1e-8 (κ(1) + κ'(1)).  Raises `UserError` for a dimension or a sigma out of range, and for an activation whose
    kernel is 0 or cannot be computed (it oscillates or grows too fast).

    >>> kernel = Kernel("relu", 5)
    >>> round(kernel.kappa_1, 12), round(kernel.dkappa_1, 12), round(float(kernel(0.0)), 12)
    (0.1, 0.1, 0.031830988618)
    """

    def __init__(self, act: str | Activation, dim: int, sigma_u: Real = 0.0, sigma_w: Real = 0.0):
        if dim < 2:
            raise UserError("dim", got=dim, expected="an integer >= 2", mend="tokens live on the sphere in R^dim")
        for name, sigma in (("sigma_u", sigma_u), ("sigma_w", sigma_w)):
            if not (isfinite(sigma) and sigma >= 0):
                raise UserError(name, got=sigma, expected="a finite number >= 0", mend="it is a standard deviation")
        self.activation = phi = activation(act)
        self.dim, self.sigma_u, self.sigma_w = int(dim), float(sigma_u), float(sigma_w)
        self.odd = phi.odd and sigma_u == 0 and sigma_w == 0
        self._q = 1.0 / dim + self.sigma_u**2
        self._root_q = sqrt(self._q)
        self._kinks = np.array(phi.kinks, dtype=float) / self._root_q
        self._scale = 1.0 / (1.0 + dim * sigma_u**2)  # 1 - c = scale * ε
        self._theta_max = 2.0 * atan2(1.0, sqrt(dim) * sigma_u)  # exact to rounding near π too
        # The evaluator of a kinked κ needs both halves of the circle; a smooth one only what tokens reach.
        self._top = pi if phi.kinks else self._theta_max
        self._integrate()

    def _integrate(self) -> None:
        phi, root_q, kinks = self.activation, self._root_q, self._kinks

        def slopes(theta: float, panels: int) -> float:
            product = lambda z1, z2: phi.prime(root_q * z1) * phi.prime(root_q * z2)  # noqa: E731
            return _gaussian_pair_mean(product, kinks, theta, panels)

        power, slope = 0.0, 0.0
        probes = self._theta_max * np.array([0.31, 0.74, 1.0])
        tried: list[np.ndarray] = []
        error, panels = np.inf, PANELS[0]
        for panels in PANELS:
            power = _gaussian_mean(lambda z: phi(root_q * z) ** 2, kinks, panels)
            slope = _gaussian_mean(lambda z: phi.prime(root_q * z) ** 2, kinks, panels)
            new = np.array([power / self._q, slope, *(slopes(t, panels) for t in probes)])
            tried.append(new)
            error = float(np.max(np.abs(new - tried[-2]))) if len(tried) > 1 else np.inf
            if error <= SETTLED * max(slope, power / self._q):
                break
        else:
            # It does not settle: the fewest nodes that are nearly as good as the most, with their own error.
            errors = [float(np.max(np.abs(new - tried[-1]))) for new in tried[:-1]]
            panels, error = next((p, e) for p, e in zip(PANELS, errors, strict=False) if e <= 2 * error)
        self._slopes, tail = _chebyshev(lambda ts: np.array([slopes(t, panels) for t in ts]), 0.0, self._top)
        self.kappa_1 = power + self.sigma_w**2
        self.dkappa_1 = slope / self.dim
        self.error_estimate = (error + tail) * max(self._q, 1.0 / self.dim)
        size = self.kappa_1 + self.dkappa_1
        if size == 0:
            raise UserError(f"{phi.name!r} without biases is no noise at all", mend="choose another activation")
        if not self.error_estimate <= REFUSED * size:
            raise UserError(
                f"the kernel of {phi.name!r} cannot be computed (dim={self.dim}, sigma_u={self.sigma_u:g}, error "
                f"{self.error_estimate / size:.0e} of its size)",
                mend="it oscillates or grows too fast, or has kinks that are not declared",
            )
        if self.error_estimate > TRUSTED * size:
            warnings.warn(
                f"the kernel of {phi.name!r} (dim={self.dim}, sigma_u={self.sigma_u:g}) is accurate to about "
                f"{self.error_estimate:.1e} only; declare the kinks of the activation if it has any",
                KernelAccuracyWarning,
                stacklevel=4,
            )
        # h and its mirror image are means of Ĝ over a cap, from θ = 0 and from the far end.
        x, w = _gauss(self._slopes.size // 2 + 24)
        x, w = 0.5 * (x + 1.0), 0.5 * w

        def near(theta: np.ndarray) -> np.ndarray:
            s = theta[:, None] * x
            # θ sin(θx) / (1 - cos θ), without 0/0 at θ = 0
            density = 2.0 * x * np.sinc(s / pi) / np.sinc(theta / (2 * pi))[:, None] ** 2
            return np.sum(w * density * self._mean_slopes(s), axis=1)

        def far(theta: np.ndarray) -> np.ndarray:
            # With s = M + o, M = (θ + θ_max)/2 and g = (θ_max - θ)/2 the density of s is
            # 2g sin s / (cos θ - cos θ_max) = (cos o + sin o cot M) g / sin g; M is written from the far end.
            g = 0.5 * (self._theta_max - theta[:, None])
            o = g * (2.0 * x - 1.0)
            cos_end, sin_end = 1.0 - 2.0 * self._scale, 2.0 * sqrt(self._scale * (1.0 - self._scale))
            cos_m = cos_end * np.cos(g) + sin_end * np.sin(g)
            sin_m = sin_end * np.cos(g) - cos_end * np.sin(g)
            density = (np.cos(o) + np.sin(o) * cos_m / sin_m) / np.sinc(g / pi)
            return np.sum(w * density * self._mean_slopes(self._theta_max - g + o), axis=1)

        self._near, _ = _chebyshev(near, 0.0, self._top)
        self._far, _ = _chebyshev(far, 0.0, self._theta_max)
        both = lambda z1, z2: 0.5 * (phi(root_q * z1) + phi(root_q * z2)) ** 2  # noqa: E731
        antipodes = _gaussian_pair_mean(both, kinks, self._theta_max, panels) + 2.0 * self.sigma_w**2
        self._antipodes = 0.0 if self.odd else antipodes

    def _mean_slopes(self, theta: Any) -> Any:
        return chebyshev.chebval(2.0 * theta / self._top - 1.0, self._slopes)

    def _theta(self, epsilon: Any) -> Any:
        return 2.0 * np.arcsin(np.sqrt(0.5 * self._scale * epsilon))

    def variogram(self, epsilon: Any) -> Any:
        """δ(ε) = κ(1) - κ(1-ε) for 0 <= ε <= 2, to relative accuracy however small ε is (THEORY §2).

        ε = 1 - <x,y> = |x-y|²/2.

        >>> kernel = Kernel("tanh", 8)
        >>> float(kernel.variogram(1e-30) / (1e-30 * kernel.dkappa_1)).__round__(12)
        1.0
        """
        epsilon = _within(epsilon, 0.0, 2.0)
        return epsilon * self.chord_slope(epsilon)

    def chord_slope(self, epsilon: Any) -> Any:
        """δ(ε)/ε, the mean of κ' over [1-ε, 1]; equal to κ'(1) at ε = 0 (THEORY §2).

        >>> float(Kernel("linear", 4).chord_slope(0.7)).__round__(12)
        0.25
        """
        t = 2.0 * self._theta(_within(epsilon, 0.0, 2.0)) / self._top - 1.0
        return chebyshev.chebval(t, self._near) / self.dim

    def antipodal_sum(self, eta: Any) -> Any:
        """κ(1) + κ(-1+η) for 0 <= η <= 2, to relative accuracy (THEORY §5).

        Exactly 0 at η = 0 for an odd field.

        >>> float(Kernel("tanh", 8).antipodal_sum(0.0)), Kernel("tanh", 8).odd
        (0.0, True)
        """
        eta = _within(eta, 0.0, 2.0)
        if self.odd:
            return self.variogram(eta)
        slope = chebyshev.chebval(2.0 * self._theta(2.0 - eta) / self._theta_max - 1.0, self._far) / self.dim
        return self._antipodes + eta * slope

    def __call__(self, u: Any) -> Any:
        """κ(u), accurate to `error_estimate`; for differences near u = 1 see `variogram`."""
        return self.kappa_1 - self.variogram(1.0 - _within(u, -1.0, 1.0))

    def derivative(self, u: Any) -> Any:
        """κ'(u) = (1/d) E φ'(Z_1)φ'(Z_2) (THEORY §2).

        >>> float(Kernel("relu", 5).derivative(0.0)).__round__(12)
        0.05
        """
        return self._mean_slopes(self._theta(1.0 - _within(u, -1.0, 1.0))) / self.dim

    def gegenbauer_weights(self, count: int) -> np.ndarray:
        """c_0, ..., c_{count-1} >= 0 of κ(u) = Σ_n c_n P_n(u), P_n(1) = 1 (THEORY §2).

        P_n is the Gegenbauer polynomial of the sphere in R^d: cos(n arccos u) for d = 2, Legendre for d = 3.
        c_n is the variance that the harmonics of degree n carry; rounding leaves about
        1e-16 √N κ(1) on it, N the number of harmonics of degree n.

        >>> import numpy as np
        >>> np.round(Kernel("linear", 3).gegenbauer_weights(3), 12).tolist()
        [0.0, 0.333333333333, 0.0]
        """
        psi, weight = _panels(np.linspace(0.0, pi, 2 + (count + 64) // 16))
        u = np.cos(psi)
        # κ sin^{d-2} is smooth in the angle, also where κ has a kink in u.
        weight = weight * np.sin(psi) ** (self.dim - 2)
        values = self.kappa_1 - self.variogram(2.0 * np.sin(psi / 2) ** 2)
        previous, current = np.zeros_like(u), np.ones_like(u)
        weights = np.empty(count)
        for n in range(count):
            weights[n] = np.sum(weight * values * current) / np.sum(weight * current**2)
            ahead = (2 * n + self.dim - 2) * u * current - n * previous
            # d = 2, n = 0 is the one case where the recursion reads 0/0: P_1 = u.
            previous, current = current, (u if n == 0 else ahead / (n + self.dim - 2))
        return np.maximum(weights, 0.0)

    def evaluator(self, dtype: Any = np.float64) -> KernelEvaluator:
        """A `KernelEvaluator` whose series are just long enough for the float type.

        >>> evaluator = Kernel("relu", 3).evaluator("float32")
        >>> len(evaluator.even.numbers), evaluator.odd
        (6, None)
        """
        # In float64 the fits see the rounding of κ itself, a few units in the last place.
        tolerance = max(0.5 * float(np.finfo(np.dtype(dtype)).eps), 3e-14) * (self.kappa_1 + self.dkappa_1)
        return self._kinked_evaluator(tolerance) if self.activation.kinks else self._smooth_evaluator(tolerance)

    def _smooth_evaluator(self, tolerance: float) -> KernelEvaluator:
        coefficients, _ = _chebyshev(lambda u: self.chord_slope(1.0 - u), -1.0, 1.0)
        tails = 2.0 * np.cumsum(np.abs(coefficients[::-1]))[::-1]
        keep = max(1, int(np.sum(tails > tolerance)))
        return KernelEvaluator(False, self._scale, (self.kappa_1, 0.0), Series.of(coefficients[:keep]), None)

    def _kinked_evaluator(self, tolerance: float) -> KernelEvaluator:
        # E and O are analytic in w = sin θ on [0, 1]: sum and difference of κ at θ and at π - θ.
        theta = 0.25 * pi * (1.0 + np.cos(pi * (np.arange(80) + 0.5) / 80))
        cosine, w = np.cos(theta), np.sin(theta)

        def bulk(angle: np.ndarray) -> np.ndarray:
            slope = chebyshev.chebval(2.0 * angle / self._top - 1.0, self._near)
            return self.kappa_1 - 2.0 * self._q * np.sin(angle / 2) ** 2 * slope

        ends = bulk(np.array([0.0, pi]))
        constants = (float(ends.sum() / 2), float((ends[0] - ends[1]) / 2))
        here, there = bulk(theta), bulk(pi - theta)
        parts = []
        for target in ((here + there) / 2 - constants[0], (here - there) / 2 - constants[1] * cosine):
            # The odd part is c w² O(w).
            base = w**2 if not parts else cosine * w**2
            parts.append(_shortest_fit(w, base, target, tolerance))
        even, odd = parts
        return KernelEvaluator(True, self._scale, constants, Series.of(even), Series.of(odd) if odd.any() else None)


def _shortest_fit(w: np.ndarray, base: np.ndarray, target: np.ndarray, tolerance: float) -> np.ndarray:
    """The shortest Chebyshev series p on [0, 1] with |base p(w) - target| <= tolerance, by least squares."""
    best = float(np.max(np.abs(target))), np.zeros(1)
    for degree in range(31):
        if best[0] <= tolerance:
            break
        basis = base[:, None] * chebyshev.chebvander(2.0 * w - 1.0, degree)
        fitted = np.linalg.lstsq(basis, target, rcond=None)[0]
        error = float(np.max(np.abs(basis @ fitted - target)))
        if error < 0.5 * best[0]:
            best = error, fitted
    return best[1]


def _within(x: Any, low: float, high: float) -> Any:
    return np.clip(np.asarray(x, dtype=float), low, high)
