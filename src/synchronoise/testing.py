"""Conformance: what every noise, attention and observable must do, ours and yours.

Each check raises `AssertionError` with one line that says what does not hold; it returns nothing.  Checks of a law
compare means over independent draws within five standard errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from synchronoise.attention import Attention
from synchronoise.errors import UserError
from synchronoise.model import Transformer, layer_map, step
from synchronoise.noise import Noise
from synchronoise.observables import Observable
from synchronoise.randomness import replica_keys, step_key

H = 1e-4  # a step short enough that X' - X = √h P F ξ, and long enough for single precision


def check_noise(
    noise: Noise,
    dim: int,
    covariance: Callable[[np.ndarray], np.ndarray] | None = None,
    *,
    draws: int = 4000,
    seed: int = 0,
) -> None:
    """The contract of a noise: E[<ΔX_i, ΔX_j>] = h C_ij (d - 2 + ρ_ij²) over a short step h, C = E F Fᵀ   (THEORY §3).

    ``covariance`` is its formula, tokens (n, d) → C (n, n); without it C is the mean of the noise's own factors.  Also:
    shapes, the same draw at the same address, no order among tokens, equal tokens moved equally iff ``common``, a field
    on any points iff not ``in_law_only``, finite gradients at merged and antipodal tokens, ``floor`` and ``route``.

    >>> from synchronoise import VectorNoise
    >>> check_noise(VectorNoise(0.3), dim=3, covariance=lambda x: np.full((len(x), len(x)), 0.09))
    """
    x, n = _tokens(dim), 6
    keys = jax.vmap(lambda key: step_key(key, 0))(replica_keys(seed, draws))
    factor_at = eqx.filter_jit(noise.factor)
    factor = factor_at(keys[0], x)
    _require(factor.ndim == 2 and factor.shape[0] == n, f"factor has shape {factor.shape}, not (n, r) with n = {n}")
    _require(factor.dtype == x.dtype, f"factor is {factor.dtype} at {x.dtype} tokens")
    _require(bool((factor == factor_at(keys[0], x)).all()), "two factors at one address differ")
    _require(bool(noise.route) and noise.floor(x.dtype) > 0, "route must be words and floor a distance > 0")

    model, order = Transformer(None, noise, layers=1, horizon=H), np.array([3, 0, 5, 1, 4, 2])

    def draw(key: Any) -> tuple[Any, Any, Any]:
        own, other = noise.factor(key, x), noise.factor(key, x[order])
        return own @ own.T, other @ other.T, (layer_map(key, x, model, H) - x) / H**0.5

    # One program for all: what takes the time here is to compile it.
    grams, permuted, moves = (np.asarray(a, float) for a in jax.jit(jax.vmap(draw))(keys))
    rho = np.asarray(x @ x.T, float)
    exact = grams if covariance is None else np.broadcast_to(covariance(np.asarray(x, float)), grams.shape)
    difference = np.einsum("kid,kjd->kij", moves, moves) - exact * (dim - 2 + rho**2)
    size = np.max(np.mean(exact, axis=0).diagonal())
    _require_zero(difference, size * (dim - 1), "E[<ΔX_i, ΔX_j>] is not h C_ij (d - 2 + ρ_ij²)")

    _require_zero(permuted - grams[:, order][:, :, order], size, "the law depends on the order of the tokens")
    gap, size = float(np.abs(moves[:, 1] - moves[:, 5]).max()), float(np.abs(moves).max())
    if noise.common:
        _require(gap <= 1e3 * noise.floor(x.dtype) * size, f"common noise, but equal tokens move {gap:.1e} apart")
        merged = jax.jit(lambda key: step(key, x, model, H)[0])(keys[0])
        _require(bool((merged[1] == merged[5]).all()), "equal tokens do not stay equal")
    else:
        _require(gap > 1e-3 * size, "the noise is not `common`, yet equal tokens move equally")
    _check_field(noise, keys[0], x)
    gradient = jax.jit(jax.grad(lambda y: jnp.sum(noise.increment(keys[0], y) ** 2)))(x)
    _require(bool(jnp.isfinite(gradient).all()), "gradients are not finite at merged and antipodal tokens")


def _check_field(noise: Noise, key: Any, x: Any) -> None:
    """A field takes the same values at the same points, whichever others are asked for; the others refuse."""
    try:
        field = noise.field(key)
    except UserError:
        _require(noise.in_law_only, "the noise refuses to be a field, but is not in_law_only")
        return
    _require(not noise.in_law_only, "the noise is in_law_only, but gives a field")
    whole = noise.increment(key, x)
    gap = float(jnp.abs(field(x[2:4]) - whole[2:4]).max())
    _require(gap <= 1e-4 * float(jnp.abs(whole).max()), f"the field at two points depends on the others, by {gap:.1e}")


def check_attention(attention: Attention, dim: int | None = None) -> None:
    """The contract of an attention Attn_X, at ``dim`` (that of its matrices, or 4)   (THEORY §1).

    Shapes; turning the tokens turns the output where no matrix forbids it.  ``symmetric`` attention: permuting the
    tokens permutes the output, weights k_j/n stand for k_j equal tokens, equal tokens stay equal, other points see the
    same drift.  Other attention must depend on the order.  Finite gradients at merged and antipodal tokens.

    >>> from synchronoise import SoftmaxAttention
    >>> check_attention(SoftmaxAttention(beta=2.0))
    """
    dim = dim or attention.dim or 4
    x = _tokens(dim)
    attend = eqx.filter_jit(attention)
    out = attend(x)
    scale, tolerance = float(jnp.abs(out).max()), 200 * float(jnp.finfo(x.dtype).eps)

    def same(a: Any, b: Any) -> bool:
        return a.shape == b.shape and bool(jnp.abs(a - b).max() <= tolerance * scale)

    _require(out.shape == x.shape and out.dtype == x.dtype, f"output {out.shape} {out.dtype} at {x.shape} {x.dtype}")
    order = np.array([3, 0, 5, 1, 4, 2])
    _require(same(attend(x[order]), out[order]) == attention.symmetric, "`symmetric` is not what the output says")
    if attention.dim is None:
        rotation = jnp.asarray(np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0], x.dtype)
        _require(same(attend(x @ rotation), out @ rotation), "turning the tokens does not turn the output")
    if attention.symmetric:
        _require(same(attend(x, at=x[2:4]), out[2:4]), "the drift at other points is another one")
        repeated, counts = np.repeat(np.arange(3), [1, 3, 2]), jnp.asarray([1, 3, 2], x.dtype) / 6
        _require(
            same(attend(x[repeated])[np.array([0, 1, 4])], attend(x[:3], counts)),
            "weights k_j/n are not k_j equal tokens",
        )
        after = step(jax.random.key(0), x, Transformer(attention, None, layers=1, horizon=0.1), 0.1)[0]
        _require(bool((after[1] == after[5]).all()), "equal tokens do not stay equal")
    gradient = jax.jit(jax.grad(lambda y: jnp.sum(attention(y) ** 2)))(x)
    _require(bool(jnp.isfinite(gradient).all()), "gradients are not finite at merged and antipodal tokens")


def check_observable(observable: Observable, dim: int = 4) -> None:
    """The contract of an observable: one finite value of fixed shape, its axes named by ``dims`` and ``coords``.

    >>> from synchronoise import Energy
    >>> check_observable(Energy(beta=1.0))
    """
    x = _tokens(dim)[:5]
    _require(observable.name.isidentifier(), f"name {observable.name!r} is no name of a variable")
    _require(bool(observable.long_name) and bool(observable.reference), "long_name and reference must be words")
    value = observable(x, None)
    compiled = jax.jit(lambda y: observable(y, None))(x)
    _require(value.shape == compiled.shape, "the shape changes under jit")
    _require(bool(jnp.isfinite(value).all()), "not finite at distinct tokens")
    _require(bool(jnp.allclose(value, compiled, rtol=1e-3, atol=1e-5)), "the value changes under jit")
    _require(value.ndim == len(observable.dims), f"{value.ndim} axes, but dims = {observable.dims}")
    lengths = dict(zip(observable.dims, value.shape, strict=True))
    for name, along in observable.coords.items():
        _require(lengths.get(name) == len(along), f"coordinate {name!r} has length {len(along)}, not that of its axis")


def _tokens(dim: int) -> Any:
    """Four uniform tokens, the antipode of the first and a copy of the second."""
    x = np.random.default_rng(3).standard_normal((4, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return jnp.asarray(np.concatenate([x, -x[:1], x[1:2]]))


def _require_zero(samples: np.ndarray, scale: Any, what: str) -> None:
    """The mean over the first axis is 0 within five standard errors and 0.5 % of the scale, and they are small."""
    scale, mean, error = float(scale), samples.mean(axis=0), samples.std(axis=0, ddof=1) / len(samples) ** 0.5
    widest = 5 * float(error.max()) / scale
    _require(widest <= 0.5, f"{what}: too few draws to tell, 5 SE = {widest:.0%}")
    worst = float((np.abs(mean) - 5 * error).max())
    _require(worst <= 0.005 * scale, f"{what}: off by {np.abs(mean).max() / scale:.1%}, beyond 5 standard errors")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
