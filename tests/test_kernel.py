"""κ against closed forms, an independent quadrature, the paper's table; its differences near both ends."""

import csv
from math import pi, sqrt
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from numpy.polynomial.chebyshev import cheb2poly, chebval
from numpy.polynomial.polynomial import polyval
from scipy.integrate import quad
from scipy.special import ndtr

from synchronoise.activations import ACTIVATION_NAMES, activation, custom_activation
from synchronoise.errors import UserError
from synchronoise.kernel import Kernel, KernelAccuracyWarning, Series

REFERENCE = Path(__file__).parent / "reference"
SETTINGS = [(2, 0.0, 0.0), (5, 0.1, 0.1), (64, 0.0, 0.0), (512, 3.0, 0.0), (2, 3.0, 0.5), (64, 1.0, 0.5)]
SMOOTH = ["tanh", "sigmoid", "silu", "gelu", "erf", "softplus", "sin:10", "linear", "1.5*tanh"]
HARD_TANH = custom_activation(
    "hard_tanh",
    lambda z, xp: xp.clip(z, -1.0, 1.0),
    lambda z, xp: xp.where(abs(z) < 1, xp.ones_like(z), xp.zeros_like(z)),
    kinks=(-1.0, 1.0),
    odd=True,
)
TABLE = list(csv.DictReader((REFERENCE / "paper_table.csv").read_text().splitlines()))
U = np.array([-1.0, -0.97, -0.5, 0.0, 0.3, 0.8, 0.99, 1.0])


def correlation(u, dim, sigma_u):
    return (u / dim + sigma_u**2) / (1 / dim + sigma_u**2)


def trapezoid(f, root_q, c):
    """E f(√q Z_1) f(√q Z_2) by the trapezoidal rule in (Z_1, noise): spectral for analytic f."""
    z = np.arange(-9.5, 9.5, 0.02)
    w = 0.02 * np.exp(-z * z / 2) / sqrt(2 * pi)
    inner = f(root_q * (c * z[:, None] + sqrt(max(0.0, 1 - c * c)) * z[None, :])) @ w
    return float(np.sum(w * f(root_q * z) * inner))


def relu_kernel(u, dim, sigma_u, sigma_w):
    q, c = 1 / dim + sigma_u**2, correlation(u, dim, sigma_u)
    return q / (2 * pi) * (np.sqrt(1 - c**2) + (pi - np.arccos(c)) * c) + sigma_w**2


@pytest.mark.parametrize(("dim", "sigma_u", "sigma_w"), SETTINGS)
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_kernels_match_an_independent_quadrature(name, dim, sigma_u, sigma_w):
    kernel, act, root_q = Kernel(name, dim, sigma_u, sigma_w), activation(name), sqrt(1 / dim + sigma_u**2)
    tolerance = 1e-8 * (kernel.kappa_1 + kernel.dkappa_1)
    for u in U[1::2]:
        c = correlation(u, dim, sigma_u)
        assert abs(kernel(u) - trapezoid(act, root_q, c) - sigma_w**2) < tolerance
        assert abs(kernel.derivative(u) - trapezoid(act.prime, root_q, c) / dim) < tolerance
    assert abs(kernel(U[7]) - kernel(U[6])) > tolerance  # the check would notice a wrong u
    assert kernel.error_estimate < tolerance


@pytest.mark.parametrize(("dim", "sigma_u", "sigma_w"), SETTINGS)
def test_kinked_kernels_match_closed_forms(dim, sigma_u, sigma_w):
    kernel = Kernel("relu", dim, sigma_u, sigma_w)
    np.testing.assert_allclose(kernel(U), relu_kernel(U, dim, sigma_u, sigma_w), atol=1e-14 * kernel.kappa_1)
    c = correlation(U, dim, sigma_u)
    np.testing.assert_allclose(kernel.derivative(U), (pi - np.arccos(c)) / (2 * pi * dim), atol=1e-13)
    leaky = Kernel("leaky_relu:0.2", dim, sigma_u, sigma_w)
    q = 1 / dim + sigma_u**2
    # φ = 0.8 relu + 0.2 z, and E relu(Z_1) Z_2 = qc/2
    expected = 0.64 * relu_kernel(U, dim, sigma_u, 0.0) + (0.16 + 0.04) * q * c + sigma_w**2
    np.testing.assert_allclose(leaky(U), expected, atol=1e-13 * q)


def test_declared_kinks_off_the_origin():
    dim, sigma_u = 3, 0.9
    kernel, root_q = Kernel(HARD_TANH, dim, sigma_u), sqrt(1 / dim + sigma_u**2)

    def ramp(m, s):  # E max(X, 0) for X normal of mean m, deviation s
        return m * ndtr(m / s) + s * np.exp(-0.5 * (m / s) ** 2) / sqrt(2 * pi)

    for u in (-0.8, 0.1, 0.9):
        c = correlation(u, dim, sigma_u)
        s = root_q * sqrt(1 - c * c)

        def integrand(z, c=c, s=s):
            mean = root_q * c * z
            conditional = ramp(mean + 1, s) - ramp(mean - 1, s) - 1
            return np.clip(root_q * z, -1, 1) * conditional * np.exp(-z * z / 2) / sqrt(2 * pi)

        exact = quad(integrand, -9, 9, points=[-1 / root_q, 1 / root_q], epsabs=1e-13, epsrel=1e-13)[0]
        assert abs(kernel(u) - exact) < 1e-11


def test_undeclared_kinks_warn_and_are_estimated():
    hidden = custom_activation("hidden", HARD_TANH.function, HARD_TANH.derivative, odd=True)
    with pytest.warns(KernelAccuracyWarning, match="declare the kinks"):
        kernel = Kernel(hidden, 3, 0.9)
    true = Kernel(HARD_TANH, 3, 0.9)
    assert abs(kernel(0.4) - true(0.4)) <= kernel.error_estimate
    assert kernel.error_estimate > 1e-6 > true.error_estimate


@pytest.mark.parametrize("row", TABLE, ids=lambda r: " ".join(r.values()))
def test_paper_table_constants(row):
    kernel = Kernel(row["activation"], int(row["d"]), float(row["sigma"]), float(row["sigma"]))
    for value, printed in ((kernel.kappa_1, row["kappa_1"]), (kernel.dkappa_1, row["dkappa_1"])):
        half_unit = 0.5 * 10.0 ** (int(printed.split("e")[1]) - 2)
        assert abs(value - float(printed)) <= half_unit * (1 + 1e-9)
        assert not abs(1.02 * value - float(printed)) <= half_unit


@pytest.mark.parametrize(
    ("quantity", "name", "u"),
    [
        (0.30449889, "relu", 0.5),
        (0.21634690, "erf", 0.5),
        (0.22729492, "gelu", 0.5),
        (0.18632441, "tanh", 0.5),
    ],
)
def test_dual_activations_of_unit_variance(quantity, name, u):
    # d = 4 and σ_U² = 3/4 give q = 1 and c = (u' + 3)/4
    assert abs(Kernel(name, 4, sqrt(0.75))(4 * u - 3) - quantity) < 1e-7 * quantity


def test_dual_silu_of_negative_correlation():
    # q = 1/d by itself gives c = u: rescale the argument so that the variance is 1
    silu = activation("silu")
    root_d = sqrt(2.0)
    stretched = custom_activation(
        "stretched", lambda z, xp: silu(root_d * z, xp), lambda z, xp: root_d * silu.prime(root_d * z, xp)
    )
    assert abs(Kernel(stretched, 2)(-0.5) + 0.06683034) < 1e-6 * 0.0668


@pytest.mark.parametrize("sigma_u", [0.0, 0.3])
def test_variogram_is_relatively_accurate(sigma_u):
    dim = 5
    kernel = Kernel("relu", dim, sigma_u, 0.1)
    with mpmath.workdps(60):
        q = mpmath.mpf(1) / dim + mpmath.mpf(sigma_u) ** 2

        def exact(c):
            return q / (2 * mpmath.pi) * (mpmath.sqrt(1 - c * c) + (mpmath.pi - mpmath.acos(c)) * c)

        for epsilon in (1e-24, 1e-16, 1e-9, 1e-3, 0.5, 2.0):
            c = 1 - mpmath.mpf(epsilon) / (dim * q)
            true = float(exact(mpmath.mpf(1)) - exact(c))
            assert abs(kernel.variogram(epsilon) / true - 1) < 1e-12
    assert kernel.kappa_1 - kernel(1 - 1e-24) == 0.0  # by subtraction nothing is left


def smooth_variogram(name, q, c_gap):
    """Σ a_n² (1 - c^n), a_n = E φ(√q Z) h_n(Z): no difference is taken, so every digit counts."""
    # The trapezoidal rule is spectral here; h_n by its recursion.
    z = np.arange(-12, 12, 1 / 64)
    weight = np.exp(-z * z / 2) / sqrt(2 * pi) / 64
    values = weight * activation(name)(sqrt(q) * z)
    before, now, total = np.zeros_like(z), np.ones_like(z), 0.0
    for n in range(120):
        loss = -np.expm1(n * np.log1p(-c_gap)) if c_gap < 1 else 1 - (1 - c_gap) ** n
        total += float(values @ now) ** 2 * loss
        before, now = now, (z * now - sqrt(n) * before) / sqrt(n + 1)
    return total


def kinked_variogram(name, q, c_gap):
    """κ(1) - κ(c) at 60 digits: closed forms; ELU by the mean of φ(Y) given X and one integral."""
    q, c = mpmath.mpf(q), 1 - mpmath.mpf(c_gap)

    def relu(c):
        return q / (2 * mpmath.pi) * (mpmath.sqrt(1 - c * c) + (mpmath.pi - mpmath.acos(c)) * c)

    if name != "elu":
        a = mpmath.mpf(0.01 if name == "leaky_relu" else 0)  # φ(x) = a x + (1 - a) max(x, 0)
        return float(a * q * (1 - c) + (1 - a) ** 2 * (relu(mpmath.mpf(1)) - relu(c)))
    root, s = mpmath.sqrt(q), mpmath.sqrt(q * (1 - c * c))

    def given(x):  # E φ(Y), Y normal of mean c x and deviation s
        m = c * x
        below = mpmath.exp(m + s * s / 2) * mpmath.ncdf(-(m + s * s) / s) - mpmath.ncdf(-m / s)
        return m * mpmath.ncdf(m / s) + s * mpmath.npdf(m / s) + below

    def integrand(x):
        phi = x if x > 0 else mpmath.expm1(x)
        return phi * (phi - given(x)) * mpmath.npdf(x / root) / root

    near = [sign * k * s for sign in (-1, 1) for k in (1, 4, 12)]
    return float(mpmath.quad(integrand, sorted({0, *near, *(k * root for k in range(-14, 15))})))


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_the_variogram_of_every_activation(name):
    """δ(ε) to 1e-12 relative on [1e-16, 2]; through κ(1) - κ(1 - ε) not a digit of it would be right at 1e-16."""
    dim, sigma_u = 3, 0.3
    kernel, q = Kernel(name, dim, sigma_u), 1 / dim + sigma_u**2
    exact = kinked_variogram if activation(name).kinks else smooth_variogram
    with mpmath.workdps(40):
        for epsilon in (1e-16, 1e-8, 1e-3, 0.5, 2.0):
            true = exact(name, q, epsilon / (dim * q))
            assert abs(kernel.variogram(epsilon) / true - 1) < 1e-12


@pytest.mark.parametrize(("sigma_u", "sigma_w"), [(0.0, 0.0), (0.0, 1e-6), (1e-4, 0.0), (0.5, 0.0)])
def test_antipodal_sum_is_relatively_accurate(sigma_u, sigma_w):
    dim = 3
    kernel = Kernel("erf", dim, sigma_u, sigma_w)
    with mpmath.workdps(60):
        s2 = mpmath.mpf(sigma_u) ** 2
        q = mpmath.mpf(1) / dim + s2

        def exact(covariance):
            return 2 / mpmath.pi * mpmath.asin(2 * covariance / (1 + 2 * q)) + mpmath.mpf(sigma_w) ** 2

        for eta in (0.0, 1e-24, 1e-12, 1e-3, 0.7, 2.0):
            true = float(exact(q) + exact((mpmath.mpf(eta) - 1) / dim + s2))
            assert abs(kernel.antipodal_sum(eta) - true) <= 3e-12 * true
    assert (kernel.antipodal_sum(0.0) == 0.0) == kernel.odd == (sigma_u == sigma_w == 0)


@pytest.mark.parametrize(
    ("name", "dim", "sigma"), [("relu", 2, 0.1), ("gelu", 3, 0.2), ("silu", 16, 0.1), ("tanh", 2, 0.0)]
)
def test_gegenbauer_weights_resum(name, dim, sigma):
    kernel = Kernel(name, dim, sigma, sigma)
    weights = kernel.gegenbauer_weights(400 if dim == 2 else 40)
    assert (weights >= 0).all()
    u = np.linspace(-1, 1, 41)
    previous, current, total = np.zeros_like(u), np.ones_like(u), np.zeros_like(u)
    for n, c in enumerate(weights):
        total += c * current
        ahead = u if n == 0 else ((2 * n + dim - 2) * u * current - n * previous) / (n + dim - 2)
        previous, current = current, ahead
    np.testing.assert_allclose(total, kernel(u), atol=2e-8)


@pytest.mark.parametrize("name", ["relu", "elu", "tanh", "gelu", "sin:4.6", "linear", HARD_TANH])
@pytest.mark.parametrize(("dim", "sigma_u", "sigma_w"), SETTINGS)
def test_evaluator_is_the_kernel(name, dim, sigma_u, sigma_w):
    kernel = Kernel(name, dim, sigma_u, sigma_w)
    u = np.linspace(-1, 1, 501)
    size = kernel.kappa_1 + kernel.dkappa_1
    double = kernel.evaluator()
    np.testing.assert_allclose(double(u), kernel(u), atol=1e-13 * size)
    single = kernel.evaluator(np.float32)
    assert len(single.even.numbers) <= 30
    values = single(jnp.asarray(u, jnp.float32), jnp)
    assert values.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(values), kernel(u), atol=5e-7 * size)
    one = np.array([1.0, 1.0 + 1e-7], np.float32)
    assert np.abs(single(one) - kernel.kappa_1).max() <= 2e-7 * kernel.kappa_1
    slope = jax.grad(lambda v: single(v, jnp))(jnp.float32(1.0))
    assert abs(slope - kernel.dkappa_1) < 1e-4 * size
    # Antipodal tokens, whose overlap is below -1 by rounding.
    for evaluator, ulp in ((single, 1.2e-7), (double, 2.3e-16)):
        below = (-1 - np.arange(4) * ulp).astype("float32" if evaluator is single else "float64")
        np.testing.assert_allclose(evaluator(below), kernel(-1.0), atol=2e-6 * size)
        assert np.isfinite(jax.vmap(jax.grad(lambda v, e=evaluator: e(v, jnp)))(jnp.asarray(below))).all()


@pytest.mark.parametrize(("dim", "sigma_u"), [(2, 5.0), (3, 3.0), (8, 4.0)])
@pytest.mark.filterwarnings("ignore::synchronoise.kernel.KernelAccuracyWarning")
def test_where_the_quadrature_does_not_settle_the_error_estimate_is_that_of_what_is_used(dim, sigma_u):
    """sin(12 z), 12 √q = 36 to 60: κ = ½ (e^{-ω²(q-c)} - e^{-ω²(q+c)}), c = u/d + σ_U²."""
    kernel, u = Kernel("sin:12", dim, sigma_u), np.linspace(-1, 1, 41)
    q, c = 1 / dim + sigma_u**2, u / dim + sigma_u**2
    exact = 0.5 * (np.exp(-144 * (q - c)) - np.exp(-144 * (q + c)))
    error = np.abs(kernel(u) - exact).max()
    assert error <= kernel.error_estimate < 1e-3
    assert np.abs(kernel(u)).max() <= kernel.kappa_1 + kernel.error_estimate


def test_an_evaluator_takes_integers():
    kernel = Kernel("tanh", 3)
    for u in (np.array([-1, 0, 1]), 0):
        np.testing.assert_allclose(kernel.evaluator()(u), kernel(u), atol=1e-13)
    assert kernel.evaluator() == kernel.evaluator() != Kernel("tanh", 4).evaluator()
    assert hash(kernel.evaluator()) == hash(kernel.evaluator())


def test_powers_are_taken_only_where_they_lose_no_digits():
    x = np.linspace(-1, 1, 101)
    short = 0.3 ** np.arange(8)
    assert Series.of(short).in_powers
    np.testing.assert_allclose(Series.of(short)(x, np), chebval(x, short), atol=1e-15)
    assert Kernel("relu", 16).evaluator().even.in_powers
    evaluator = Kernel("sin:12", 2).evaluator()
    long = evaluator.even.numbers
    assert not evaluator.even.in_powers
    kernel = Kernel("sin:12", 2)
    np.testing.assert_allclose(kernel.evaluator()(x), kernel(x), atol=1e-13 * (kernel.kappa_1 + kernel.dkappa_1))
    lost = polyval(x, cheb2poly(long)) - chebval(x, long)
    assert np.abs(lost).max() > 1  # the rule is needed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((1, 0.0, 0.0), "dim"), ((5, -0.1, 0.0), "sigma_u"), ((5, 0.0, np.nan), "sigma_w")],
)
def test_bad_input_is_one_line(arguments, says):
    with pytest.raises(UserError, match=says):
        Kernel("relu", *arguments)
