"""The paper's simulations, each one a `Run`: plain settings that determine every number (THEORY §8)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import xarray as xr

from synchronoise.attention import SoftmaxAttention
from synchronoise.kernel import Kernel
from synchronoise.model import Transformer
from synchronoise.noise import MLP, DrawnMLP
from synchronoise.observables import Energy, OverlapHistogram, OverlapQuantiles
from synchronoise.pictures import COARSE
from synchronoise.simulation import FloorWarning, State, simulate
from synchronoise.sphere import Uniform
from synchronoise.theory import assumption_1, lambda_1, lambda_bar, lambda_bar_prime, pair_expectation

BETA = 1.0
ACTIVATIONS = ("relu", "sigmoid", "tanh", "silu")
WITHOUT_MLP = "none"
GRIDS = (*ACTIVATIONS, WITHOUT_MLP)
SCALES = (1.0, 0.0, -1.0)
LEVELS = (0.05, 0.5, 0.95)
# Below this the two-token equation is solved on too short a grid: a mean energy there is carried by rarer pairs.
RESOLVED = 1e-15


@dataclass(frozen=True)
class Sizes:
    """How large the simulations are: `FULL` are the paper's, `QUICK` ones only show that all of it works."""

    tokens: int
    dims: tuple[int, ...]
    layers: int
    width: int
    replicas: int
    figure1_layers: int
    figure1_width: int


FULL = Sizes(64, (5, 64, 128), 150, 512, 16, 2000, 2048)
QUICK = Sizes(8, (5,), 10, 16, 4, 20, 16)


@dataclass(frozen=True)
class Run:
    """One simulation: `replicas` runs with drawn weights of `width`, σ_U = σ_W = `sigma`, tokens iid uniform.

    Replica 0 is the single run of the paper.  `activation` "none" is a transformer without MLP, whose only
    randomness is its start.  ``keep_tokens`` keeps the tokens of ``rows`` layers, for figure 1.
    """

    activation: str
    dim: int
    sigma: float
    attention_scale: float
    tokens: int
    width: int
    layers: int
    horizon: float
    replicas: int
    seed: int
    every: int = 1
    keep_tokens: bool = False

    @property
    def work(self) -> int:
        """What its time is nearly proportional to: thousands of numbers drawn, neurons activated and pairs compared."""
        # Comparing one coordinate of two tokens takes about a sixth of drawing one number.
        one = self.tokens**2 * self.dim // 6
        if self.activation != WITHOUT_MLP:
            one += self.width * (2 * self.dim + 1 + self.tokens)
        return -(-one * self.layers * self.replicas // 1000)

    @property
    def noise_per_layer(self) -> float:
        """h κ(1)(d-1), h = T/L: how far one layer moves a token, squared.  The limit needs it to be far below 1."""
        kernel = self.kernel
        return 0.0 if kernel is None else self.horizon / self.layers * kernel.kappa_1 * (self.dim - 1)

    @property
    def kernel(self) -> Kernel | None:
        """κ of the layers, or None without MLP."""
        if self.activation == WITHOUT_MLP:
            return None
        return Kernel(self.activation, self.dim, self.sigma, self.sigma)


def figure1_runs(sizes: Sizes, seed: int) -> dict[str, Run]:
    """Figure 1: d = 4, T = 20, no attention, no biases; ReLU gathers in one cluster, tanh in two antipodal ones."""
    layers = sizes.figure1_layers
    return {
        f"figure1_{name}": Run(
            name, 4, 0.0, 0.0, sizes.tokens, sizes.figure1_width, layers, 20.0, 1, seed,
            every=max(1, layers // 500), keep_tokens=True,
        )
        for name in ("relu", "tanh")
    }  # fmt: skip


def grid_runs(activation: str, sizes: Sizes, seed: int) -> dict[str, Run]:
    """One grid: every dimension, bias (none without MLP) and attention scale; the same starts in all of them."""
    sigmas = (0.0,) if activation == WITHOUT_MLP else (0.0, 0.1)
    runs = [
        Run(activation, dim, sigma, scale, sizes.tokens, sizes.width, sizes.layers, 5.0, sizes.replicas, seed)
        for dim in sizes.dims
        for sigma in sigmas
        for scale in SCALES
    ]
    return {f"{activation}_d{run.dim}_sigma{run.sigma:g}_scale{run.attention_scale:+g}": run for run in runs}


def compute(run: Run, advance: Callable[[int], None]) -> xr.Dataset:
    """The simulation with the theory beside it, in float64; `advance` is told how much of the run's `work` was done.

    Variables: `energy` and `overlap_quantiles` of each replica, `energy_mean`, `energy_se` and `overlap_share` over
    them (`tokens` for figure 1); `energy_prediction` and `energy_bound` where there is one (`predict`).  Attributes:
    `note` in words; `floor` in words and the energy there when tokens came closer than the arithmetic resolves.  Raises
    `KeyboardInterrupt` when it was interrupted.
    """
    noise = None
    if run.activation != WITHOUT_MLP:
        noise = DrawnMLP(MLP(run.activation, run.dim, run.sigma, run.sigma), run.width)
    # Scale 0 is an attention of value 0, so that all scales share one compiled program.
    attention = SoftmaxAttention(beta=BETA, scale=run.attention_scale)
    model = Transformer(attention, noise, layers=run.layers, horizon=run.horizon)
    rows = run.layers // run.every + 1
    done = 0

    def on_chunk(state: State) -> None:
        nonlocal done
        before, done = done, run.work * state.rows // rows
        advance(done - before)

    with jax.enable_x64(True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = simulate(
            model, Uniform(run.tokens, run.dim), replicas=run.replicas, seed=run.seed,
            observers=(Energy(BETA), OverlapQuantiles(LEVELS), OverlapHistogram(50)), every=run.every,
            save_tokens=run.keep_tokens, dtype="float64", partial=False, on_chunk=on_chunk,
        )  # fmt: skip
    del result.attrs["provenance"]
    for warning in caught:
        if noise is not None and issubclass(warning.category, FloorWarning):
            result.attrs |= {"floor": str(warning.message), "floor_energy": _floor_energy(noise)}
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return summarise(result).assign(predict(run, result["time"].values)).assign_attrs(note=note(run))


def _floor_energy(noise: DrawnMLP) -> float:
    """½(e^β - e^{β(1-ε)}) for two tokens at the smallest distance √(2ε) that the noise resolves."""
    return -0.5 * float(np.exp(BETA) * np.expm1(-BETA * noise.floor("float64") ** 2 / 2))


def summarise(result: xr.Dataset) -> xr.Dataset:
    """Mean and standard error of the energy over the replicas, and one histogram of the pairs of all of them."""
    energy, shares = result["energy"], result["overlap_histogram"].mean("replica")
    result = result.drop_vars("overlap_histogram").assign(
        energy_mean=energy.mean("replica").assign_attrs(long_name="mean energy over replicas"),
        overlap_share=shares.assign_attrs(long_name="share of the pairs of all replicas by overlap"),
    )
    if energy.sizes["replica"] > 1:
        error = energy.std("replica", ddof=1) / np.sqrt(energy.sizes["replica"])
        result["energy_se"] = error.assign_attrs(long_name="standard error of the mean energy")
    return result


def predict(run: Run, times: np.ndarray) -> dict[str, tuple]:
    """What the limit theory says of the mean energy, as variables over the layers.

    Without attention E[E_β(μ_t)] = (1 - 1/N) E ½(e^β - e^{βρ_t}) exactly, by the two-token equation (THEORY §5).
    Where Theorem 1.4 applies (`growth_bound`), E[E_β(μ_t)] <= e^{(ε + λ̄') t} E[E_β(μ_0)] (THEORY §6).
    """
    kernel = run.kernel
    if kernel is None:
        return {}
    share = 1 - 1 / run.tokens
    variables = {}
    if run.attention_scale == 0:
        pair = pair_expectation(kernel, "energy", times, beta=BETA)
        resolved = pair.mean > np.maximum(10 * pair.error, RESOLVED)
        variables["energy_prediction"] = (
            "layer", np.where(resolved, share * pair.mean, np.nan),
            {"long_name": "mean energy by the two-token equation", "reference": "THEORY §5"},
        )  # fmt: skip
    growth = growth_bound(run)
    if isinstance(growth, float):
        start = share * pair_expectation(kernel, "energy", [0.0], beta=BETA).mean[0]
        variables["energy_bound"] = (
            "layer", start * np.exp(growth * times),
            {"long_name": "bound of Theorem 1.4 on the mean energy", "reference": "THEORY §6"},
        )  # fmt: skip
    return variables


def growth_bound(run: Run) -> float | str:
    """ε + λ̄' of Theorem 1.4 where the theorem applies, else why not, in a few words.

    It needs Assumption 1, and an ε of Assumption 2, which is 0 without attention and for V = I; none is proven for
    attention that repels.
    """
    kernel = run.kernel
    if kernel is None:
        return "no noise"
    if run.attention_scale < 0:
        return "attention repels"
    if kernel.odd:
        return "odd field"
    if not assumption_1(kernel):
        return f"λ̄ = {lambda_bar(kernel):.2g} ≥ 0"
    return lambda_bar_prime(kernel, BETA)


def note(run: Run) -> str:
    """What a reader of the run's panel has to know, in a few words: why no theory covers it, or why it is off."""
    growth = growth_bound(run)
    if run.kernel is None and run.attention_scale == 0:
        return "nothing moves"
    if isinstance(growth, str) and run.attention_scale != 0:
        return f"not covered by theory: {growth}"
    if run.attention_scale == 0 and run.noise_per_layer > COARSE:
        return f"L too small: (T/L) κ(1)(d−1) = {run.noise_per_layer:.2g}"
    return ""


def exponents(run: Run) -> dict[str, float]:
    """λ_1, λ̄ and λ̄' of the layers (THEORY §6); nothing without MLP."""
    kernel = run.kernel
    if kernel is None:
        return {}
    return {
        "lambda_1": lambda_1(kernel),
        "lambda_bar": lambda_bar(kernel),
        "lambda_bar_prime": lambda_bar_prime(kernel, BETA),
    }
