"""What a prediction needs to know of a transformer: its shape and the law of its random weights (no torch).

An `Architecture` is read from a name, from a Hugging Face configuration (a dictionary or a JSON file), or built by
hand; `synchronoise.probe.layouts` reads one off a PyTorch module.  Lengths are those of the residual stream, |x|² = d
after a norm: the paper's sphere of radius 1 is this one divided by √d (`paper_architecture`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from synchronoise.activations import ACTIVATION_NAMES, activation
from synchronoise.errors import UserError, did_you_mean

Placement = Literal["pre", "post", "parallel"]


@dataclass(frozen=True)
class Architecture:
    """L blocks on d coordinates, and the standard deviation of every kind of weight at initialisation.

    pre:       y = x + Attn(N(x)),    x' = y + MLP(N(y))
    post:      y = N(x + Attn(x)),    x' = N(y + MLP(y))
    parallel:  x' = x + Attn(N(x)) + MLP(N(x))                      N a LayerNorm or an RMSNorm, |N(x)|² = d

    Attn = W_O Σ_j A_ij W_V h_j with random W ("random"), or the paper's a Σ_j softmax_j(β<h_i, h_j>/d) h_j
    ("identity"); MLP(h) = W_2 φ(W_1 h + b_1) + b_2, gated: W_2 (φ(W_1 h) ⊙ W_3 h).  Deviations are those of one entry:
    `query_std`, `value_std`, `output_std` of W_Q and W_K, W_V, W_O; `mlp_in_std`, `mlp_out_std` of W_1 (and W_3), W_2;
    `*_bias` of the biases; `token_std`, `position_std`, `common_std` of the parts of an embedding (the common part is
    the same for all tokens), `first_std` of a first token that is made otherwise (a class token).
    `special_first` says that the first token is kept apart in statistics.  THEORY §1.

    >>> gpt2 = architecture("gpt2-small")
    >>> gpt2.depth, gpt2.dim, gpt2.placement, round(gpt2.mlp_out_std * (2 * gpt2.depth) ** 0.5, 12)
    (12, 768, 'pre', 0.02)
    """

    name: str
    depth: int
    dim: int
    heads: int
    hidden: int
    activation: str
    placement: Placement
    query_std: float
    value_std: float
    output_std: float
    mlp_in_std: float
    mlp_out_std: float
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-5
    causal: bool = False
    positional: str = "learned"
    value_bias: float = 0.0
    output_bias: float = 0.0
    mlp_in_bias: float = 0.0
    mlp_out_bias: float = 0.0
    token_std: float = 1.0
    position_std: float = 0.0
    common_std: float = 0.0
    first_std: float | None = None
    embedding_norm: bool = False
    vocabulary: int | None = None
    special_first: bool = False
    shared_blocks: bool = False
    attention: Literal["random", "identity"] = "random"
    beta: float = 1.0
    attention_scale: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("depth", 1), ("dim", 2), ("heads", 1), ("hidden", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{self.name}: {name}", got=value, expected=f"an integer >= {least}", mend="change it")
        if self.dim % self.heads:
            raise UserError(
                f"{self.name}: heads", got=self.heads, expected=f"a divisor of dim={self.dim}", mend="change it"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_std", "_bias")) and value is not None and not 0 <= value < math.inf:
                raise UserError(
                    f"{self.name}: {field.name}", got=value, expected="a finite number >= 0", mend="it is a deviation"
                )
        activation(self.activation)

    @property
    def logit_std(self) -> float:
        """Deviation of an attention logit <q_i, k_j>/√(d/heads) between two normed tokens: σ_Q σ_K d.

        >>> round(architecture("gpt2-small").logit_std, 4)
        0.3072
        """
        return self.query_std**2 * self.dim


# How the configurations of others name their activations.
_ACTIVATIONS = {
    "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_python": "gelu",
    "quick_gelu": "silu", "swish": "silu", "leakyrelu": "leaky_relu",
}  # fmt: skip


def _activation(name: object) -> str:
    known = _ACTIVATIONS.get(str(name), str(name))
    if known.partition(":")[0] not in ACTIVATION_NAMES:
        raise UserError(
            f"unknown activation {name!r}", mend=did_you_mean(str(name), [*ACTIVATION_NAMES, *_ACTIVATIONS])
        )
    return known


def _weights(std: float, residual: float = 1.0) -> dict[str, float]:
    """All matrices with entries N(0, std²), those that write into the residual stream `residual` times as large."""
    return {
        "query_std": std, "value_std": std, "mlp_in_std": std,
        "output_std": residual * std, "mlp_out_std": residual * std,
    }  # fmt: skip


def _gpt2(c: Mapping[str, Any]) -> dict[str, Any]:
    depth, std = c["n_layer"], c["initializer_range"]
    return {
        "depth": depth, "dim": c["n_embd"], "heads": c["n_head"], "hidden": c["n_inner"] or 4 * c["n_embd"],
        "activation": c["activation_function"], "placement": "pre", "norm_eps": c["layer_norm_epsilon"],
        "causal": True, "token_std": std, "position_std": std, "vocabulary": c["vocab_size"],
        **_weights(std, (2 * depth) ** -0.5),
    }  # fmt: skip


def _common(c: Mapping[str, Any]) -> dict[str, Any]:
    std = c["initializer_range"]
    return {
        "depth": c["num_hidden_layers"], "dim": c["hidden_size"], "heads": c["num_attention_heads"],
        "hidden": c["intermediate_size"], "activation": c["hidden_act"], "token_std": std,
        "vocabulary": c.get("vocab_size"), **_weights(std),
    }  # fmt: skip


def _llama(c: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_common(c), "placement": "pre", "gated": True, "norm": "rms", "norm_eps": c["rms_norm_eps"], "causal": True,
        "positional": "rotary",
    }  # fmt: skip


def _neox(c: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_common(c), "placement": "parallel" if c["use_parallel_residual"] else "pre",
        "norm_eps": c["layer_norm_eps"], "causal": True, "positional": "rotary",
    }  # fmt: skip


def _bert(c: Mapping[str, Any]) -> dict[str, Any]:
    std = c["initializer_range"]
    return {
        **_common(c), "placement": "post", "norm_eps": c["layer_norm_eps"], "position_std": std, "common_std": std,
        "embedding_norm": True, "causal": c["is_decoder"],
    }  # fmt: skip


def _albert(c: Mapping[str, Any]) -> dict[str, Any]:
    # The embedding is a narrow normed vector times a matrix with entries of deviation std: overlaps stay, norms change.
    std = c["initializer_range"]
    parts = std * math.sqrt(c["embedding_size"] / 3)
    return {
        **_bert(c), "embedding_norm": False, "shared_blocks": True, "token_std": parts, "position_std": parts,
        "common_std": parts,
    }  # fmt: skip


def _vit(c: Mapping[str, Any]) -> dict[str, Any]:
    # A patch of independent pixels of variance 1, times a matrix with entries of deviation std.
    std, size = c["initializer_range"], c["num_channels"] * c["patch_size"] ** 2
    return {
        **_common(c), "placement": "pre", "norm_eps": c["layer_norm_eps"], "token_std": std * math.sqrt(size),
        "position_std": std, "first_std": std, "vocabulary": None,
    }  # fmt: skip


_SIZES = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_ENCODER = {
    **_SIZES, "hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "vocab_size": 30522,
    "is_decoder": False,
}  # fmt: skip
_LLAMA = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008,
    "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-6, "vocab_size": 32000,
}  # fmt: skip
# What a configuration leaves out has the value that transformers gives it.
_FAMILIES: dict[str, tuple[Callable[[Mapping[str, Any]], dict[str, Any]], dict[str, Any]]] = {
    "gpt2": (_gpt2, {
        "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": None, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "vocab_size": 50257,
    }),
    "llama": (_llama, _LLAMA),
    "mistral": (_llama, {**_LLAMA, "intermediate_size": 14336}),
    "qwen2": (_llama, {**_LLAMA, "intermediate_size": 22016, "vocab_size": 151936}),
    "gpt_neox": (_neox, {
        "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "intermediate_size": 24576,
        "hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-5, "vocab_size": 50432,
        "use_parallel_residual": True,
    }),
    "bert": (_bert, _ENCODER),
    "albert": (_albert, {
        **_ENCODER, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384,
        "hidden_act": "gelu_new", "vocab_size": 30000, "embedding_size": 128,
    }),
    "vit": (_vit, {**_ENCODER, "num_channels": 3, "patch_size": 16}),
}  # fmt: skip

# Known by name; each is a whole configuration of its family.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2-small": {"model_type": "gpt2"},
    "gpt2-medium": {"model_type": "gpt2", "n_layer": 24, "n_embd": 1024, "n_head": 16},
    "gpt2-xl": {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25},
    "bert-base": {"model_type": "bert"},
    "vit-base": {"model_type": "vit"},
    "albert-base": {
        "model_type": "albert", "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
    },
    "llama-small": {
        "model_type": "llama", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 2048,
    },
    "pythia-160m": {"model_type": "gpt_neox", **_SIZES, "vocab_size": 50304},
}  # fmt: skip


def configuration(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The Hugging Face configuration of a name, a mapping, a JSON file, or a folder that holds a config.json.

    >>> configuration("gpt2-smal")
    Traceback (most recent call last):
    synchronoise.errors.UserError: unknown model 'gpt2-smal'; did you mean 'gpt2-small'? known: ...
    """
    if isinstance(source, Mapping):
        return dict(source)
    if str(source) in CONFIGURATIONS:
        return dict(CONFIGURATIONS[str(source)])
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json" and not path.is_file():
        raise UserError(f"unknown model {str(source)!r}", mend=did_you_mean(str(source), CONFIGURATIONS))
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise UserError(f"cannot read {path}: {failure.strerror}", mend="give a config.json or its folder") from None
    except ValueError:
        raise UserError(f"{path} is not JSON", mend="give the config.json of a Hugging Face model") from None
    if not isinstance(read, dict):
        raise UserError(f"{path} holds no configuration", mend="give the config.json of a Hugging Face model")
    return read


def architecture(source: Any) -> Architecture:
    """The architecture of a name, of a Hugging Face configuration (mapping, file, folder), or of a PyTorch model.

    Raises `UserError` for an unknown name or family, a missing file, and sizes that do not fit.  THEORY §1.

    >>> architecture({"model_type": "bert", "hidden_size": 256, "num_attention_heads": 4}).placement
    'post'
    """
    if isinstance(source, Architecture):
        return source
    if hasattr(source, "named_modules"):
        from synchronoise.probe.describing import describe

        found = describe(source)
        if found is None:
            raise UserError(
                f"the architecture of {type(source).__name__} is not known", mend="describe it: Architecture"
            )
        return found
    given = configuration(source)
    family = given.get("model_type")
    if family not in _FAMILIES:
        raise UserError(f"model_type {family!r} of the configuration", mend=did_you_mean(str(family), _FAMILIES))
    read, defaults = _FAMILIES[family]
    values = read({**defaults, **given})
    values["activation"] = _activation(values["activation"])
    name = str(source) if isinstance(source, str) and source in CONFIGURATIONS else family
    return Architecture(name=name, special_first=True, **values)


def paper_architecture(
    activation: str = "relu", dim: int = 64, sigma_u: float = 0.0, sigma_w: float = 0.0, *, beta: float = 1.0,
    attention_scale: float = 1.0, layers: int = 150, horizon: float = 5.0, width: int = 512,
) -> Architecture:  # fmt: skip
    """The paper's transformer, x = √d X: post-norm, W_1 = U/d, W_2 = √(T/L) √(d/m) W, b_2 = √(T/L) √d b_W (THEORY §1).

    >>> paper_architecture(dim=16, width=64, layers=4, horizon=1.0).mlp_out_std
    0.25
    """
    step = horizon / layers
    return Architecture(
        name="paper", depth=layers, dim=dim, heads=1, hidden=width, activation=activation, placement="post",
        norm="rms", norm_eps=0.0, query_std=0.0, value_std=0.0, output_std=0.0, mlp_in_std=1 / dim,
        mlp_in_bias=sigma_u, mlp_out_std=math.sqrt(step * dim / width), mlp_out_bias=math.sqrt(step * dim) * sigma_w,
        attention="identity", beta=beta, attention_scale=step * attention_scale, positional="none",
    )  # fmt: skip


def without_biases(which: Architecture) -> Architecture:
    """The same architecture with every bias 0."""
    return replace(which, value_bias=0.0, output_bias=0.0, mlp_in_bias=0.0, mlp_out_bias=0.0)
