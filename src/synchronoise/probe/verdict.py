"""What a prediction means: the depth of collapse, who causes it, the paper's parameters, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synchronoise.activations import activation
from synchronoise.errors import UserError
from synchronoise.kernel import Kernel
from synchronoise.probe.architectures import Architecture, without_biases
from synchronoise.probe.prediction import (
    BlockLaw,
    State,
    add_noise,
    attention_moments,
    attention_step,
    block_law,
    block_step,
    dilated,
    mlp_moments,
    predict,
    start_state,
)

LEVELS = (0.9, 0.99)
DEEPEST = 400  # layers in which collapse is looked for at least, with the same law of the weights


def mean_cosine(state: State, which: Architecture) -> float:
    """Mean cosine over pairs, without a first token that is special."""
    kept = state.cosine[which.special_first :, which.special_first :]
    return float((kept.sum() - len(kept)) / (len(kept) * (len(kept) - 1)))


def collapse_depths(which: Architecture, tokens: int, start: Any = None) -> dict[str, int | None]:
    """First layer whose mean cosine is predicted to exceed 0.9 and 0.99; None beyond 400 layers.

    Layers beyond the last one have the law of the others.

    >>> from synchronoise.probe import architecture
    >>> collapse_depths(architecture("llama-small"), 32)["0.9"]
    57
    """
    state, law, layer = start_state(which, tokens, start), block_law(which), 0
    found: dict[str, int | None] = dict.fromkeys(map(str, LEVELS))
    while layer <= max(DEEPEST, which.depth):
        value = mean_cosine(state, which)
        for level in LEVELS:
            if value > level and found[str(level)] is None:
                found[str(level)] = layer
        if all(depth is not None for depth in found.values()):
            break
        layer, state = layer + 1, block_step(state, which, law)[1]
    return found


def shares(which: Architecture, tokens: int, start: Any = None) -> dict[str, float]:
    """What attention, MLPs and biases add to the mean cosine over the layers, each alone at the state it meets.

    The MLP's part is without biases, theirs is what they add to it.  The parts need not sum to the whole rise.

    >>> from synchronoise.probe import architecture
    >>> parts = shares(architecture("gpt2-small"), 32)
    >>> parts["mlp"] > 0 and parts["biases"] == 0
    True
    """
    bare = without_biases(which)
    state, law, plain = start_state(which, tokens, start), block_law(which), block_law(bare)
    parts: dict[str, float] = {"attention": 0.0, "mlp": 0.0, "biases": 0.0}
    for _ in range(which.depth):
        middle, after = block_step(state, which, law)
        before = mean_cosine(state, which)
        with_mlp, without = (_after_mlp(state if middle is None else middle, which, each) for each in (law, plain))
        attended, plainly = (_after_attention(state, which, each) for each in (law, plain))
        parts["attention"] += plainly - before
        base = before if middle is None else mean_cosine(middle, which)
        parts["mlp"] += without - base
        parts["biases"] += with_mlp - without + attended - plainly
        state = after
    return parts


def _after_attention(state: State, which: Architecture, law: BlockLaw) -> float:
    if which.placement == "post":
        return mean_cosine(attention_step(state, state, which, law), which)
    seen = state.normed(which.norm_eps)
    if which.placement == "parallel":
        return mean_cosine(add_noise(state, attention_moments(seen.second, which, law), 0.0, which.dim), which)
    return mean_cosine(attention_step(state, seen, which, law), which)


def _after_mlp(state: State, which: Architecture, law: BlockLaw) -> float:
    seen = state if which.placement == "post" else state.normed(which.norm_eps)
    return mean_cosine(add_noise(state, *mlp_moments(seen, law), which.dim), which)


def translate(which: Architecture, tokens: int = 64, start: Any = None) -> dict[str, Any]:
    """An architecture in the paper's parameters: X = x/|x| moves by √Δt G with κ of φ(g z), σ_U, σ_W   (THEORY §1, §2).

    g = d σ_1, σ_U = σ_b1/g, σ_W = σ_b2/(σ_2 √m), Δt_l = m σ_2²/|x|² at layer l (|x|² predicted, d after a norm), and
    T = Σ Δt_l.  `sigma_values` is the deviation of the attention as random value matrices.  λ_1 and λ̄ are rates per
    unit of time; times `steps` they are those of a layer.  `paper_architecture` is the way back.

    >>> from synchronoise.probe import paper_architecture
    >>> there = translate(paper_architecture("relu", 64, 0.1, 0.2, layers=50, horizon=5.0))
    >>> [round(there[name], 12) for name in ("horizon", "gain", "sigma_u", "sigma_w")]
    [5.0, 1.0, 0.1, 0.2]
    """
    gain = which.dim * which.mlp_in_std
    out = math.sqrt(which.hidden) * which.mlp_out_std
    if gain == 0 or out == 0:
        raise UserError(f"{which.name} has no MLP noise", mend="its weights have deviation 0")
    sigma_u, sigma_w = which.mlp_in_bias / gain, which.mlp_out_bias / out
    kernel, d = Kernel(dilated(activation(which.activation), gain), which.dim, sigma_u), which.dim
    kappa, slope = kernel.kappa_1, kernel.dkappa_1
    if which.gated:  # the kernel of the product: that of φ times that of W_3, (g²/d) u
        kappa, slope = kappa * gain**2 / d, (kappa + slope) * gain**2 / d
    kappa += sigma_w**2
    steps, state, law = [], start_state(which, tokens, start), block_law(which)
    for _ in range(which.depth):
        middle, after = block_step(state, which, law)
        seen = state if middle is None else middle
        steps.append(out**2 / float(which.dim * np.mean(seen.lengths[which.special_first :] ** 2)))
        state = after
    return {
        "horizon": float(sum(steps)),
        "steps": steps,
        "gain": gain,
        "sigma_u": sigma_u,
        "sigma_w": sigma_w,
        "sigma_values": math.sqrt(law.attention_gain) / out,
        "kappa_1": kappa,
        "dkappa_1": slope,
        # as in theory.exponents, whose kernels are not those of a product
        "lambda_1": ((d - 3) * slope - (d - 1) * kappa) / 2,
        "lambda_bar": (d - 1) * slope - (d - 3) * kappa,
    }


@dataclass(frozen=True)
class Change:
    """One "what if": its name and the architecture it makes."""

    name: str
    architecture: Architecture


def changes(which: Architecture) -> list[Change]:
    """The changes that mean something for an architecture: biases, residual scale, activation, depth, norm placement.

    >>> from synchronoise.probe import architecture
    >>> [change.name for change in changes(architecture("gpt2-small"))][:2]
    ['residual scale 1, not 1/√(2L)', 'activation tanh']
    """
    found = []
    if without_biases(which) != which:
        found.append(Change("no biases", without_biases(which)))
    root = math.sqrt(2 * which.depth)
    if which.attention == "random":
        scaled = math.isclose(which.output_std * root, which.value_std, rel_tol=1e-6)
        factor, name = (root, "residual scale 1, not 1/√(2L)") if scaled else (1 / root, "residual scale 1/√(2L)")
        outputs = {"output_std": factor * which.output_std, "mlp_out_std": factor * which.mlp_out_std}
        found.append(Change(name, replace(which, **outputs)))
    other = "tanh" if which.activation != "tanh" else "relu"
    found.append(Change(f"activation {other}", replace(which, activation=other)))
    found.append(Change("twice as deep", replace(which, depth=2 * which.depth)))
    if which.attention == "random":
        placement = "pre" if which.placement == "post" else "post"
        found.append(Change(f"{placement}-norm blocks", replace(which, placement=placement)))
    return found


def what_if(which: Architecture, tokens: int = 64, start: Any = None) -> list[dict[str, Any]]:
    """For every change the predicted mean cosine after the last block and the depths of collapse.

    >>> from synchronoise.probe import architecture
    >>> rows = what_if(architecture("bert-base"), 32)
    >>> rows[0]["change"], round(rows[0]["mean_cosine"], 3), rows[0]["collapse"]
    ('none', 0.622, {'0.9': 32, '0.99': 61})
    """
    rows = []
    for change in [Change("none", which), *changes(which)]:
        curve = predict(change.architecture, tokens, start=start).mean_cosine.sel(site="resid_post").values
        depths = collapse_depths(change.architecture, tokens, start)
        rows.append({"change": change.name, "mean_cosine": float(curve[-1]), "collapse": depths})
    return rows


def in_words(name: str, depth: int, collapse: dict[str, int | None], parts: dict[str, float]) -> str:
    """The verdict in a sentence.

    >>> in_words("llama", 12, {"0.9": 5, "0.99": None}, {"attention": 0.6, "mlp": 0.3, "biases": 0.0})
    'llama at initialisation collapses: mean cosine above 0.9 at layer 5 of 12; attention adds 0.60, MLPs 0.30, ...'
    """
    at = collapse[str(LEVELS[0])]
    if at is None:
        told = f"does not collapse, nor would {max(DEEPEST, depth)} such layers"
    elif at > depth:
        told = f"does not collapse in its {depth} layers: mean cosine above {LEVELS[0]} only at layer {at}"
    else:
        told = f"collapses: mean cosine above {LEVELS[0]} at layer {at} of {depth}"
    added = ", ".join(
        f"{label} {'adds ' if label == 'attention' else ''}{parts[key]:.2f}"
        for label, key in (("attention", "attention"), ("MLPs", "mlp"), ("biases", "biases"))
    )
    return f"{name} at initialisation {told}; {added}"


def first_above(curve: Sequence[float] | np.ndarray, level: float) -> int | None:
    """The first layer of a measured curve above a level.

    >>> first_above([0.1, 0.5, 0.95], 0.9)
    2
    """
    above = np.flatnonzero(np.asarray(curve) > level)
    return int(above[0]) if above.size else None
