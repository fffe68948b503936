"""How similar tokens become with depth, from the architecture and the law of its weights alone (NumPy, no torch).

State: S_ij = <x_i, x_j>/d, the N × N second moments of the residual stream, in the mean over the random weights.
Fresh random matrices act on it in closed form.  With H = S of the normed tokens (H_ii = 1) a block adds

    attention   α² E[Σ_kl A_ik A_jl] H_kl,   α² = d² σ_V² σ_O²       (uniform or causal-prefix averages at small logits)
    MLP         m σ_2² κ(H_ij) + σ_b²,       κ the kernel E[φφ] of this project   (gated: times d σ_1² H_ij)

where the logits are Gaussian, Cov(l_ik, l_jl) = s² H_ij H_kl, and the mean of products of weights is taken as a ratio
of means, in powers of s²: an error of order s⁴, announced for large s.  A norm divides S_ij by the lengths.  One order
further in 1/d the cosine of a pair fluctuates and drifts as in the two-token law (THEORY §5).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from synchronoise.activations import Activation, activation
from synchronoise.errors import UserError
from synchronoise.kernel import Kernel
from synchronoise.probe.architectures import Architecture, architecture

if TYPE_CHECKING:
    import xarray as xr

SITES = ("embedding", "resid_mid", "resid_post", "final_norm")
LARGE_LOGITS = 0.7  # deviation of a logit beyond which averages with nearly equal weights are no guide
SMALL_DIM = 32  # below, terms of order 1/d² show
LOGIT_POWERS = 8  # of s² H kept at most; at s = 0.7 the next is 5e-9
NEGLIGIBLE = 1e-10  # the largest possible entry of a power that is left out

Matrix = Any  # a NumPy array


class PredictionWarning(UserWarning):
    """The prediction is outside the range in which it was checked."""


@dataclass(frozen=True)
class BlockLaw:
    """What one block adds to the second moments: attention's α², variances of biases and logits, the MLP's kernel.

    `mlp(c)` is the second moment per coordinate that the MLP adds for normed tokens of cosine c, and `mlp_slope` its
    derivative.
    """

    attention_gain: float
    value_bias: float
    output_bias: float
    logit_variance: float
    mlp: Callable[[Matrix], Matrix]
    mlp_slope: Callable[[Matrix], Matrix]


def dilated(act: Activation, gain: float) -> Activation:
    """φ(g z), the activation that sees pre-activations g times as large.

    >>> from synchronoise.activations import activation
    >>> float(dilated(activation("relu"), 3.0)(2.0))
    6.0
    """
    return Activation(
        f"{act.name}({gain:.6g}z)",
        lambda z, xp: act.function(gain * z, xp),
        lambda z, xp: gain * act.derivative(gain * z, xp),
        kinks=tuple(k / gain for k in act.kinks),
        odd=act.odd,
    )


@cache
def hidden_kernel(name: str, dim: int, gain: float, bias: float) -> Kernel:
    """κ of φ(g z) with σ_U = bias/g: E φ(W_1 h + b_1)φ(W_1 h' + b_1) for |h|² = d, g = d σ_1 (THEORY §2)."""
    return Kernel(dilated(activation(name), gain), dim, bias / gain)


def block_law(which: Architecture) -> BlockLaw:
    """The law of a random block of an architecture in closed form (THEORY §2).

    >>> law = block_law(architecture("gpt2-small"))
    >>> float(law.mlp(np.array(1.0))) > float(law.mlp(np.array(0.0))) > 0
    True
    """
    kernel = hidden_kernel(which.activation, which.dim, which.dim * which.mlp_in_std, which.mlp_in_bias)
    scale, bias = which.hidden * which.mlp_out_std**2, which.mlp_out_bias**2
    if which.gated:
        up = which.dim * which.mlp_in_std**2

        def mlp(c: Matrix) -> Matrix:
            return scale * kernel(c) * up * c + bias

        def slope(c: Matrix) -> Matrix:
            return scale * up * (kernel.derivative(c) * c + kernel(c))
    else:

        def mlp(c: Matrix) -> Matrix:
            return scale * kernel(c) + bias

        def slope(c: Matrix) -> Matrix:
            return scale * kernel.derivative(c)

    out = which.dim * which.output_std**2
    return BlockLaw(
        attention_gain=out * which.dim * which.value_std**2,
        value_bias=out * which.value_bias**2,
        output_bias=which.output_bias**2,
        logit_variance=which.logit_std**2,
        mlp=mlp,
        mlp_slope=slope,
    )


@dataclass(frozen=True)
class State:
    """Second moments S (N × N), and the variance of the cosine of each pair over weights and embeddings."""

    second: Matrix
    variance: Matrix

    @property
    def lengths(self) -> Matrix:
        """√S_ii: |x_i|/√d."""
        return np.sqrt(np.diag(self.second))

    @property
    def cosine(self) -> Matrix:
        return self.second / np.outer(self.lengths, self.lengths)

    def normed(self, eps: float) -> State:
        """After a norm: lengths √(S_ii/(S_ii + ε)), the same cosines."""
        root = np.sqrt(np.diag(self.second) + eps)
        return State(self.second / np.outer(root, root), self.variance)


def start_state(which: Architecture, tokens: int, overlaps: Matrix | None = None) -> State:
    """The embeddings: independent tokens and positions and a common part, or vectors of these overlaps <x_i, x_j>/d."""
    if overlaps is not None:
        second = np.array(overlaps, dtype=float)
        if second.ndim != 2 or second.shape[0] != second.shape[1] or not np.isfinite(second).all():
            raise UserError("start", got=f"shape {second.shape}", expected="finite N × N overlaps", mend="give X Xᵀ/d")
        # Given vectors do not fluctuate.
        return State(second, np.zeros_like(second))
    own, common = which.token_std**2, which.common_std**2
    # Two random ids are the same one now and then.
    second = np.full((tokens, tokens), common + (own / which.vocabulary if which.vocabulary else 0.0))
    np.fill_diagonal(second, own + which.position_std**2 + common)
    if which.first_std is not None:
        second[0, :] = second[:, 0] = common
        second[0, 0] = which.first_std**2 + which.position_std**2 + common
    state = State(second, (1 - _unit(second) ** 2) ** 2 / which.dim)
    return state.normed(which.norm_eps) if which.embedding_norm else state


def _unit(second: Matrix) -> Matrix:
    root = np.sqrt(np.diag(second))
    return second / np.outer(root, root)


def averages(matrix: Matrix, causal: bool) -> Matrix:
    """(1/n_i n_j) Σ_kl M_kl over the tokens that i and j attend to: all, or those up to i and up to j.

    >>> averages(np.eye(2), causal=True).tolist()
    [[1.0, 0.5], [0.5, 0.5]]
    """
    if not causal:
        return np.full_like(matrix, matrix.mean())
    count = np.arange(1, len(matrix) + 1)
    return matrix.cumsum(0).cumsum(1) / np.outer(count, count)


def attended(h: Matrix, values: Matrix, logit_variance: float, causal: bool) -> Matrix:
    """E[Σ_kl A_ik A_jl V_kl] for Gaussian logits, as a ratio of means in powers of s² H_ij H_kl.

    >>> h = np.eye(2)
    >>> attended(h, h, 0.0, causal=False).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    above, below, factor, power = 0.0, 0.0, np.ones_like(h), np.ones_like(h)
    for k in range(LOGIT_POWERS + 1):
        above = above + factor * averages(power * values, causal)
        below = below + factor * averages(power, causal)
        if logit_variance ** (k + 1) < NEGLIGIBLE * math.factorial(k + 1):
            break
        factor, power = factor * logit_variance * h / (k + 1), power * h
    return above / below


def add_noise(state: State, added: Matrix, slope: Matrix | float, dim: int) -> State:
    """x_i + g_i, the g_i Gaussian with second moments `added` in each coordinate; `slope` is d(added)/d(cosine).

    To first order in 1/d: δS has the covariance of Wishart matrices of S + C minus that of S, which moves the mean of
    a cosine and adds to its variance as drift and variance of the two-token law do (THEORY §5).
    """
    total = state.second + added
    root = np.outer(np.sqrt(np.diag(total)), np.sqrt(np.diag(total)))
    rho, before = total / root, state.second / root
    shrunk = np.diag(state.second) / np.diag(total)
    one, two = (
        np.broadcast_to(1 - (shrunk**2)[:, None], rho.shape),
        np.broadcast_to(1 - (shrunk**2)[None, :], rho.shape),
    )
    own = 2 * (one + two)  # d (Var δ_ii + Var δ_jj)
    both = 2 * (rho**2 - before**2)  # d Cov(δ_ii, δ_jj)
    mixed = 4 * rho - 2 * before * (shrunk[:, None] + shrunk[None, :])  # d Cov(δ_ii + δ_jj, δ_ij)
    cross = 1 + rho**2 - np.outer(shrunk, shrunk) - before**2  # d Var δ_ij
    noise = (rho**2 / 4 * (own + 2 * both) + cross - rho * mixed) / dim
    drift = (0.75 * rho * own + 0.5 * rho * both - mixed) / (2 * dim)
    lengths = np.outer(state.lengths, state.lengths)
    carried = (lengths + slope) / root
    variance = np.maximum(carried**2 * state.variance + noise, 0.0)
    np.fill_diagonal(variance, 0.0)
    mean = np.clip(rho + drift, -1.0, 1.0)
    np.fill_diagonal(mean, 1.0)
    return State(mean * root, variance)


def attention_step(state: State, seen: State, which: Architecture, law: BlockLaw) -> State:
    """x + Attn(seen); `seen` is the normed residual stream (pre) or the stream itself (post)."""
    h = seen.second
    if which.attention == "identity":
        logits = which.beta * h
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        if which.causal:
            weights = np.tril(weights)
        mixing = np.eye(len(h)) + which.attention_scale * weights / weights.sum(axis=1, keepdims=True)
        after = mixing @ state.second @ mixing.T
        kept = np.outer(np.diag(mixing), np.diag(mixing)) * np.outer(state.lengths, state.lengths)
        root = np.sqrt(np.diag(after))
        return State(after, (kept / np.outer(root, root)) ** 2 * state.variance)
    return add_noise(state, attention_moments(h, which, law), 0.0, which.dim)


def attention_moments(h: Matrix, which: Architecture, law: BlockLaw) -> Matrix:
    values = law.attention_gain * attended(h, h, law.logit_variance, which.causal)
    return values + law.value_bias + law.output_bias


def mlp_moments(seen: State, law: BlockLaw) -> tuple[Matrix, Matrix]:
    """What the MLP adds in the mean over the fluctuation of a pair's cosine, and the derivative."""
    scale, c, sd = np.outer(seen.lengths, seen.lengths), seen.cosine, np.sqrt(seen.variance)
    added = 0.5 * (law.mlp(np.clip(c + sd, -1, 1)) + law.mlp(np.clip(c - sd, -1, 1)))
    return scale * added, scale * law.mlp_slope(np.clip(c, -1, 1))


def block_step(state: State, which: Architecture, law: BlockLaw) -> tuple[State | None, State]:
    """One block: the state between attention and MLP (None where they are parallel), and the state after it."""
    if which.placement == "post":
        middle = attention_step(state, state, which, law).normed(which.norm_eps)
        return middle, add_noise(middle, *mlp_moments(middle, law), which.dim).normed(which.norm_eps)
    seen = state.normed(which.norm_eps)
    if which.placement == "parallel":
        added, slope = mlp_moments(seen, law)
        return None, add_noise(state, added + attention_moments(seen.second, which, law), slope, which.dim)
    middle = attention_step(state, seen, which, law)
    return middle, add_noise(middle, *mlp_moments(middle.normed(which.norm_eps), law), which.dim)


def predict(
    source: Any,
    tokens: int = 64,
    *,
    start: Matrix | None = None,
    laws: Sequence[BlockLaw] | None = None,
    beta: float = 1.0,
) -> xr.Dataset:
    """Mean cosine of pairs, its deviation, and norms by layer and site, from the architecture alone.

    `source` is a name ("gpt2-small"), a Hugging Face configuration (mapping, JSON file, folder), a PyTorch model, or an
    `Architecture`.
    `start` replaces the random embeddings by vectors of overlaps <x_i, x_j>/d (N × N); `laws` replaces the law of the
    random blocks, one for each (`synchronoise.probe.trained_laws` reads them off given weights).  `beta` is that of the
    energy.  Sites: `embedding` (layer 0), `resid_mid` between attention and MLP, `resid_post`, and `final_norm`
    (layer L; not in post-norm models); NaN elsewhere.  Statistics leave out a first token that is special.

    Warns `PredictionWarning` for logits of deviation above 0.7, d < 32, given laws, and blocks that share weights.
    Raises `UserError` for unknown models and wrong shapes.  THEORY §2, §5.

    >>> predict("gpt2-small", tokens=64).mean_cosine.sel(site="resid_post").values[[1, 12]].round(3).tolist()
    [0.171, 0.574]
    """
    import xarray as xr

    which = architecture(source)
    if start is not None:
        tokens = len(start)
    if tokens < 2 + which.special_first:
        raise UserError(
            "tokens", got=tokens, expected=f"an integer >= {2 + which.special_first}", mend="pairs are compared"
        )
    given = laws is not None
    laws = [block_law(which)] * which.depth if laws is None else laws
    if len(laws) != which.depth:
        raise UserError("laws", got=len(laws), expected=f"one for each of {which.depth} blocks", mend="give as many")
    _announce(which, max(law.logit_variance for law in laws) ** 0.5, given)
    state = start_state(which, tokens, start)
    states: dict[tuple[int, str], State | None] = {(0, "embedding"): state}
    for layer, law in enumerate(laws, 1):
        middle, state = block_step(state, which, law)
        states |= {(layer, "resid_mid"): middle, (layer, "resid_post"): state}
    if which.placement != "post":
        states[which.depth, "final_norm"] = state.normed(which.norm_eps)
    names = ("mean_cosine", "cosine_sd", "energy", "effective_rank", "stable_rank", "rank_one_residual", "norm")
    table = {name: np.full((which.depth + 1, len(SITES)), np.nan) for name in names}
    for (layer, site), here in states.items():
        if here is not None:
            for name, value in _summary(here, which, beta).items():
                table[name][layer, SITES.index(site)] = value
    return xr.Dataset(
        {name: (("layer", "site"), values) for name, values in table.items()},
        {"layer": np.arange(which.depth + 1), "site": list(SITES)},
        {"architecture": which.name, "tokens": tokens, "beta": beta},
    )


def _summary(state: State, which: Architecture, beta: float) -> dict[str, float]:
    skip = int(which.special_first)
    cosine, variance = state.cosine[skip:, skip:], state.variance[skip:, skip:]
    n = len(cosine)
    pairs = np.triu_indices(n, 1)
    c, v = cosine[pairs], variance[pairs]
    return {
        "mean_cosine": float(c.mean()),
        "cosine_sd": float(np.sqrt(c.var() + v.mean())),
        "energy": float((1 - 1 / n) * 0.5 * np.mean(np.exp(beta) - np.exp(beta * c + 0.5 * beta**2 * v))),
        "effective_rank": float(n**2 / np.sum(cosine**2 + variance)),
        "stable_rank": float(n / np.linalg.eigvalsh(cosine)[-1]),
        "rank_one_residual": float(np.sqrt(max(1 - cosine.mean(), 0.0))),
        "norm": float(state.lengths[skip:].mean() * np.sqrt(which.dim)),
    }


def _announce(which: Architecture, logit_std: float, given: bool) -> None:
    reasons = []
    if which.attention == "random" and logit_std > LARGE_LOGITS:
        reasons.append(f"attention logits deviate by {logit_std:.2g} (nearly uniform attention is assumed)")
    if given:
        reasons.append("weights are given (independence of what they act on is assumed)")
    if which.dim < SMALL_DIM:
        reasons.append(f"d = {which.dim} is small (an expansion in 1/d is used)")
    if which.shared_blocks and which.depth > 1:
        reasons.append("blocks share their weights (independent ones are assumed)")
    if reasons:
        warnings.warn(
            f"the prediction for {which.name} is rough: {'; '.join(reasons)}", PredictionWarning, stacklevel=3
        )
