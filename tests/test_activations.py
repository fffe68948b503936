"""Activations: exact values, derivatives, tails, float types, and NumPy against JAX."""

import jax.numpy as jnp
import numpy as np
import pytest

from synchronoise.activations import ACTIVATION_NAMES, activation, custom_activation
from synchronoise.errors import UserError

SPECS = [*ACTIVATION_NAMES, "sin:4.6", "leaky_relu:0.2", "1.5*tanh"]


@pytest.mark.parametrize("spec", SPECS)
def test_prime_is_the_slope(spec):
    act = activation(spec)
    z, step = np.linspace(-6.03, 6.07, 200), 1e-5
    slope = (act(z + step) - act(z - step)) / (2 * step)
    np.testing.assert_allclose(act.prime(z), slope, atol=2e-9)
    assert not np.allclose(act.prime(z + 0.2), slope, atol=2e-9) or spec == "linear"


@pytest.mark.parametrize("spec", SPECS)
def test_odd_is_declared_exactly_when_true(spec):
    act, z = activation(spec), np.linspace(0.1, 5, 50)
    assert np.allclose(act(-z), -act(z), atol=1e-15) == act.odd


@pytest.mark.parametrize("spec", SPECS)
def test_finite_far_out_and_float_type_kept(spec):
    act = activation(spec)
    far = np.array([-1e30, -1e4, -90.0, 0.0, 90.0, 1e4, 1e30])
    for dtype in (np.float32, np.float64):
        z = far.astype(dtype)
        with np.errstate(over="raise", invalid="raise"):
            value, prime = act(z), act.prime(z)
        assert value.dtype == prime.dtype == dtype
        assert np.isfinite(value).all()
        assert np.isfinite(prime).all()


@pytest.mark.parametrize("spec", SPECS)
def test_jax_runs_the_same_formula(spec):
    act, z = activation(spec), np.linspace(-9, 9, 101, dtype=np.float32)
    for mine, theirs in ((act(z), act(z, jnp)), (act.prime(z), act.prime(z, jnp))):
        assert theirs.dtype == jnp.float32
        np.testing.assert_allclose(mine, np.asarray(theirs), rtol=3e-5, atol=2e-6)


def test_tails_keep_relative_accuracy():
    z = np.array([-30.0])
    np.testing.assert_allclose(activation("gelu")(z), [-1.472014178e-196], rtol=1e-9)
    np.testing.assert_allclose(activation("tanh").prime(-z), [4 * np.exp(-60.0)], rtol=1e-12)
    assert 1 - np.tanh(30.0) ** 2 == 0.0  # the textbook form has lost the tail


def test_equal_names_are_equal_and_hashable():
    assert activation("SIN:4.6 ") is activation("sin:4.6")
    assert hash(activation("leaky_relu:0.2")) == hash(activation("leaky_relu:0.2"))
    assert activation(activation("gelu")) is activation("gelu")


@pytest.mark.parametrize(
    ("spec", "says"),
    [("rellu", "did you mean 'relu'"), ("sin:x", "finite number"), ("tanh:2", "no parameter")],
)
def test_bad_names_say_the_mend(spec, says):
    with pytest.raises(UserError, match=says):
        activation(spec)


def test_custom_activation_is_checked():
    good = custom_activation("cubic", lambda z, xp: z**3, lambda z, xp: 3 * z**2, odd=True)
    assert float(good(2.0)) == 8.0
    with pytest.raises(UserError, match="differs from the slope"):
        custom_activation("cubic", lambda z, xp: z**3, lambda z, xp: 2 * z**2)
    with pytest.raises(UserError, match="declared odd"):
        custom_activation("square", lambda z, xp: z**2, lambda z, xp: 2 * z, odd=True)
