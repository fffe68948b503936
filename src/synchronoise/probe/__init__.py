"""Real transformers: measured layer by layer, beside what the theory predicts (torch is an extra, asked for late)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from synchronoise.errors import UserError

INSTALL = "pip install 'synchronoise[probe]' (first PyTorch's CPU build: pytorch.org/get-started, Compute Platform CPU)"

_HOME = {
    "architectures": ["Architecture", "architecture", "paper_architecture"],
    "prediction": ["PredictionWarning", "predict"],
    "verdict": ["collapse_depths", "shares", "translate", "what_if"],
    "layouts": ["ClonedWeightsWarning", "find_layout"],
    "bridge": ["TorchTransformer", "save_tokens", "torch_transformer"],
    "describing": ["describe", "trained_laws"],
    "drawn": ["DrawnTransformer"],
    "measurement": ["embeddings", "measure", "measure_seeds"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'synchronoise.probe' has no attribute {name!r}")
    try:
        return getattr(import_module(f"synchronoise.probe.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "transformers"):
            raise
        raise UserError(f"probe.{name} needs {missing.name}", mend=INSTALL) from None


if TYPE_CHECKING:
    from .architectures import Architecture, architecture, paper_architecture
    from .bridge import TorchTransformer, save_tokens, torch_transformer
    from .describing import describe, trained_laws
    from .drawn import DrawnTransformer
    from .layouts import ClonedWeightsWarning, find_layout
    from .measurement import embeddings, measure, measure_seeds
    from .prediction import PredictionWarning, predict
    from .verdict import collapse_depths, shares, translate, what_if
