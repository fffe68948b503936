"""What is looked at: pure functions of the tokens (and their weights), one small class each.

An observable is called with the tokens of one replica at one layer and returns an array of fixed shape;
`simulate` maps it over replicas and layers.  ``dims`` and ``coords`` name its axes in the result.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import Array, Float, Scalar, Tokens, Weights
from .sphere import half_square_chords

# What is about pairs looks at the first tokens only when there are more: 2 million pairs are enough to see a law, and
# all pairs of a million tokens are out of reach.  Tokens that start iid are exchangeable, so the first ones are fair.
MOST_PAIRED = 2048


class Observable(eqx.Module):
    """A function of the tokens with a name, a description and the axes of its values.  Abstract."""

    name: ClassVar[str]
    long_name: ClassVar[str]
    reference: ClassVar[str]
    dims: ClassVar[tuple[str, ...]]

    @abstractmethod
    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        """The value at the tokens x of one replica."""

    @property
    def coords(self) -> dict[str, np.ndarray]:
        """Coordinates of the axes ``dims`` of one value, where they have any."""
        return {}


def pair_indices(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices i < j of the n(n-1)/2 pairs."""
    return np.triu_indices(n, 1)


def distinct_share(tokens: int) -> float:
    """1 - 1/n, the share of distinct tokens among the pairs that `Energy` sees: n of the tokens (THEORY §6).

    >>> distinct_share(4), distinct_share(10**6)
    (0.75, 0.99951171875)
    """
    return 1 - 1 / min(tokens, MOST_PAIRED)


def energy(x: Tokens, beta: float | Array, weights: Weights | None = None) -> Scalar:
    """E_β = ½ Σ_ij w_i w_j (e^β - e^{β<x_i,x_j>}), w = 1/n by default; pairs i = j count and give 0 (THEORY §6).

    Computed from chords, so it keeps its relative accuracy down to merged tokens (where it is exactly 0).
    It is (1-1/n) times the mean pair energy ½(e^β - e^{βρ}) of THEORY §5 (`distinct_share`).

    >>> import jax.numpy as jnp
    >>> round(float(energy(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), 1.0)), 5)  # sinh(1)/2
    0.5876
    """
    n = x.shape[0]
    w = jnp.full(n, 1 / n, x.dtype) if weights is None else weights
    beta, distance = jnp.asarray(beta, x.dtype), half_square_chords(x)
    # e^β - e^{β(1-ε)} = -sign(β) e^top expm1(-|β|ε), top the larger exponent: nothing overflows before the energy does.
    top = beta - jnp.minimum(beta, 0) * distance
    return -0.5 * jnp.sign(beta) * (w @ (jnp.exp(top) * jnp.expm1(-jnp.abs(beta) * distance)) @ w)


class Energy(Observable):
    """`energy` at the attention's β, of at most the first `MOST_PAIRED` tokens, as everything about pairs here."""

    beta: float = 1.0
    name = "energy"
    dims = ()
    long_name = "interaction energy E_beta"
    reference = "THEORY §6"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return energy(x[:MOST_PAIRED], self.beta, _share(weights))


class MeanOverlap(Observable):
    """Mean of <x_i, x_j> over the pairs i < j (1 for one token)."""

    name = "mean_overlap"
    dims = ()
    long_name = "mean overlap <x_i, x_j> over pairs"
    reference = "THEORY §5"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return 1 - jnp.mean(_pair_distances(x))


class OverlapQuantiles(Observable):
    """Quantiles of the overlaps <x_i, x_j> over the pairs i < j."""

    levels: tuple[float, ...] = eqx.field(static=True, default=(0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0))
    name = "overlap_quantiles"
    dims = ("quantile",)
    long_name = "quantiles of the overlaps <x_i, x_j> over pairs"
    reference = "THEORY §5"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        distances = _ascending(_pair_distances(x))
        at = (1 - np.asarray(self.levels)) * (distances.size - 1)  # a quantile of 1 - ε is one of ε, from above
        below = np.floor(at).astype(int)
        share = jnp.asarray(at - below, x.dtype)
        above = distances[np.minimum(below + 1, distances.size - 1)]
        return 1 - ((1 - share) * distances[below] + share * above)

    @property
    def coords(self) -> dict[str, np.ndarray]:
        return {"quantile": np.asarray(self.levels)}


class OverlapHistogram(Observable):
    """Share of the pairs i < j whose overlap falls in each of equal bins of [-1, 1]."""

    bins: int = eqx.field(static=True, default=64)
    name = "overlap_histogram"
    dims = ("overlap",)
    long_name = "share of pairs by overlap <x_i, x_j>"
    reference = "THEORY §5"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        overlaps = 1 - _pair_distances(x)
        index = jnp.clip(jnp.floor((overlaps + 1) * (self.bins / 2)), 0, self.bins - 1).astype(jnp.int32)
        return jnp.zeros(self.bins, x.dtype).at[index].add(1 / index.size)

    @property
    def coords(self) -> dict[str, np.ndarray]:
        return {"overlap": (np.arange(self.bins) + 0.5) * 2 / self.bins - 1}


class LogDistance(Observable):
    """Mean of log(1 - <x_i, x_j>) over the pairs i < j; its slope in time is 2 λ_1 near synchrony (THEORY §6).

    -inf once two tokens are equal.
    """

    name = "log_distance"
    dims = ()
    long_name = "mean of log(1 - <x_i, x_j>) over pairs"
    reference = "THEORY §6"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return jnp.mean(jnp.log(_pair_distances(x)))


class LargestDistance(Observable):
    """Largest 1 - <x_i, x_j> over the pairs: below any number means that all tokens have merged to that."""

    name = "largest_distance"
    dims = ()
    long_name = "largest 1 - <x_i, x_j> over pairs"
    reference = "THEORY §5"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return jnp.max(_pair_distances(x))


class Positions(Observable):
    """The tokens themselves."""

    name = "tokens"
    dims = ("token", "dim")
    long_name = "tokens on the unit sphere"
    reference = "THEORY §1"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return x


def _pair_distances(x: Tokens) -> Float[Array, " pairs"]:
    """1 - <x_i, x_j> for the pairs i < j <= `MOST_PAIRED`, from chords; a single token is a pair with itself."""
    n = min(len(x), MOST_PAIRED)
    return half_square_chords(x[:n])[pair_indices(n)] if n > 1 else jnp.zeros(1, x.dtype)


def _ascending(values: Float[Array, " k"]) -> Float[Array, " k"]:
    """Numbers >= 0 in ascending order: sorted as the integers of their bits, on CPUs eight times as fast."""
    bits = jnp.int64 if values.dtype == jnp.float64 else jnp.int32
    return jax.lax.bitcast_convert_type(jnp.sort(jax.lax.bitcast_convert_type(values, bits)), values.dtype)


def _share(weights: Weights | None) -> Float[Array, " few"] | None:
    """The weights of the first `MOST_PAIRED` tokens among themselves; equal ones where all of these are 0."""
    if weights is None or len(weights) <= MOST_PAIRED:
        return weights
    few = weights[:MOST_PAIRED]
    total = jnp.sum(few)
    return jnp.where(total > 0, few / jnp.where(total > 0, total, 1), 1 / MOST_PAIRED)
