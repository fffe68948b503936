"""Where the blocks of a PyTorch transformer are, and where its residual stream can be watched.

A layout is found by structure: the outermost list of modules of one class that holds most parameters is the blocks;
known names inside a block tell where the stream between attention and MLP passes, known names beside the list the
final norm.  What is not found is left out; blocks that are not found can be named.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import nn

from synchronoise.errors import UserError

# A module of a block whose *input* is the stream between attention and MLP.
MIDDLES = ("ln_2", "post_attention_layernorm", "layernorm_after", "intermediate", "ffn", "norm2", "linear1")
ATTENTIONS = ("attn", "self_attn", "attention", "self_attention")
FINAL_NORMS = ("ln_f", "norm", "final_layer_norm", "final_layernorm", "layernorm", "ln_final")


class ClonedWeightsWarning(UserWarning):
    """Different blocks hold equal weights: not the random model of the theory."""


@dataclass(frozen=True)
class Layout:
    """The blocks in order (one that is shared stands here once), the final norm if any, names for messages."""

    blocks: tuple[nn.Module, ...]
    names: tuple[str, ...]
    final_norm: nn.Module | None

    def middle(self, block: nn.Module) -> nn.Module | None:
        """The module of a block whose input is the stream between attention and MLP; None for parallel blocks."""
        return None if _parallel(block) else _child(block, _middles(block))

    def attention(self, block: nn.Module) -> nn.Module | None:
        """The attention of a block."""
        return _child(block, ATTENTIONS)


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((child for name in names if isinstance(child := getattr(module, name, None), nn.Module)), None)


def _parallel(block: nn.Module) -> bool:
    return bool(getattr(block, "use_parallel_residual", False) or getattr(block, "parallel_attn", False))


def _middles(block: nn.Module) -> tuple[str, ...]:
    # PyTorch's own layer has both; in its post-norm form norm2 comes after the MLP.
    if isinstance(block, nn.TransformerEncoderLayer) and not block.norm_first:
        return ("linear1",)
    return MIDDLES


def find_layout(model: nn.Module, blocks: str | None = None) -> Layout:
    """The layout of a model: GPT-2, Llama, BERT, ViT, ALBERT, GPT-NeoX, `nn.TransformerEncoder` and their likes.

    `blocks` names the list of blocks where it is not found ("encoder.layers").  Warns `ClonedWeightsWarning` where
    different blocks hold the same numbers.  Raises `UserError` where there is no list of blocks, or more than one.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16)
    >>> len(find_layout(nn.Sequential(layer, nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16)]))).blocks)
    1
    """
    path = _named(model, blocks) if blocks is not None else _search(model)
    found = _flatten(path, model.get_submodule(path))
    modules = tuple(module for _, module in found)
    layout = Layout(modules, tuple(name for name, _ in found), _final_norm(model, path))
    if len(modules) > 1 and modules[0] is not modules[1] and _equal(modules[0], modules[1]):
        warnings.warn(
            f"{layout.names[0]} and {layout.names[1]} hold the same weights (nn.TransformerEncoder clones its layer): "
            "this is not the random model; draw each layer's weights anew",
            ClonedWeightsWarning,
            stacklevel=3,
        )
    return layout


def _named(model: nn.Module, path: str) -> str:
    try:
        found = model.get_submodule(path)
    except AttributeError:
        found = None
    if not isinstance(found, nn.ModuleList | nn.Sequential) or len(found) == 0:
        lists = ", ".join(name for name, m in model.named_modules() if isinstance(m, nn.ModuleList)) or "none"
        raise UserError("blocks", got=path, expected="the name of a list of blocks", mend=f"lists of modules: {lists}")
    return path


def _search(model: nn.Module) -> str:
    total = sum(p.numel() for p in model.parameters())
    candidates: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in candidates) or not isinstance(
            module, nn.ModuleList | nn.Sequential
        ):
            continue
        same = len({type(child) for child in module}) == 1
        size = sum(p.numel() for p in module.parameters())
        if same and size > 0 and all(_like_a_block(block) for _, block in _flatten(name, module)):
            candidates.append(name)
    if len(candidates) == 1:
        return candidates[0]
    looked = (
        f"looked for one list of like modules with attention and an MLP in {type(model).__name__} ({total} weights)"
    )
    if not candidates:
        raise UserError(
            f"no blocks found: {looked}", mend='name the list: --blocks encoder.layers, blocks="encoder.layers"'
        )
    raise UserError(
        f"{len(candidates)} lists of blocks ({', '.join(candidates)}): {looked}", mend="name one with --blocks"
    )


def _like_a_block(module: nn.Module) -> bool:
    """Attention somewhere inside, and at least two matrices."""
    names = [name.rpartition(".")[2].lower() for name, _ in module.named_modules()]
    matrices = sum(p.ndim >= 2 for p in module.parameters())
    return matrices >= 2 and any("att" in name or "mixing" in name for name in names)


def _flatten(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The blocks of a list, also of groups of blocks (ALBERT)."""
    found = []
    for name, child in module.named_children():
        inner = [m for m in child.children() if any(True for _ in m.parameters())]
        if len(inner) == 1 and isinstance(inner[0], nn.ModuleList):
            inside = next(n for n, m in child.named_children() if m is inner[0])
            found += _flatten(f"{path}.{name}.{inside}", inner[0])
        else:
            found.append((f"{path}.{name}".lstrip("."), child))
    return found


def _final_norm(model: nn.Module, path: str) -> nn.Module | None:
    parts = path.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        parent = model.get_submodule(".".join(parts[:depth]))
        found = _child(parent, FINAL_NORMS)
        if found is not None:
            return found
    return None


def _equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = list(zip(one.parameters(), other.parameters(), strict=False))
    drawn = [(a, b) for a, b in pairs if a.ndim >= 2]
    return bool(drawn) and all(a.shape == b.shape and torch.equal(a, b) for a, b in drawn)
