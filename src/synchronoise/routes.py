"""Routes: how the attention and the noise of a configuration are computed, chosen once, before a run starts.

A route changes what is drawn and in which order things are summed, never the law.  The choice depends on the sizes,
the dtype and how close the tokens will come, all known before; the result of a run names it, and flags force it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from synchronoise.attention import (
    Attention,
    CausalAttention,
    L2Attention,
    RandomAttention,
    SinkhornAttention,
    SoftmaxAttention,
    UnnormalisedAttention,
    block_heads,
)
from synchronoise.banks import HarmonicField
from synchronoise.config import RunConfig, noise_terms
from synchronoise.errors import UserError
from synchronoise.harmonic_attention import LARGEST_BETA as LARGEST_HARMONIC_BETA
from synchronoise.harmonic_attention import HarmonicAttention
from synchronoise.harmonics import DIMENSIONS
from synchronoise.noise import (
    MLP,
    DrawnMLP,
    FreshFeatures,
    GaussianField,
    InLawMLP,
    Noise,
    PrivateNoise,
    SumNoise,
    ValueNoise,
    VectorNoise,
    mlp_noise,
)
from synchronoise.theory import lambda_1

ATTENTIONS = {
    "softmax": SoftmaxAttention,
    "unnormalised": UnnormalisedAttention,
    "l2": L2Attention,
    "sinkhorn": SinkhornAttention,
    "causal": CausalAttention,
    "multihead": SoftmaxAttention,
}
MANY_TOKENS = 2000  # from here on harmonics are faster than a dense sum
MOST_FACTORED = 1024  # tokens; the Cholesky factor costs n³, features cost n
DIGITS_LEFT = 1e3  # the smallest eigenvalue of κ(Gram) above so many roundings of κ(1)
MARGIN = 5.0  # how far above the floor of a route its tokens should stay


def attention_of(config: RunConfig) -> Attention | None:
    """The attention of a configuration; None without one, or at scale 0."""
    if config.attention == "none" or config.attention_scale == 0:
        return None
    if in_harmonics(config):
        return HarmonicAttention(
            config.beta, config.attention_scale, dim=config.dim, kind=config.attention, dtype=config.dtype
        )
    heads = config.heads if config.attention == "multihead" else 1
    if config.redraw:
        kind = ATTENTIONS[config.attention]
        return RandomAttention(
            kind, config.beta, config.attention_scale, dim=config.dim, heads=heads, every=config.redraw
        )
    if config.attention == "multihead":
        return block_heads(config.beta, config.attention_scale, config.dim, heads)
    return ATTENTIONS[config.attention](beta=config.beta, scale=config.attention_scale)


def in_harmonics(config: RunConfig) -> bool:
    """Whether the attention is summed over harmonics: where that is asked for, or possible and worth it.

    Raises `UserError` where it is asked for and impossible.
    """
    suits = config.attention in ("softmax", "unnormalised") and not config.redraw
    if config.method == "harmonic":
        if not suits:
            got = f"{config.attention} attention{', redrawn' if config.redraw else ''}"
            raise UserError("method harmonic", got=got, expected="fixed softmax or unnormalised", mend="use dense")
        return True
    possible = suits and config.dim in DIMENSIONS and abs(config.beta) <= LARGEST_HARMONIC_BETA
    return config.method == "auto" and possible and config.tokens >= MANY_TOKENS


def law_of(config: RunConfig) -> MLP:
    """The law of the configuration's random layers."""
    return MLP(config.activation, config.dim, config.sigma_u, config.sigma_w)


def noise_of(config: RunConfig) -> Noise | None:
    """The noise of a configuration, a sum where several are named; None without one.

    Random value matrices act on the outputs of softmax attention at the configuration's β, V = I, whatever the drift.
    """
    law = law_of(config)
    build = {
        "mlp": lambda sigma: layer_noise(law, config),
        "field": lambda sigma: limit_noise(law, config),
        "private": PrivateNoise,
        "vector": VectorNoise,
        "values": lambda sigma: ValueNoise(SoftmaxAttention(config.beta), sigma),
    }
    names = [name for name, _ in noise_terms(config.noise)]
    if config.route != "auto" and not {"mlp", "field"} & set(names):
        raise UserError("--route is about an mlp or a field", got=config.noise, mend="leave it out")
    parts = [build[name](sigma) for name, sigma in noise_terms(config.noise) if name != "none"]
    return None if not parts else parts[0] if len(parts) == 1 else SumNoise(*parts)


def layer_noise(law: MLP, config: RunConfig) -> Noise:
    """MLP layers of the configuration's width: their weights drawn, or exact in law; of infinite width, the limit."""
    if config.width == "inf":
        return limit_noise(law, config)
    width = int(config.width)
    routes: dict[str, Callable[[], Noise]] = {
        "auto": lambda: mlp_noise(law, width, config.tokens),
        "drawn": lambda: DrawnMLP(law, width),
        "exact": lambda: InLawMLP(law, width),
    }
    return _route(config.route, routes, f"layers of width {width}")


def limit_noise(law: MLP, config: RunConfig) -> Noise:
    """The Gaussian field by its Cholesky factor, by narrow fresh features (in law the same) or in harmonics.

    Features where the factor is too large or has too few digits, or where tokens may come closer than it resolves.
    """
    routes: dict[str, Callable[[], Noise]] = {
        "cholesky": lambda: GaussianField(law),
        "features": lambda: FreshFeatures(law),
        "harmonics": lambda: HarmonicField(law, degree=48 if law.dim == 2 else 12),
    }
    routes["auto"] = lambda: routes["cholesky" if _factor_serves(GaussianField(law), config) else "features"]()
    return _route(config.route, routes, "the Gaussian field")


def _route(name: str, routes: dict[str, Callable[[], Noise]], what: str) -> Noise:
    if name not in routes:
        raise UserError("route", got=name, expected=f"for {what}: {', '.join(routes)}", mend="use --route auto")
    return routes[name]()


def _factor_serves(field: GaussianField, config: RunConfig) -> bool:
    return config.tokens <= MOST_FACTORED and not _degenerate(field, config) and not _too_close(field, config)


def _degenerate(field: GaussianField, config: RunConfig) -> bool:
    """Whether κ has fewer digits than tokens have directions: a smooth κ on many tokens of a low dimension.

    The smallest eigenvalue of κ(Gram) at so many uniform tokens, in float64: what the factor keeps of it is rounding of
    the run's dtype divided by pivots as small as it.
    """
    x = np.random.default_rng(0).standard_normal((config.tokens, config.dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    smallest = np.linalg.eigvalsh(field.mlp.kernel()(np.clip(x @ x.T, -1, 1)))[0]
    return bool(smallest < DIGITS_LEFT * np.finfo(config.dtype).eps * field.kappa_1)


def _too_close(field: GaussianField, config: RunConfig) -> bool:
    """Whether tokens may come near the field's floor: they do not approach faster than at synchrony (THEORY §6).

    Log-distances there move at λ_1 - a (unnormalised: a e^β), from the closest pair of N uniform tokens on; a vector
    or value noise beside the field adds its σ² to κ(1).
    """
    pull = 0.0 if config.attention == "none" else config.attention_scale
    if config.attention == "unnormalised":
        pull *= math.exp(min(config.beta, 50.0))
    beside = sum(sigma**2 for name, sigma in noise_terms(config.noise) if name in ("vector", "values"))
    rate = lambda_1(field.mlp.kernel()) - 0.5 * (config.dim - 1) * beside - pull
    start = -2 * math.log(max(config.tokens, 2)) / (config.dim - 1)
    closest = start + min(0.0, rate) * config.horizon
    return closest < math.log(MARGIN * field.floor(np.dtype(config.dtype)))
