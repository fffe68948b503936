"""Everything the theory says about one choice of activation, dimension, biases and attention, as one dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from synchronoise.activations import Activation
from synchronoise.errors import UserError
from synchronoise.kernel import Kernel, Real
from synchronoise.theory.exponents import (
    assumption_1,
    critical_moment,
    lambda_1,
    lambda_bar,
    lambda_bar_prime,
    lyapunov_spectrum,
    moment_exponent,
)
from synchronoise.theory.kolmogorov import pair_expectation
from synchronoise.theory.rates import SharpRate, absorption_probability, sharp_rate, stationary_overlap
from synchronoise.theory.two_point import (
    PairAttention,
    PairLaw,
    field_noise,
    kernel_law,
    private_noise,
    value_noise,
    vector_noise,
)

MOMENTS = (0.25, 0.5, 1.0, 2.0)
PARAMETERS = {"threshold": ("exceedance", 0.9), "levels": ("quantiles", (0.05, 0.25, 0.5, 0.75, 0.95))}
EDGES = np.linspace(-1.0, 1.0, 41)  # cells of the stationary overlap's histogram


def theory_report(
    activation: str | Activation = "relu",
    dim: int = 64,
    sigma_u: Real = 0.0,
    sigma_w: Real = 0.0,
    beta: Real = 1.0,
    *,
    attention: str = "none",
    attention_scale: Real = 1.0,
) -> dict[str, Any]:
    """Exponents, rates, ends and a verdict in words (THEORY §5, §6): plain numbers, ready for JSON.

    `beta` is that of the energy, and of the attention if there is one ("softmax" or "unnormalised", V = a I, a =
    `attention_scale`).  All entries but "attention" are about the noise alone.  "sharp_rate" is the rate of the
    mean pair energy, 0 where it does not decay; "best_beta" is the β whose bound λ̄' is lowest, 0 without
    attention, where λ̄' = λ̄.

    >>> report = theory_report("relu", dim=5)
    >>> report["lambda_1"].__round__(12), report["sharp_rate"].__round__(9), report["assumption_1"]
    (-0.1, -0.025, False)
    """
    kernel = Kernel(activation, dim, sigma_u, sigma_w)
    law = kernel_law(kernel)
    sharp, bound = sharp_rate(law), lambda_bar_prime(kernel, beta)
    same, opposite = law.ends
    stationary = stationary_overlap(law)
    attracted = same.kind == opposite.kind == "attracting"
    critical = critical_moment(kernel)
    pair_attention = PairAttention(attention, float(attention_scale), float(beta))
    return {
        "activation": kernel.activation.name,
        "dim": kernel.dim,
        "sigma_u": kernel.sigma_u,
        "sigma_w": kernel.sigma_w,
        "beta": float(beta),
        "kappa_1": kernel.kappa_1,
        "dkappa_1": kernel.dkappa_1,
        "lambda_1": lambda_1(kernel),
        "lyapunov_spectrum": lyapunov_spectrum(kernel),
        "lambda_bar": lambda_bar(kernel),
        "lambda_bar_prime": bound,
        "sharp_rate": sharp.rate,
        "odd": kernel.odd,
        "assumption_1": assumption_1(kernel),
        "verdict": verdict(kernel, bound, sharp),
        "sharp_rate_part": sharp.part,
        "best_beta": 0.0 if attention == "none" else float(beta),
        "critical_moment": critical,
        # Beyond p* the moments all grow like the one at p*.
        "moment_exponents": {str(p): moment_exponent(kernel, min(p, max(critical, 0.0))) for p in MOMENTS},
        "ends": {"synchrony": same.kind, "antipodes": opposite.kind},
        "probability_of_synchrony": absorption_probability(law) if attracted else None,
        "stationary_overlap": None
        if stationary is None
        else {
            "mean": stationary.mean,
            "mean_distance2": stationary.distance2,
            "overlap_edges": EDGES.tolist(),
            "probability": np.diff(
                np.interp(EDGES[1:-1], stationary.overlap, stationary.cumulative), prepend=0.0, append=1.0
            ).tolist(),
        },
        "attention": None if attention == "none" else attention_report(kernel, pair_attention, bound),
    }


def attention_report(kernel: Kernel, attention: PairAttention, bound: float) -> dict[str, Any]:
    """What attention changes at full synchrony, for any number of tokens, and Theorem 1.4's rate (THEORY §6).

    At synchrony the attention pulls close tokens together at rate a (softmax) or a e^β (unnormalised).
    "sharp_rate" is that of two tokens with this attention.

    >>> report = attention_report(Kernel("relu", 64, 0.1, 0.1), PairAttention("softmax", 0.3), -0.5)
    >>> round(report["log_distance_rate"], 6), report["theorem_1_4"]["rate"]
    (-0.780312, -0.5)
    """
    # Found only by a search; not needed without attention.
    from synchronoise.theory.assumption_2 import assumption_2

    pull = float(attention.pull(np.zeros(1))[0])
    top, s = lambda_1(kernel) - pull, kernel.kappa_1 + kernel.dkappa_1
    law = PairLaw(kernel.dim, (field_noise(kernel),), attention)
    sharp = sharp_rate(law)
    second = assumption_2(attention, attention.beta, kernel.dim) if attention.beta > 0 else None
    return {
        "kind": attention.kind,
        "scale": attention.scale,
        "log_distance_rate": top,
        "lambda_bar": 2 * top + 2 * s,
        "critical_moment": -top / (2 * s),
        "sharp_rate": sharp.rate,
        "sharp_rate_part": sharp.part,
        "causal_slowest_log_distance_rate": lambda_1(kernel) - pull / 2 if attention.kind == "softmax" else None,
        "ends": {name: end.kind for name, end in zip(("synchrony", "antipodes"), law.ends, strict=True)},
        "epsilon": None if second is None else asdict(second),
        "theorem_1_4": None
        if second is None or second.upper is None
        else {"rate": bound + second.upper, "status": second.status},
        "verdict": ("attention and noise together synchronise tokens" if top < 0 else "synchrony is not stable")
        + f": log-distances of close tokens move at {top:.4g}",
    }


def verdict(kernel: Kernel, bound: float, sharp: SharpRate) -> str:
    """Whether tokens synchronise under the noise alone, how fast, and what Theorem 1.4 says, in words.

    `bound` is λ̄' at the energy's β, `sharp` the sharp rate of the mean energy.

    >>> verdict(Kernel("relu", 64, 0.1, 0.1), -0.5, SharpRate(-0.9, "essential")).split("; ")[0]
    'tokens synchronise almost surely, distances decay at rate -0.4803'
    """
    law = kernel_law(kernel)
    same = law.ends[0]
    top, bar = lambda_1(kernel), lambda_bar(kernel)
    if same.kind == "repelling":
        words = [f"tokens do not synchronise: close tokens separate at rate {top:.4g}"]
    elif same.kind == "neutral":
        words = ["tokens neither merge nor separate exponentially: λ_1 = 0"]
    elif kernel.odd:
        words = [
            f"odd field: tokens synchronise up to sign at rate {top:.4g}, two antipodal clusters, each pair "
            "together or opposite"
        ]
        words.append(f"two independent uniform tokens end together with probability {absorption_probability(law):.4g}")
    else:
        words = [f"tokens synchronise almost surely, distances decay at rate {top:.4g}"]
    if bound < 0:
        words.append(f"Theorem 1.4 bounds the mean energy by e^({bound:.4g} t)")
    elif kernel.odd:
        words.append("Theorem 1.4 does not apply because the field is odd")
    else:  # λ̄ < 0 implies λ̄' < 0 at every β
        words.append(f"Theorem 1.4 does not apply because λ̄ = {bar:.4g} is not negative")
    if sharp.part != "none":
        connection = "the sharp rate is" if bound < 0 else "the mean energy nevertheless decays at"
        because = {
            "essential": "λ̄",
            "essential with power": "rare pairs that stay apart, with a power of t",
            "isolated": "an isolated eigenvalue: pairs trapped far from synchrony",
        }[sharp.part]
        words.append(f"{connection} {sharp.rate:.4g} ({because})")
    if law.ends[1].kind == "reflecting":
        words.append("on the circle two tokens meet their antipodes and cross them")
    if kernel.dim <= 3:
        words.append(f"d = {kernel.dim}: λ̄ > 0 whatever the activation, so Assumption 1 never holds")
    return "; ".join(words)


def pair_report(
    observable: str = "energy",
    times: Sequence[float] = (0.5, 2.0, 5.0),
    rho0: Real | None = None,
    *,
    activation: str | Activation = "relu",
    dim: int = 64,
    sigma_u: Real = 0.0,
    sigma_w: Real = 0.0,
    beta: Real = 1.0,
    mlp: bool = True,
    private: Real = 0.0,
    vector: Real = 0.0,
    values: Real = 0.0,
    attention: str = "none",
    attention_scale: Real = 1.0,
    threshold: Real | None = None,
    levels: Sequence[float] | None = None,
) -> dict[str, Any]:
    """E f(ρ_t) of `pair_expectation` for a sum of noises, as plain numbers (THEORY §5).

    `mlp` is the MLP's Gaussian field; `private`, `vector` and `values` are the deviations of private noise, of
    one common Brownian vector and of random value matrices (QᵀK = βI), 0 for none.  `rho0` None: uniform tokens.
    `threshold` (0.9) is that of "exceedance", `levels` those of "quantiles".  Raises `UserError` without any noise, for
    a negative deviation, and for a threshold or levels that the observable has not.

    >>> pair_report("overlap", [1.0], 0.6, dim=4, mlp=False, private=0.7)["mean"][0].__round__(6)
    0.137955
    """
    for name, sigma in (("private", private), ("vector", vector), ("values", values)):
        if not 0 <= sigma < 1e9:
            raise UserError(name, got=sigma, expected="a number in [0, 1e9)", mend="it is a standard deviation")
    noises = (
        *((field_noise(Kernel(activation, dim, sigma_u, sigma_w)),) if mlp else ()),
        *((private_noise(private),) if private else ()),
        *((vector_noise(vector),) if vector else ()),
        *((value_noise(beta, values),) if values else ()),
    )
    if not noises:
        raise UserError("two tokens without noise follow an ordinary equation", mend="keep the MLP or add a noise")
    law = PairLaw(dim, noises, PairAttention(attention, float(attention_scale), float(beta)))
    own: dict[str, Any] = {name: value for name, (of, value) in PARAMETERS.items() if of == observable}
    for name, value in (("threshold", threshold), ("levels", levels)):
        if value is not None and name not in own:
            of = PARAMETERS[name][0]
            raise UserError(f"--{name} is about {of}, not {observable}", mend=f"leave it out, or use --observable {of}")
        if value is not None:
            own[name] = value
    result = pair_expectation(law, observable, times, rho0, beta=beta, **own)
    return {
        "observable": observable,
        **{name: np.asarray(value, float).tolist() for name, value in own.items()},
        "times": result.times.tolist(),
        "mean": result.mean.tolist(),
        "error": result.error.tolist(),
    }
