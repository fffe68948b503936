"""Lyapunov exponents measured on the running flow, next to their closed form (THEORY §6).

The tangent flow v' = DX_{l+1} v of the layer map carries an orthonormal frame, re-orthonormalised at every layer by QR;
the exponents are the mean rates of log|R_kk|.  To first order log|R_kk| is linear in the noise: a martingale of
variance κ(1) + κ'(1) per unit of time, which would drown the mean.  Given tokens and frame the noise is symmetric, so
the odd part of log|R_kk| in the noise has mean zero exactly; what is averaged is the even part,

    ½ log|R_kk(ξ)| + ½ log|R_kk(-ξ)|,

whose fluctuations are smaller by √h.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import schur

from ._arrays import Array, Float, Key, PRNGKey
from .attention import Attention
from .budget import BASE, Memory, available_memory, check_memory
from .config import RunConfig, configure, noise_terms
from .errors import RunError, UserError
from .model import Transformer, cast, layer_map
from .noise import DrawnMLP, FreshFeatures, Noise, ScaledNoise, SumNoise, VectorNoise
from .progress import Progress
from .randomness import Role, replica_keys, role_key, step_key
from .routes import attention_of, law_of
from .sphere import Start, Uniform, layer_norm, leaders, tangent
from .theory.two_point import check_beta

FEATURES = 32  # fresh features that simulate the limit in law
COARSE = 0.6  # of h times all rates: beyond it the step is not extrapolated
ROUNDING = 16 * float(np.finfo(float).eps)  # of log|R_kk| in a layer
FRAMES_HELD = 9  # copies of all frames that a layer holds at once
SETTLING = 0.4  # share of the layers in which a random frame turns to the fast directions


def check_frames(tokens: int, dim: int, replicas: int) -> None:
    """Refuse frames of all tangent directions that do not fit in memory.

    >>> check_frames(3, 100_000, 128)
    Traceback (most recent call last):
    synchronoise.errors.UserError: the run needs about ... use fewer --replicas or --tokens
    """
    frames = 8.0 * replicas * tokens * (dim - 1) * tokens * dim
    check_memory(Memory(base=BASE, state=FRAMES_HELD * frames, layer=0.0, saved=0.0), available_memory())


class Growth(NamedTuple):
    """Per replica and direction, rates of growth over the counted time, shape (replica, k)."""

    even: np.ndarray  #: without the mean-zero part: its mean estimates the exponents
    whole: np.ndarray  #: with it: the finite-time exponents
    time: float  #: the counted time


def growth(
    model: Transformer, start: Start | np.ndarray, *, frame: np.ndarray | None = None, replicas: int = 64,
    seed: int = 0, progress: bool = False,
) -> Growth:  # fmt: skip
    """Growth rates of the n(d-1) tangent directions of the flow of all tokens.

    ``start`` is a law of tokens or tokens (n, d); equal tokens stay equal, and their tangent vectors do not: the
    synchronised state is the start with equal rows.  The noise must be a field.  ``frame`` (n(d-1), n, d) holds tangent
    vectors that begin in the directions of the exponents; else a random frame turns to them in the first 40 % of the
    layers, which are not counted.  Needs JAX's 64-bit mode (`UserError`).

    >>> import jax, numpy as np
    >>> from synchronoise import SoftmaxAttention, Transformer
    >>> model = Transformer(SoftmaxAttention(beta=1.0), None, layers=4000, horizon=20.0)
    >>> with jax.enable_x64(True):
    ...     rates = growth(model, np.eye(1, 3).repeat(2, axis=0), replicas=1).even[0]
    >>> (rates.round(2) + 0.0).tolist()
    [0.0, 0.0, -1.0, -1.0]
    """
    if jax.dtypes.canonicalize_dtype("float64") != "float64":
        raise UserError("exponents need 64 bits", mend="call jax.config.update('jax_enable_x64', True) first")
    if model.noise is not None:
        model.noise.field(jax.random.key(0))  # refuses what is no field: its derivative would have no meaning
    keys = replica_keys(seed, replicas)
    if isinstance(start, Start):
        x = jax.vmap(lambda key: start(role_key(key, Role.START), jnp.dtype("float64")))(keys)
    else:
        x = jnp.broadcast_to(layer_norm(jnp.asarray(start, "float64")), (replicas, *np.shape(start)))
    n, d = x.shape[1:]
    size, layers, chunk = n * (d - 1), model.layers, -(-model.layers // 20)
    check_frames(n, d, replicas)
    first = round(SETTLING * layers) if frame is None else 0
    if frame is None:
        frames = jax.vmap(lambda key: jax.random.normal(role_key(key, Role.COUPLED), (size, n, d), x.dtype))(keys)
    else:
        frames = jnp.broadcast_to(frame, (replicas, *frame.shape))
    frames = jax.vmap(lambda x, frame: _orthonormal(tangent(x, frame))[0])(x, frames)
    state = (x, frames, jnp.zeros((replicas, size), x.dtype), jnp.zeros((replicas, size), x.dtype))
    traced = cast(model, "float64")
    with Progress("exponents", layers, "layer", shown=progress) as bar:
        for begin in range(0, layers, chunk):
            end = min(begin + chunk, layers)
            state = jax.block_until_ready(_advance(traced, state, keys, *map(jnp.asarray, (begin, end, first))))
            bar.advance(end - begin)
    even, whole = (np.asarray(rates) for rates in state[2:])
    if not np.isfinite(whole).all():
        raise RunError("the flow or its tangent is not finite; more layers or smaller values may help")
    time = (layers - first) * model.horizon / layers
    return Growth(even / time, whole / time, time)


@eqx.filter_jit
def _advance(
    model: Transformer,
    state: tuple[Float[Array, "r n d"], Float[Array, "r k n d"], Float[Array, "r k"], Float[Array, "r k"]],
    keys: Key[Array, " r"],
    begin: Array,
    end: Array,
    first: Array,
) -> tuple[Float[Array, "r n d"], Float[Array, "r k n d"], Float[Array, "r k"], Float[Array, "r k"]]:
    """Tokens, frames and the sums of both parts of log|R_kk| (from layer ``first`` on), at layer ``end``."""
    h = model.horizon / model.layers
    mirrored = model if model.noise is None else eqx.tree_at(lambda m: m.noise, model, ScaledNoise(model.noise, -1.0))

    def one(state: tuple, key: PRNGKey) -> tuple:
        def layer(k: Array, carry: tuple) -> tuple:
            x, frame, even, whole = carry
            at = step_key(key, k)
            after, push = jax.linearize(lambda y: layer_map(at, y, model.drawn(key, k), h), x)
            _, other = jax.linearize(lambda y: layer_map(at, y, mirrored.drawn(key, k), h), x)
            minus = _orthonormal(jax.vmap(other)(frame))[1]
            frame, plus = _orthonormal(jax.vmap(push)(frame))
            counted = k >= first
            even, whole = even + counted * 0.5 * (plus + minus), whole + counted * plus
            if model.merging:
                after = after[leaders(x)]
            return after, frame, even, whole

        return jax.lax.fori_loop(begin, end, layer, state)

    return jax.vmap(one)(state, keys)


def _orthonormal(vectors: Float[Array, "k n d"]) -> tuple[Float[Array, "k n d"], Float[Array, " k"]]:
    """The QR factors of the vectors: an orthonormal frame, and log|R_kk|."""
    q, r = jnp.linalg.qr(vectors.reshape(vectors.shape[0], -1).T)
    return q.T.reshape(vectors.shape), jnp.log(jnp.abs(jnp.diagonal(r)))


def exponents_report(given: Mapping[str, object], *, full: bool = False, progress: bool = False) -> dict[str, Any]:
    """Measured exponents with standard errors beside the closed form, as plain numbers (THEORY §6).

    All are in the order of the closed form, fastest first; where there is none, or a random frame, of the measured.
    ``given`` are options of a run (names of `RunConfig`).  Without attention one token is followed, with attention
    ``tokens`` (3) equal ones: the synchronised state; ``full`` follows the flow of all tokens from a uniform start.

    "finite" is the transformer of so many layers and of this width; "measured" extrapolates it from h = T/L and h/2 to
    h = 0, where the width no longer matters (THEORY §3), so a narrow one is taken for `width` inf.  "bias" is what the
    extrapolation may leave, (finite - measured)²/(κ(1)+κ'(1)), and rounding.  "finite_time" are mean and deviation over
    replicas of the exponents over one horizon; without attention the fastest deviates by √((κ(1)+κ'(1))/T).  Standard
    errors are None for a single replica.  Warns where the steps are too long to be extrapolated.

    >>> import jax
    >>> with jax.enable_x64(True):
    ...     report = exponents_report({"dim": 3, "replicas": 4, "layers": 20})
    >>> [round(x, 6) for x in report["closed_form"]], len(report["measured"])
    ([-0.166667, -0.333333], 2)
    """
    config = configure({"attention": "none", "width": "inf", "replicas": 128, **given})
    noise, speed, slope = _field_of(config)
    attention = attention_of(config)
    tokens = config.tokens if full or "tokens" in given else 1 if attention is None else 3
    pulls = np.zeros(tokens) if attention is None else attention_pulls(config, tokens)
    check_frames(tokens, config.dim, config.replicas)
    rate = config.dim * (speed + slope)
    if rate == 0 and attention is None:
        raise UserError("neither noise nor attention: nothing moves", mend="use --noise mlp or --attention softmax")
    layers, horizon = _sizes(config, given, rate, np.abs(pulls).max())
    h = horizon / layers
    if h * (rate + np.abs(pulls).max()) > COARSE:
        warnings.warn(f"steps h = {h:.3g} are too long to be extrapolated to 0; use more layers", stacklevel=2)
    start = Uniform(tokens, config.dim) if full else np.eye(1, config.dim).repeat(tokens, axis=0)
    frame, mode = (None, None) if full or config.redraw else synchronised_frame(attention, tokens, config.dim)

    def at(refined: int) -> Growth:
        model = Transformer(attention, noise, layers=layers * refined, horizon=horizon)
        seed = (config.seed + refined - 1) % 2**32
        return growth(model, start, frame=frame, replicas=config.replicas, seed=seed, progress=progress)

    coarse, fine = at(1), at(2)
    (a, a_se), (b, b_se) = (_mean(g.even) for g in (coarse, fine))
    measured, error = 2 * b - a, np.sqrt(4 * b_se**2 + a_se**2)
    scale = (speed + slope) or 1.0
    noisy = ((config.dim - 3) * slope - (config.dim - 1) * speed) / 2 - slope * np.arange(config.dim - 1)
    if mode is None:
        order = np.argsort(-measured)
        exact = np.sort(np.tile(noisy, tokens))[::-1].tolist() if attention is None else None
    else:
        # In the order of the closed form: that of the measured values would mistake their errors for a spread.
        of_frame = (noisy - np.sort(pulls)[mode][:, None]).ravel()
        order = np.argsort(-of_frame, kind="stable")
        exact = of_frame[order].tolist()
    return {
        "state": "all tokens from a uniform start" if full else "synchronised" if tokens > 1 else "one token",
        "tokens": tokens,
        "measured": measured[order].tolist(),
        "se": error[order].tolist() if config.replicas > 1 else None,
        "closed_form": exact,
        "bias": ((a - measured) ** 2 / scale + ROUNDING / h)[order].tolist(),
        "finite": a[order].tolist(),
        "finite_se": a_se[order].tolist() if config.replicas > 1 else None,
        "finite_time": {
            "horizon": coarse.time,
            "mean": coarse.whole.mean(axis=0)[order].tolist(),
            "deviation": coarse.whole.std(axis=0)[order].tolist(),
            "deviation_closed_form": math.sqrt((speed + slope) / coarse.time) if attention is None else None,
        },
        "kaplan_yorke": kaplan_yorke(measured[order]),
        "scale": scale,
        "layers": layers,
        "horizon": horizon,
        "replicas": config.replicas,
        "route": "no noise" if noise is None else noise.route,
    }


def synchronised_frame(attention: Attention | None, tokens: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Tangent vectors at N equal tokens e_1 in the directions of the exponents, shape (N(d-1), N, d).

    Also the rank of each of the N modes of the tokens, 0 for the one that attention slows least: the vectors come in
    this order of the modes, d - 1 for each.

    There the derivative of the attention is A ⊗ I, A: N×N over the tokens, and that of the noise is I ⊗ J: in the Schur
    basis of A, times any basis of the tangent space, their products are triangular from the first layer on.

    >>> frame, rank = synchronised_frame(None, 1, 3)
    >>> frame[:, 0].tolist(), rank.tolist()
    ([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [0])
    """
    x = jnp.eye(1, dim).repeat(tokens, axis=0)
    rates, modes = np.zeros(tokens), np.eye(tokens)
    if attention is not None:
        moved = lambda s: tangent(x, attention(layer_norm(x.at[:, 1].set(s))))[:, 1] - s  # noqa: E731
        triangle, modes = schur(np.asarray(jax.jacfwd(moved)(jnp.zeros(tokens))))[:2]
        rates = np.diagonal(triangle)
    rank = np.empty(tokens, int)
    rank[np.argsort(-rates, kind="stable")] = np.arange(tokens)
    return np.einsum("im,kd->mkid", modes, np.eye(dim)[1:]).reshape(-1, tokens, dim), rank


def attention_pulls(config: RunConfig, tokens: int) -> np.ndarray:
    """What attention takes off the exponents of N equal tokens, one number for each mode of the tokens (THEORY §6).

    0 for the centre and a for the N - 1 relative modes; a e^β for unnormalised attention; a(1 - 1/i) for the i-th
    token of a causal one.  Each holds for all d - 1 directions.

    >>> from synchronoise.config import configure
    >>> attention_pulls(configure({"attention": "causal", "attention_scale": 2.0}), 3).round(3).tolist()
    [0.0, 1.0, 1.333]
    """
    if config.attention == "unnormalised":
        check_beta(config.beta)
    a, index = config.attention_scale, np.arange(tokens)
    if config.attention == "causal":
        return a * (1 - 1 / (1 + index))
    strength = a * math.exp(config.beta) if config.attention == "unnormalised" else a
    return np.where(index == 0, 0.0, strength)


def kaplan_yorke(spectrum: Sequence[float] | np.ndarray) -> float:
    """k + (λ_1 + ... + λ_k)/|λ_{k+1}|, k the last sum that is not negative: 0 if λ_1 < 0, all if no sum is negative.

    >>> kaplan_yorke([0.5, -0.25, -1.0])
    2.25
    """
    sums = np.cumsum(spectrum)
    k = int(np.argmax(sums < 0)) if (sums < 0).any() else len(sums)
    return float(k + (sums[k - 1] / -spectrum[k] if 0 < k < len(sums) else 0.0))


def _field_of(config: RunConfig) -> tuple[Noise | None, float, float]:
    """The noise as a field that can be differentiated, with κ(1) and κ'(1)."""
    law = law_of(config)
    parts, speed, slope = [], 0.0, 0.0
    for name, sigma in noise_terms(config.noise):
        if name in ("mlp", "field"):
            narrow = config.width == "inf" or name == "field"
            parts.append(FreshFeatures(law, FEATURES) if narrow else DrawnMLP(law, int(config.width)))
            speed, slope = speed + law.kernel().kappa_1, slope + law.kernel().dkappa_1
        elif name == "vector":
            parts.append(VectorNoise(sigma))
            speed += sigma**2
        elif name != "none":
            raise UserError(f"noise {name!r} is no field: its flow has no tangent", mend="use mlp, field or vector")
    return None if not parts else parts[0] if len(parts) == 1 else SumNoise(*parts), speed, slope


def _sizes(config: RunConfig, given: Mapping[str, object], rate: float, pull: float) -> tuple[int, float]:
    """Layers and horizon: as given, else a step of 0.05 over all rates, and long enough for attention to settle."""
    step = 0.05 / (rate + pull)
    horizon = config.horizon if "horizon" in given else max(200 * step, 15 / pull if pull else 0.0)
    return (config.layers if "layers" in given else math.ceil(horizon / step)), horizon


def _mean(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    deviation = samples.std(axis=0, ddof=1) if len(samples) > 1 else np.zeros(samples.shape[1])
    return samples.mean(axis=0), deviation / math.sqrt(len(samples))
