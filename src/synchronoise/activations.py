"""Activation functions φ, their derivatives and kinks, each written once over an array namespace.

`act(z)` runs in NumPy; `act(z, xp=jax.numpy)` runs the same formula in JAX.  Nothing here imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import isfinite, pi, sqrt
from typing import Any

import numpy as np
import scipy.special

from synchronoise.errors import UserError, did_you_mean

ArrayFunction = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Activation:
    """φ: R -> R applied entry by entry, Lipschitz, with φ' and the points where φ' jumps.

    `act(z, xp)` and `act.prime(z, xp)` keep the shape and the float type of `z`, and stay finite and
    accurate for large |z|.  At a kink `prime` takes the left value.  `odd` says φ(-z) = -φ(z).

    Build one with `activation` (by name) or `custom_activation` (your own φ).  THEORY §1.

    >>> import numpy as np
    >>> relu = activation("relu")
    >>> relu(np.array([-1.0, 2.0])).tolist(), relu.prime(np.array([-1.0, 2.0])).tolist(), relu.kinks
    ([0.0, 2.0], [0.0, 1.0], (0.0,))
    """

    name: str
    function: ArrayFunction
    derivative: ArrayFunction
    kinks: tuple[float, ...] = ()
    odd: bool = False

    def __call__(self, z: Any, xp: Any = np) -> Any:
        return self.function(_floating(z, xp), xp)

    def prime(self, z: Any, xp: Any = np) -> Any:
        return self.derivative(_floating(z, xp), xp)


def _floating(z: Any, xp: Any) -> Any:
    z = xp.asarray(z)
    return z if xp.issubdtype(z.dtype, xp.floating) else z * 1.0


def _special(xp: Any) -> Any:
    """The special functions that belong to an array namespace (erf, erfc, expit)."""
    return scipy.special if xp is np else import_module("jax.scipy.special")


def _step(z: Any, xp: Any, below: float = 0.0) -> Any:
    """1 for z > 0 and `below` otherwise, in the float type of z."""
    one = xp.ones_like(z)
    return xp.where(z > 0, one, below * one)


def _bump(z: Any, xp: Any) -> Any:
    """The logistic function's derivative, e^{-|z|} / (1 + e^{-|z|})²: relatively accurate in both tails."""
    e = xp.exp(-xp.abs(z))
    return e / (1.0 + e) ** 2


def _gaussian(z: Any, xp: Any) -> Any:
    """e^{-z²}; the clip only keeps z² from overflowing where the value is 0 anyway."""
    z = xp.clip(z, -30.0, 30.0)
    return xp.exp(-z * z)


def _silu_prime(z: Any, xp: Any) -> Any:
    return _special(xp).expit(z) + z * _bump(z, xp)


def _gelu(z: Any, xp: Any) -> Any:
    return 0.5 * z * _special(xp).erfc(-z * sqrt(0.5))


def _gelu_prime(z: Any, xp: Any) -> Any:
    return 0.5 * _special(xp).erfc(-z * sqrt(0.5)) + z * _gaussian(z * sqrt(0.5), xp) / sqrt(2 * pi)


def _elu(z: Any, xp: Any) -> Any:
    return xp.where(z > 0, z, xp.expm1(xp.minimum(z, 0.0)))


_PLAIN = {
    act.name: act
    for act in (
        Activation("linear", lambda z, xp: z, lambda z, xp: xp.ones_like(z), odd=True),
        Activation("relu", lambda z, xp: xp.maximum(z, 0.0), _step, kinks=(0.0,)),
        Activation("gelu", _gelu, _gelu_prime),
        Activation("silu", lambda z, xp: z * _special(xp).expit(z), _silu_prime),
        Activation("tanh", lambda z, xp: xp.tanh(z), lambda z, xp: 4.0 * _bump(2.0 * z, xp), odd=True),
        Activation("sigmoid", lambda z, xp: _special(xp).expit(z), _bump),
        Activation(
            "erf",
            lambda z, xp: _special(xp).erf(z),
            lambda z, xp: (2.0 / sqrt(pi)) * _gaussian(z, xp),
            odd=True,
        ),
        Activation("softplus", lambda z, xp: xp.logaddexp(z, 0.0 * z), lambda z, xp: _special(xp).expit(z)),
        # φ' is continuous at 0 but φ'' jumps there: the quadratures split at it all the same.
        Activation("elu", _elu, lambda z, xp: xp.exp(xp.minimum(z, 0.0)), kinks=(0.0,)),
    )
}


def _leaky_relu(slope: float) -> Activation:
    return Activation(
        f"leaky_relu:{slope:g}",
        lambda z, xp: xp.maximum(z, 0.0) + slope * xp.minimum(z, 0.0),
        lambda z, xp: _step(z, xp, below=slope),
        kinks=(0.0,),
    )


def _sin(omega: float) -> Activation:
    return Activation(
        f"sin:{omega:.17g}",
        lambda z, xp: xp.sin(omega * z),
        lambda z, xp: omega * xp.cos(omega * z),
        odd=True,
    )


_WITH_PARAMETER = {"leaky_relu": (_leaky_relu, 0.01), "sin": (_sin, 1.0)}

ACTIVATION_NAMES = (*_PLAIN, *_WITH_PARAMETER)


@cache
def _named(spec: str) -> Activation:
    gain, star, rest = spec.partition("*")
    if star:
        return scaled(_named(rest.strip()), _number(gain, spec))
    name, colon, parameter = spec.partition(":")
    if name in _WITH_PARAMETER:
        build, default = _WITH_PARAMETER[name]
        return build(_number(parameter, spec) if colon else default)
    if name in _PLAIN and not colon:
        return _PLAIN[name]
    if name in _PLAIN:
        raise UserError("activation", got=spec, expected=f"no parameter after {name!r}", mend=f"write {name!r}")
    raise UserError("activation", got=spec, expected="a known name", mend=did_you_mean(name, ACTIVATION_NAMES))


def _number(text: str, spec: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise UserError("activation", got=spec, expected="a finite number beside the name", mend="e.g. 'sin:4.6'")
    return value


def activation(spec: str | Activation) -> Activation:
    """φ by name: relu, leaky_relu, gelu, silu, tanh, sigmoid, erf, softplus, elu, sin, linear.

    `"leaky_relu:0.1"` sets the slope below 0 (default 0.01), `"sin:4.6"` is sin(4.6 z), and a factor in
    front scales the output: `"1.5*tanh"` is 1.5 tanh(z).  gelu is z Φ(z), the exact one, not its tanh
    approximation; erf is erf(z), not erf(z/√2).  An `Activation` passes through.
    Raises `UserError` for an unknown name.  THEORY §1.

    >>> float(activation("sin:2")(0.25)), activation("tanh").odd
    (0.479425538604203, True)
    """
    if isinstance(spec, Activation):
        return spec
    if not isinstance(spec, str):
        raise UserError("activation", got=spec, expected="a name or an Activation", mend="see custom_activation")
    return _named(spec.strip().lower())


def scaled(act: Activation, gain: float) -> Activation:
    """g φ(z): the activation with its output scaled by `gain`, so that κ - σ_W² scales by g².

    >>> float(scaled(activation("relu"), 3.0)(2.0))
    6.0
    """
    return Activation(
        f"{gain:.17g}*{act.name}",
        lambda z, xp: gain * act.function(z, xp),
        lambda z, xp: gain * act.derivative(z, xp),
        kinks=act.kinks,
        odd=act.odd,
    )


def custom_activation(
    name: str,
    function: ArrayFunction,
    derivative: ArrayFunction,
    *,
    kinks: Sequence[float] = (),
    odd: bool = False,
) -> Activation:
    """A user's φ with its φ' and the points where φ' (or φ'') jumps.

    `function(z, xp)` and `derivative(z, xp)` act entry by entry; `xp` is the array namespace, so one
    formula such as `lambda z, xp: xp.clip(z, -1, 1)` serves NumPy and JAX.  Declare the kinks: a kernel
    built without them is less accurate, and warns.  Raises `UserError` where the derivative does not
    match the function or `odd` does not hold.  THEORY §1.

    >>> hard = custom_activation("hard_tanh", lambda z, xp: xp.clip(z, -1, 1),
    ...                          lambda z, xp: xp.where(abs(z) < 1, 1.0, 0.0 * z),
    ...                          kinks=(-1.0, 1.0), odd=True)
    >>> float(hard(3.0))
    1.0
    """
    act = Activation(name, function, derivative, tuple(sorted(float(k) for k in kinks)), odd)
    if not all(isfinite(k) for k in act.kinks):
        raise UserError("kinks", got=act.kinks, expected="finite points", mend="list where the derivative jumps")
    points, step = np.linspace(-2.93, 3.07, 61), 1e-5
    slope = (act(points + step) - act(points - step)) / (2 * step)
    # The median forgives the few points that sit on a kink; a wrong formula is wrong nearly everywhere.
    mismatch = float(np.median(np.abs(slope - act.prime(points))))
    if not mismatch < 1e-4 * (1.0 + float(np.max(np.abs(slope)))):
        raise UserError(f"the derivative given for {name!r} differs from the slope of the function by {mismatch:.2g}")
    asymmetry = float(np.max(np.abs(act(points) + act(-points))))
    if odd and not asymmetry <= 1e-12 * (1.0 + float(np.max(np.abs(act(points))))):
        raise UserError(f"{name!r} was declared odd, but φ(z) + φ(-z) reaches {asymmetry:.2g}")
    return act
