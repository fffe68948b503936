"""A random PyTorch transformer drawn from an architecture: what confirms a "what if" by measurement."""

from __future__ import annotations

import torch
from torch import nn

from synchronoise.errors import UserError
from synchronoise.probe.architectures import Architecture

_ACTIVATIONS = {
    "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "elu": nn.ELU,
    "softplus": nn.Softplus, "linear": nn.Identity, "leaky_relu": nn.LeakyReLU,
}  # fmt: skip


def _linear(inputs: int, outputs: int, std: float, bias: float) -> nn.Linear:
    # Built without its own initialisation, which would cost as much as ours.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(std * torch.randn(outputs, inputs))
        layer.bias.copy_(bias * torch.randn(outputs))
    return layer


class DrawnAttention(nn.Module):
    """softmax(q kᵀ/√(d/heads)) v W_O with independent Gaussian matrices."""

    def __init__(self, which: Architecture):
        super().__init__()
        d = which.dim
        self.heads, self.causal = which.heads, which.causal
        self.query, self.key = (_linear(d, d, which.query_std, 0.0) for _ in range(2))
        self.value = _linear(d, d, which.value_std, which.value_bias)
        self.output = _linear(d, d, which.output_std, which.output_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        shape = (batch, tokens, self.heads, dim // self.heads)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class DrawnMLP(nn.Module):
    """W_2 φ(W_1 x + b_1) + b_2, or gated."""

    def __init__(self, which: Architecture):
        super().__init__()
        if which.activation not in _ACTIVATIONS:
            raise UserError(f"activation {which.activation!r} has no PyTorch module", mend="use relu, gelu, silu, tanh")
        self.inner = _linear(which.dim, which.hidden, which.mlp_in_std, which.mlp_in_bias)
        self.gate = _linear(which.dim, which.hidden, which.mlp_in_std, 0.0) if which.gated else None
        self.outer = _linear(which.hidden, which.dim, which.mlp_out_std, which.mlp_out_bias)
        self.activation = _ACTIVATIONS[which.activation]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.inner(x))
        return self.outer(hidden if self.gate is None else hidden * self.gate(x))


class DrawnBlock(nn.Module):
    """One block, pre-norm, post-norm or parallel; `intermediate` is the MLP (its input is the middle of post-norm)."""

    def __init__(self, which: Architecture):
        super().__init__()
        norm = nn.LayerNorm if which.norm == "layer" else nn.RMSNorm
        self.placement, self.use_parallel_residual = which.placement, which.placement == "parallel"
        self.attention, self.intermediate = DrawnAttention(which), DrawnMLP(which)
        self.first_norm = norm(which.dim, eps=which.norm_eps)
        second = norm(which.dim, eps=which.norm_eps)
        # In a post-norm block no norm has the middle of the block as its input.
        self.second_norm = second
        if which.placement == "pre":
            self.ln_2 = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.placement == "post":
            y = self.first_norm(x + self.attention(x))
            return self.second_norm(y + self.intermediate(y))
        if self.placement == "parallel":
            seen = self.first_norm(x)
            return x + self.attention(seen) + self.intermediate(seen)
        y = x + self.attention(self.first_norm(x))
        return y + self.intermediate(self.second_norm(y))


class DrawnTransformer(nn.Module):
    """All blocks of an `Architecture` with freshly drawn weights, on embeddings (batch, tokens, d).

    >>> from synchronoise.probe import architecture
    >>> bert = architecture({"model_type": "bert", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2})
    >>> model = DrawnTransformer(bert)
    >>> tuple(model(model.embeddings(3)).shape)
    (1, 3, 32)
    """

    def __init__(self, which: Architecture):
        super().__init__()
        if which.attention != "random":
            raise UserError(f"{which.name} has no random attention", mend="synchronoise.probe.torch_transformer")
        self.architecture = which
        self.blocks = nn.ModuleList([DrawnBlock(which) for _ in range(which.depth)])

    def embeddings(self, tokens: int) -> torch.Tensor:
        """Random embeddings of the architecture's law, (1, tokens, d)."""
        which, d = self.architecture, self.architecture.dim
        own = torch.full((tokens, 1), which.token_std)
        if which.first_std is not None:
            own[0] = which.first_std
        parts = which.position_std * torch.randn(tokens, d) + which.common_std * torch.randn(1, d)
        x = own * torch.randn(tokens, d) + parts
        return (nn.functional.layer_norm(x, (d,)) if which.embedding_norm else x)[None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x
