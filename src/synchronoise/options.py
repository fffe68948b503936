"""Every option of a run, once: its default, what it means, what it accepts.

The command line takes its flags' help from here and `config` its fields, so the two cannot disagree.
Nothing is imported: `synchronoise --help` reads this file and must stay quick.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """One option: its `default` (the paper's where it has one), `help` in a line, and what it `expects`."""

    default: str | int | float | bool
    help: str
    expects: str


OPTIONS: dict[str, Option] = {
    "activation": Option("relu", "activation φ of the MLP: relu, tanh, gelu, ..., or sin:4.6", "a name"),
    "dim": Option(64, "dimension d of a token, on the sphere S^(d-1)", "an integer >= 2"),
    "sigma_u": Option(0.0, "σ_U, deviation of the bias inside the activation", "a finite number >= 0"),
    "sigma_w": Option(0.0, "σ_W, deviation of the output bias", "a finite number >= 0"),
    "beta": Option(1.0, "β, inverse temperature of the attention: Q^T K = β I", "a finite number"),
    "attention": Option(
        "softmax", "softmax, unnormalised, l2, sinkhorn, causal, multihead, or none: attention of the tokens", "a name"
    ),
    "attention_scale": Option(1.0, "a, the value matrix V = a I: 1 attracts, -1 repels", "a finite number"),
    "method": Option(
        "auto",
        "how attention is summed: dense, harmonic (dim 2 and 3, linear in the tokens), or auto",
        "auto, dense or harmonic",
    ),
    "heads": Option(4, "heads of multihead: blocks of coordinates", "an integer >= 1 that divides dim"),
    "redraw": Option(0, "draw random Q, K and V every so many layers; 0 keeps Q^T K = β I, V = a I", "an integer >= 0"),
    "noise": Option(
        "mlp",
        "mlp, field, private, vector, values (with a deviation: private:0.3), sums as mlp+values, or none",
        "names joined by +",
    ),
    "route": Option(
        "auto",
        "how an mlp or field is computed: drawn, exact (mlp), cholesky, features, harmonics (limit), or auto",
        "auto, drawn, exact, cholesky, features or harmonics",
    ),
    "tokens": Option(64, "number N of tokens", "an integer >= 1"),
    "width": Option("512", "width m of the MLP; inf is the Gaussian limit", "an integer >= 1, or inf"),
    "layers": Option(150, "number L of layers", "an integer >= 1"),
    "horizon": Option(5.0, "T; one layer is a time step T/L", "a finite number > 0"),
    "start": Option("uniform", "uniform, clusters, equiangular, or a .npy or .csv file of tokens", "a name or a file"),
    "clusters": Option(4, "number of clusters of the start `clusters`", "an integer >= 1"),
    "spread": Option(0.1, "deviation of a token from its cluster's centre", "a finite number >= 0"),
    "overlap": Option(0.0, "<x_i, x_j> of every pair in the start `equiangular`", "a number in [-1, 1]"),
    "replicas": Option(16, "number of independent runs", "an integer >= 1"),
    "seed": Option(0, "seed of everything random", "an integer in [0, 2^32)"),
    "dtype": Option("float32", "floating point of the tokens", "float32 or float64"),
    "every": Option(1, "look at the tokens every so many layers", "an integer >= 1"),
    "save_tokens": Option(False, "keep the tokens themselves, not only what is seen of them", "true or false"),
    "chunk": Option(
        0, "observed layers between two checkpoints, 0: every few seconds; changes no number", "an integer >= 0"
    ),
}

_COUPLED: dict[str, str | int | float | None] = {
    "dim": 3, "tokens": 4, "horizon": 1.0, "replicas": 256, "layers": None
}  # fmt: skip
# What the experiments of `synchronoise converge` take in place of the defaults above; None: there is no such option.
CONVERGE: dict[str, dict[str, str | int | float | None]] = {
    "depth": _COUPLED,
    "width": {**_COUPLED, "layers": 32},
    "limits": _COUPLED,
    # In higher dimension an overlap fluctuates less, so that small errors of its mean are seen.
    "law": {
        "dim": 16, "tokens": 2, "horizon": 1.0, "sigma_u": 0.3, "sigma_w": 0.3, "attention": "none",
        "replicas": 65_536, "layers": None,
    },
    "tokens": {
        "dim": 2, "beta": 2.0, "sigma_u": 0.3, "layers": 40, "horizon": 0.5, "replicas": 24, "tokens": None,
    },
    "corollary": {
        "dim": 2, "sigma_u": 0.3, "attention": "none", "horizon": 1.0, "replicas": 128, "tokens": None, "layers": None,
    },
}  # fmt: skip


def converge_default(name: str) -> str:
    """The default of an option in every experiment that has it: those of `CONVERGE`, beside that of most of them.

    >>> converge_default("dim"), converge_default("layers")
    ('3; law: 16; tokens, corollary: 2', 'width: 32; tokens: 40')
    """
    found: dict[str, list[str]] = {}
    for what, changed in CONVERGE.items():
        value = changed.get(name, OPTIONS[name].default)
        if value is not None:
            found.setdefault(f"{value:g}" if isinstance(value, float) else str(value), []).append(what)
    return "; ".join(value if "depth" in names else f"{', '.join(names)}: {value}" for value, names in found.items())
