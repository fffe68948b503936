"""Read an architecture, or the kernels of given (trained) weights, off a PyTorch model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from synchronoise.activations import ACTIVATION_NAMES
from synchronoise.errors import UserError
from synchronoise.probe.architectures import Architecture, architecture
from synchronoise.probe.bridge import TorchTransformer
from synchronoise.probe.drawn import DrawnTransformer
from synchronoise.probe.layouts import find_layout
from synchronoise.probe.prediction import BlockLaw

NODES = 9  # Chebyshev nodes in the cosine at which an empirical kernel is sampled
SAMPLES = 256  # pairs of Gaussian tokens at each


def describe(model: nn.Module) -> Architecture | None:
    """The architecture of a model: from its configuration, or for PyTorch's encoder from the spread of its weights.

    None where it cannot be read.

    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> found = describe(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> found.depth, found.dim, found.placement, found.activation
    (3, 16, 'post', 'relu')
    """
    if isinstance(model, DrawnTransformer | TorchTransformer):
        return model.architecture
    config = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        try:
            return architecture(config.to_dict())  # pyright: ignore[reportOptionalMemberAccess]
        except UserError:
            return None
    encoder = next((module for module in model.modules() if isinstance(module, nn.TransformerEncoder)), None)
    return None if encoder is None else _encoder(encoder)


def _encoder(encoder: nn.TransformerEncoder) -> Architecture | None:
    block = encoder.layers[0]
    if not isinstance(block, nn.TransformerEncoderLayer):
        return None
    attention, phi = block.self_attn, getattr(block.activation, "__name__", type(block.activation).__name__).lower()
    if attention.in_proj_weight is None or phi not in ACTIVATION_NAMES:
        return None
    query, key, value = attention.in_proj_weight.chunk(3)
    biases = (None,) * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
    return Architecture(
        name="nn.TransformerEncoder", depth=len(encoder.layers), dim=attention.embed_dim, heads=attention.num_heads,
        hidden=block.linear1.out_features, activation=phi, placement="pre" if block.norm_first else "post",
        norm_eps=block.norm1.eps, query_std=float(np.sqrt(_spread(query) * _spread(key))), value_std=_spread(value),
        output_std=_spread(attention.out_proj.weight), mlp_in_std=_spread(block.linear1.weight),
        mlp_out_std=_spread(block.linear2.weight), value_bias=_spread(biases[2]),
        output_bias=_spread(attention.out_proj.bias), mlp_in_bias=_spread(block.linear1.bias),
        mlp_out_bias=_spread(block.linear2.bias), positional="none",
        shared_blocks=len(set(encoder.layers)) < len(encoder.layers),
    )  # fmt: skip


def _spread(weights: torch.Tensor | None) -> float:
    return 0.0 if weights is None else float(weights.detach().float().square().mean().sqrt())


def trained_laws(model: nn.Module) -> list[BlockLaw]:
    """The law of each block of a model from its weights: the empirical kernel of its MLP, the gain of W_O W_V.

    κ(c) = E <F(h), F(h')>/d over Gaussian tokens h, h' of cosine c, F the MLP with its norm, sampled at Chebyshev nodes
    in c and joined by a polynomial.  For `predict(..., laws=)`; GPT-2, Llama, BERT and ALBERT.  What weights of
    different layers have in common is not in it.  Raises `UserError` for other models.  THEORY §2.
    """
    which = describe(model)
    family = getattr(getattr(model, "config", None), "model_type", None)
    if which is None or family not in _PARTS:
        raise UserError(f"the weights of {type(model).__name__} are not read", mend=f"known: {', '.join(_PARTS)}")
    blocks, depth = find_layout(model).blocks, which.depth
    blocks = blocks * depth if len(blocks) == 1 else blocks
    with torch.inference_mode():
        seen = {block: _law(which, *_PARTS[family](block)) for block in dict.fromkeys(blocks)}
    return [seen[block] for block in blocks]


def _law(
    which: Architecture, mlp: Callable[[Any], Any], qkvo: tuple[torch.Tensor, ...], gain: torch.Tensor
) -> BlockLaw:
    d = which.dim
    query, key, value, output = (matrix.double() for matrix in qkvo)  # each maps rows to rows: x @ matrix
    together = (gain.double()[:, None] * value) @ _repeated(output, value, which)
    logits = _spread(gain[:, None] * query) * _spread(gain[:, None] * key) * d
    cosines = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(SAMPLES, d, generator=generator) for _ in range(2))

    def written(x: torch.Tensor) -> torch.Tensor:
        return mlp(x.to(gain.dtype)).float()  # of weights in half precision too

    moments = [
        float((written(one) * written(c * one + (1 - c * c) ** 0.5 * other)).sum(1).mean() / d)
        for c in cosines.tolist()
    ]
    fit = np.polynomial.Chebyshev.fit(cosines, moments, NODES - 3, domain=[-1, 1])
    return BlockLaw(float((together**2).sum() / d), 0.0, 0.0, logits**2, fit, fit.deriv())


def _repeated(output: torch.Tensor, value: torch.Tensor, which: Architecture) -> torch.Tensor:
    """W_O with the rows of heads that share a value (grouped queries) added up."""
    groups, size = value.shape[1] // (which.dim // which.heads), which.dim // which.heads
    return output.view(groups, -1, size, output.shape[1]).sum(1).reshape(value.shape[1], -1)


def _gpt2(block: Any) -> tuple[Any, ...]:
    query, key, value = block.attn.c_attn.weight.chunk(3, dim=1)
    return lambda x: block.mlp(block.ln_2(x)), (query, key, value, block.attn.c_proj.weight), block.ln_1.weight


def _llama(block: Any) -> tuple[Any, ...]:
    a = block.self_attn
    matrices = tuple(part.weight.T for part in (a.q_proj, a.k_proj, a.v_proj, a.o_proj))
    return lambda x: block.mlp(block.post_attention_layernorm(x)), matrices, block.input_layernorm.weight


def _bert(block: Any) -> tuple[Any, ...]:
    a, norm = block.attention, block.attention.output.LayerNorm
    matrices = tuple(p.weight.T for p in (a.self.query, a.self.key, a.self.value, a.output.dense))
    return lambda x: block.output.dense(block.intermediate(norm(x))), matrices, block.output.LayerNorm.weight


def _albert(block: Any) -> tuple[Any, ...]:
    a = block.attention
    matrices = tuple(p.weight.T for p in (a.query, a.key, a.value, a.dense))
    return lambda x: block.ff_chunk(a.LayerNorm(x)), matrices, block.full_layer_layer_norm.weight


_PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "gpt2": _gpt2, "llama": _llama, "mistral": _llama, "bert": _bert, "albert": _albert,
}  # fmt: skip
