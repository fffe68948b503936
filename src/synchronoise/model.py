"""The transformer: attention + noise + scalings, and its layer map (THEORY §1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, PRNGKey, Scalar, Tokens, Weights
from .activations import Activation
from .attention import Attention, RandomAttention
from .errors import UserError
from .noise import (
    MLP,
    DrawnMLP,
    FreshFeatures,
    GaussianField,
    InLawMLP,
    Noise,
    PrivateNoise,
    ScaledNoise,
    SumNoise,
    ValueNoise,
    VectorNoise,
)
from .observables import Observable
from .randomness import step_key
from .sphere import layer_norm, leaders


class Transformer(eqx.Module):
    """A deep transformer with fresh random layers, or (`limit`) the SDE it converges to.

        Y_i  = LN(X_i + α_1(L) Attn_X(X_i)),    X'_i = LN(Y_i + α_2(L) G(Y_i)),    L layers   (THEORY §1)

    α_1(L) = T/L and α_2(L) = √(T/L) unless ``alpha_1``, ``alpha_2`` (functions of L) are given.  ``attention`` or
    ``noise`` may be None.  ``weights`` (n positive numbers, normalised to sum 1) are the tokens' weights w_j.

    >>> from synchronoise import MLP, DrawnMLP, SoftmaxAttention
    >>> model = Transformer(SoftmaxAttention(beta=1.0), DrawnMLP(MLP("relu", dim=8), width=32), layers=10)
    >>> model.limit().noise.route
    'Gaussian field, Cholesky factor'
    """

    attention: Attention | None
    noise: Noise | None
    layers: int
    horizon: float
    weights: Any
    alpha_1: Callable[[Any], Any] | None = eqx.field(static=True)
    alpha_2: Callable[[Any], Any] | None = eqx.field(static=True)

    def __init__(
        self,
        attention: Attention | None,
        noise: Noise | None,
        *,
        layers: int = 150,
        horizon: float = 5.0,
        weights: Sequence[float] | np.ndarray | None = None,
        alpha_1: Callable[[Any], Any] | None = None,
        alpha_2: Callable[[Any], Any] | None = None,
    ):
        if layers < 1:
            raise UserError("layers", got=layers, expected="an integer >= 1", mend="use --layers 150")
        if not (np.isfinite(horizon) and horizon > 0):
            raise UserError("horizon", got=horizon, expected="a finite number > 0", mend="use --horizon 5")
        if weights is not None:
            weights = np.asarray(weights, float)
            if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() == 0:
                raise UserError("weights must be finite numbers >= 0, one for each token, not all zero")
            weights = weights / weights.sum()
            noise = None if noise is None else noise.weighted(weights)
        self.attention, self.noise = attention, noise
        self.layers, self.horizon, self.weights = layers, float(horizon), weights
        self.alpha_1, self.alpha_2 = alpha_1, alpha_2

    @property
    def merging(self) -> bool:
        """Whether equal tokens must stay equal: attention symmetric in the tokens, noise common to them."""
        return (self.attention is None or self.attention.symmetric) and (self.noise is None or self.noise.common)

    @property
    def route(self) -> str:
        """How the noise is computed, in words."""
        return "no noise" if self.noise is None else self.noise.route

    def limit(self, *, layers: int | None = None, features: int | None = None) -> Transformer:
        """The limit L, m -> ∞ of Theorem 1.1 in L Euler steps: the same attention, the Gaussian field for the MLP.

        The steps end with LN, which is the Itô term of THEORY §3 (nothing is added to the drift).  With ``features``
        the field is simulated in law by that many fresh features per step: linear in the tokens, accurate as they
        merge, weak error O((1 + c/features)/layers) (THEORY §3).
        """
        if self.alpha_1 is not None or self.alpha_2 is not None:
            raise UserError("the limit of Theorem 1.1 needs the paper's scalings", mend="leave alpha_1 and alpha_2 out")
        noise = None if self.noise is None else _limit_noise(self.noise, features)
        return Transformer(
            self.attention, noise, layers=layers or self.layers, horizon=self.horizon, weights=self.weights
        )

    def drawn(self, replica_key: PRNGKey, layer: Array | int) -> Transformer:
        """The same model with the parameters that its attention has at this layer (see `RandomAttention`)."""
        random = self.attention
        if not isinstance(random, RandomAttention):
            return self
        first = layer // random.every * random.every
        attention = random.draw(step_key(replica_key, first), jnp.result_type(random.beta))
        return eqx.tree_at(lambda model: model.attention, self, attention)

    def describe(self) -> dict[str, Any]:
        """What the model is, as plain values for the provenance of a result."""
        return _describe(self)


def _limit_noise(noise: Noise, features: int | None) -> Noise:
    """The Gaussian field for an MLP; what is white noise already stays as it is."""
    if isinstance(noise, SumNoise):
        return SumNoise(*(_limit_noise(part, features) for part in noise.parts))
    if isinstance(noise, ScaledNoise):
        return ScaledNoise(_limit_noise(noise.noise, features), noise.by)
    if isinstance(noise, DrawnMLP | InLawMLP | GaussianField):
        return GaussianField(noise.mlp) if features is None else FreshFeatures(noise.mlp, features)
    if isinstance(noise, PrivateNoise | VectorNoise | ValueNoise):
        return noise
    raise UserError(f"{type(noise).__name__} has no limit here", mend="build the limit's noise yourself")


def _describe(value: Any) -> Any:
    if isinstance(value, Activation):
        return value.name
    if isinstance(value, MLP | Transformer | Attention | Noise):
        named = {field.name: _describe(getattr(value, field.name)) for field in fields(value)}
        named.pop("evaluators", None)
        return {"kind": type(value).__name__, **named}
    if isinstance(value, tuple):
        return [_describe(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return getattr(value, "__name__", repr(value)) if callable(value) else value


def step(
    key: PRNGKey, x: Tokens, model: Transformer, h: float | Scalar, observers: Sequence[Observable] = ()
) -> tuple[Tokens, dict[str, Array]]:
    """One layer over the time h = T/L, and what the observers see of the tokens after it.

    The same map is the Euler step of the limit SDE when the noise is the Gaussian field (THEORY §3).  ``key`` is that
    of one (seed, replica, fine step).  Equal tokens stay exactly equal where the model lets them
    (`Transformer.merging`).
    """
    after = layer_map(key, x, model, h)
    if model.merging:
        after = after[leaders(x)]
    return after, observe(after, model.weights, observers)


def layer_map(key: PRNGKey, x: Tokens, model: Transformer, h: float | Scalar) -> Tokens:
    """The two lines of `Transformer`: what `step` does, smooth in the tokens also where some are equal."""
    depth = model.horizon / h
    after = x
    if model.attention is not None:
        alpha_1 = h if model.alpha_1 is None else model.alpha_1(depth)
        after = layer_norm(after + alpha_1 * model.attention(after, model.weights))
    if model.noise is not None:
        alpha_2 = jnp.sqrt(h) if model.alpha_2 is None else model.alpha_2(depth)
        after = layer_norm(after + alpha_2 * model.noise.increment(key, after))
    return after


def observe(x: Tokens, weights: Weights | None, observers: Sequence[Observable]) -> dict[str, Array]:
    """The values of the observers at these tokens, by name."""
    return {observer.name: observer(x, weights) for observer in observers}


def cast(tree: Any, dtype: Any) -> Any:
    """The same model or start with its numbers as JAX arrays (reals of this dtype): traced, so that other numbers reuse
    the compiled code."""

    def leaf(value: Any) -> Any:
        if isinstance(value, int):
            return jnp.asarray(value, jnp.int32)
        return jnp.asarray(value, dtype) if isinstance(value, float | np.ndarray | jax.Array) else value

    with np.errstate(over="ignore"):  # what overflows the dtype stops the run, in words
        return jax.tree.map(leaf, tree)
