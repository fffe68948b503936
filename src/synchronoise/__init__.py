"""Stochastic scaling limits of deep transformers, and their synchronization by noise.

>>> import synchronoise as sn
>>> round(sn.Kernel("relu", dim=64).kappa_1, 6)
0.007812

Names are imported when they are first used, so that a command which needs only the theory never imports JAX.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

_HOME = {
    "activations": ["Activation", "activation", "custom_activation"],
    "attention": [
        "Attention", "CausalAttention", "L2Attention", "MatrixAttention", "MultiHeadAttention", "RandomAttention",
        "SinkhornAttention", "SoftmaxAttention", "UnnormalisedAttention",
    ],
    "errors": ["RunError", "UserError"],
    "harmonic_attention": ["HarmonicAttention"],
    "kernel": ["Kernel"],
    "model": ["Transformer", "step"],
    "noise": [
        "MLP", "DrawnMLP", "FreshFeatures", "GaussianField", "InLawMLP", "Noise", "PrivateNoise", "ScaledNoise",
        "SumNoise", "ValueNoise", "VectorNoise", "mlp_noise",
    ],
    "observables": [
        "Energy", "LargestDistance", "LogDistance", "MeanOverlap", "Observable", "OverlapHistogram", "OverlapQuantiles",
        "energy",
    ],
    "simulation": ["FloorWarning", "simulate"],
    "theory": ["pair_expectation", "theory_report"],
    "sphere": ["Clusters", "Equiangular", "Start", "Uniform", "tokens_from_file"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in ("meanfield", "probe", "testing"):
        return import_module(f"synchronoise.{name}")
    if name == "__version__":
        return version("synchronoise")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'synchronoise' has no attribute {name!r}")
    return getattr(import_module(f"synchronoise.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from . import meanfield, probe, testing
    from .activations import Activation, activation, custom_activation
    from .attention import (
        Attention,
        CausalAttention,
        L2Attention,
        MatrixAttention,
        MultiHeadAttention,
        RandomAttention,
        SinkhornAttention,
        SoftmaxAttention,
        UnnormalisedAttention,
    )
    from .errors import RunError, UserError
    from .harmonic_attention import HarmonicAttention
    from .kernel import Kernel
    from .model import Transformer, step
    from .noise import (
        MLP,
        DrawnMLP,
        FreshFeatures,
        GaussianField,
        InLawMLP,
        Noise,
        PrivateNoise,
        ScaledNoise,
        SumNoise,
        ValueNoise,
        VectorNoise,
        mlp_noise,
    )
    from .observables import (
        Energy,
        LargestDistance,
        LogDistance,
        MeanOverlap,
        Observable,
        OverlapHistogram,
        OverlapQuantiles,
        energy,
    )
    from .simulation import FloorWarning, simulate
    from .sphere import Clusters, Equiangular, Start, Uniform, tokens_from_file
    from .theory import pair_expectation, theory_report
