"""The paper's transformer as a PyTorch module with the weights of the JAX layer map, and tokens across the bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from synchronoise.activations import Activation
from synchronoise.attention import CausalAttention, SoftmaxAttention
from synchronoise.errors import UserError
from synchronoise.model import Transformer
from synchronoise.noise import DrawnMLP
from synchronoise.probe.architectures import Architecture, paper_architecture
from synchronoise.randomness import Role, replica_keys, role_key, step_key

_FUNCTIONS = {
    "relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "erf": torch.erf, "softplus": nn.functional.softplus, "elu": nn.functional.elu,
    "linear": lambda z: z,
}  # fmt: skip


class TorchAttention(nn.Module):
    """X_i + (T/L) a Σ_j softmax_j(β<X_i, X_j>) X_j, not yet normalised   (THEORY §1)."""

    def __init__(self, beta: float, scale: float, causal: bool):
        super().__init__()
        self.beta, self.scale, self.causal = beta, scale, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.beta * x @ x.transpose(-1, -2)
        if self.causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        return x + self.scale * torch.softmax(logits, dim=-1) @ x


class TorchBlock(nn.Module):
    """Y = LN(X + (T/L) Attn_X(X)),  X' = LN(Y + √(T/L) (m^{-1/2} W φ(d^{-1/2} U Y + b_U) + b_W))   (THEORY §1)."""

    def __init__(self, attention: TorchAttention | None, activation: Activation, step: float, weights: Any):
        super().__init__()
        inner, inner_bias, outer, outer_bias = (torch.tensor(np.asarray(w)) for w in weights)
        width, dim = inner.shape
        self.attention, self.phi = attention, _FUNCTIONS[activation.name]
        self.intermediate = nn.Linear(dim, width, dtype=inner.dtype)
        self.output = nn.Linear(width, dim, dtype=inner.dtype)
        with torch.no_grad():
            self.intermediate.weight.copy_(inner / dim**0.5)
            self.intermediate.bias.copy_(inner_bias)
            self.output.weight.copy_((step / width) ** 0.5 * outer)
            self.output.bias.copy_(step**0.5 * outer_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.attention is not None:
            x = nn.functional.normalize(self.attention(x), dim=-1)
        return nn.functional.normalize(x + self.output(self.phi(self.intermediate(x))), dim=-1)


class TorchTransformer(nn.Module):
    """The blocks of `torch_transformer`; `architecture` is what `predict` takes for it."""

    def __init__(self, blocks: list[TorchBlock], which: Architecture):
        super().__init__()
        self.blocks, self.architecture = nn.ModuleList(blocks), which

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def torch_transformer(model: Transformer, *, seed: int = 0, replica: int = 0) -> TorchTransformer:
    """The JAX model of one replica of `simulate` as a PyTorch module: the same weights, the same tokens to rounding.

    `model` has a `DrawnMLP` as its noise and softmax, causal or no attention with QᵀK = β I, V = a I; others are a
    `UserError`.  The module maps tokens on the unit sphere (batch, N, d).  THEORY §1.

    >>> import synchronoise as sn
    >>> model = sn.Transformer(sn.SoftmaxAttention(), sn.DrawnMLP(sn.MLP("relu", 8), 16), layers=3)
    >>> len(torch_transformer(model).blocks)
    3
    """
    noise, attention = model.noise, model.attention
    if not isinstance(noise, DrawnMLP) or noise.mlp.activation.name not in _FUNCTIONS:
        raise UserError(
            "noise", got=type(noise).__name__, expected="a DrawnMLP of a PyTorch activation", mend="draw weights"
        )
    if not (attention is None or isinstance(attention, SoftmaxAttention | CausalAttention)):
        raise UserError(
            "attention", got=type(attention).__name__, expected="softmax, causal or none", mend="others stay in JAX"
        )
    if model.weights is not None or model.alpha_1 is not None or model.alpha_2 is not None:
        raise UserError(
            "only the paper's scalings and equal tokens cross the bridge", mend="leave weights and alphas out"
        )
    numbers: dict[str, float] = {"beta": 0.0, "scale": 0.0}
    if attention is not None:
        if np.ndim(attention.bilinear) or np.ndim(attention.value):
            raise UserError("attention by matrices does not cross the bridge", mend="use beta and scale")
        numbers = {"beta": float(attention.bilinear), "scale": float(attention.value)}
    step, mlp, causal = model.horizon / model.layers, noise.mlp, isinstance(attention, CausalAttention)
    mixing = None if attention is None else TorchAttention(numbers["beta"], step * numbers["scale"], causal)
    key = replica_keys(seed, replica + 1)[replica]
    blocks = [
        TorchBlock(mixing, mlp.activation, step, _weights(step_key(key, layer), noise)) for layer in range(model.layers)
    ]
    which = paper_architecture(
        mlp.activation.name, mlp.dim, float(mlp.sigma_u), float(mlp.sigma_w), beta=numbers["beta"],
        attention_scale=numbers["scale"], layers=model.layers, horizon=float(model.horizon), width=noise.width,
    )  # fmt: skip
    return TorchTransformer(blocks, which)


def _weights(key: Any, noise: DrawnMLP) -> tuple[Any, ...]:
    """U, b_U, W, b_W of one layer at its address, as `DrawnMLP` draws them."""
    width, mlp = noise.width, noise.mlp
    outer = jax.random.normal(role_key(key, Role.OUTPUT), (width + 1, mlp.dim))
    return (
        jax.random.normal(role_key(key, Role.HIDDEN), (width, mlp.dim)),
        mlp.sigma_u * jax.random.normal(role_key(key, Role.HIDDEN_BIAS), (width, 1))[:, 0],
        outer[:width].T,
        mlp.sigma_w * outer[width],
    )


def save_tokens(x: torch.Tensor | np.ndarray, path: str | Path) -> Path:
    """Write embeddings (N, d) divided by their lengths as a .npy file: a start for any simulation (`--start FILE`).

    Raises `UserError` for another shape or a zero vector.
    """
    tokens = np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x, dtype=np.float64)
    lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
    if tokens.ndim != 2 or not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise UserError(
            "tokens", got=f"shape {tokens.shape}", expected="finite vectors (N, d), none zero", mend="give one text"
        )
    path = Path(path)
    np.save(path, (tokens / lengths).astype(np.float32))
    return path
