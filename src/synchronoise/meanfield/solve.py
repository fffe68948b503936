"""Solving (1.10) on a grid from beginning to end: densities, mass, energy, harmonics and the weak form's residual."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._arrays import Array, PRNGKey, Scalar, Tokens, Weights
from ..errors import RunError, UserError
from ..harmonic_attention import DenseTokens, HarmonicAttention
from ..harmonics import degrees
from ..model import Transformer, cast
from ..observables import Observable
from ..randomness import replica_keys, step_key
from ..simulation import check_run
from ..spectral import exponential_degree, exponential_weights
from .eulerian import Grid
from .initial import Density
from .lagrangian import check_scope, speed
from .weak import means, predicted

DEGREE = 8  # harmonics that a result holds, and tests the weak form with


def smooth_energy(x: Tokens, weights: Weights, beta: float) -> Scalar:
    """E_β = ½ (e^β - Σ_k c_n/N_n <μ, Y_k>²), e^{βu} = Σ c_n P_n: in O(n), right to rounding times e^{|β|}; d = 2, 3.

    >>> round(float(smooth_energy(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), jnp.array([0.5, 0.5]), 1.0)), 5)  # sinh(1)/2
    0.5876
    """
    degree = exponential_degree(beta, x.shape[1], x.dtype)
    of_column = degrees(x.shape[1], degree)
    spectrum = (exponential_weights(beta, x.shape[1], degree) / np.bincount(of_column))[of_column]
    scale = np.exp(abs(beta))
    return 0.5 * (np.exp(beta) - scale * jnp.sum(jnp.asarray(spectrum, x.dtype) * means(x, weights, degree) ** 2))


def equal(x: Tokens) -> Weights:
    """Weights 1/n."""
    return jnp.full(x.shape[0], 1 / x.shape[0], x.dtype)


class SmoothEnergy(Observable):
    """`smooth_energy` of the tokens."""

    beta: float = eqx.field(static=True, default=1.0)
    name = "energy"
    dims = ()
    long_name = "interaction energy E_beta"
    reference = "THEORY §6"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        return smooth_energy(x, equal(x) if weights is None else weights, self.beta)


class Masses(Observable):
    """Masses of the cells of a grid."""

    grid: Grid
    name = "mass"
    dims = ("cell",)
    long_name = "mass of every cell"
    reference = "THEORY §4"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        w = equal(x) if weights is None else weights
        return jnp.zeros(self.grid.cells, x.dtype).at[self.grid.cell_of(x)].add(w)


def solve(
    model: Transformer, grid: Grid, density: Density = None, *, beta: float = 1.0, seed: int = 0, replica: int = 0,
    every: int = 1, dtype: str = "float64",
) -> xr.Dataset:  # fmt: skip
    """Solve (1.10) on a grid from a density (None: uniform), under the noise of one (seed, replica).

    The noise is that of any N-token run at the same addresses.  Observed after every ``every`` layers: ``mass`` (layer,
    cell), ``energy`` E_β at ``beta``, ``harmonic_mean`` <μ, Y_k> up to degree `DEGREE` and ``weak_residual``, what
    (1.10) leaves unexplained of their changes.  Where the density becomes narrower than the grid the result ends
    (``attrs["stopped"]`` says when).  Raises `UserError` for what has no SPDE with common noise and `RunError` when
    the map folds: then a step is too long.

    >>> from synchronoise import HarmonicAttention
    >>> from synchronoise.meanfield import CircleGrid
    >>> model = Transformer(HarmonicAttention(2.0, dim=2), None, layers=4, horizon=0.5)
    >>> with jax.enable_x64(True):
    ...     solve(model, CircleGrid(32))["mass"].shape
    (5, 32)
    """
    check_scope(model, field=True)
    check_run(model, every, dtype)
    start = jnp.asarray(grid.begin(density), dtype)
    if not bool(grid.resolved(start)):
        raise UserError("the initial density is narrower than the grid", mend="use more --cells, or weighted tokens")
    traced, kappa_1 = cast((model, float(speed(model.noise))), dtype)
    key = replica_keys(seed, 1, replica)[0]
    seen = _solve(traced, kappa_1, start, key, grid, beta, every, model.layers // every)
    found = {name: np.asarray(values) for name, values in seen.items()}
    resolved, folded = found.pop("resolved"), ~found.pop("upright")
    good = int(resolved.sum())
    layers = np.arange(good) * every
    if folded[:good].any():
        raise RunError(
            f"the map of a layer folds the circle before layer {layers[np.argmax(folded[:good])]}; use more --layers"
        )
    h = model.horizon / model.layers
    dims = {"mass": ("layer", "cell"), "energy": ("layer",), DenseTokens.name: ("layer",)}
    variables = {name: (dims.get(name, ("layer", "harmonic")), values[:good]) for name, values in found.items()}
    dataset = xr.Dataset(
        variables,
        {
            "layer": layers,
            "time": ("layer", layers * h, {"long_name": "time t = layer T/L"}),
            "degree": ("harmonic", degrees(grid.centres.shape[1], DEGREE)),
            "centre": (("cell", "dim"), grid.centres),
        },
        {"completed_layers": int(layers[-1]), "grid_error": grid.width, "stopped": ""},
    )
    if good < len(resolved):
        dataset.attrs["stopped"] = f"the density is narrower than the grid after time {layers[-1] * h:.4g}"
    return dataset


@eqx.filter_jit
def _solve(
    model: Any, kappa_1: Scalar, start: Weights, key: PRNGKey, grid: Grid, beta: float, every: int, rows: int
) -> dict[str, Array]:
    h = model.horizon / model.layers

    def watch(state: Any, explained: Array, first: Array, resolved: Array, upright: Array) -> dict[str, Array]:
        cloud, masses = grid.cloud(state), grid.masses(state)
        now = means(*cloud, DEGREE)
        dense = {}
        if isinstance(model.attention, HarmonicAttention):
            dense[DenseTokens.name] = DenseTokens(model.attention)(*cloud)
        return dense | {
            "mass": masses, "energy": smooth_energy(*cloud, beta), "harmonic_mean": now,
            "weak_residual": now - first - explained, "resolved": resolved, "upright": upright,
        }  # fmt: skip

    def layer(index: Array, carry: Any) -> Any:
        state, explained, upright = carry
        drawn, at = model.drawn(key, index), step_key(key, index)
        explained = explained + predicted(at, *grid.cloud(state), drawn, h, DEGREE, kappa_1)
        state, kept = grid.advance(at, state, drawn, h)
        return state, explained, upright & kept

    def row(carry: Any, index: Array) -> Any:
        state, explained, resolved, upright = carry
        after = jax.lax.fori_loop(index * every, (index + 1) * every, layer, (state, explained, upright))
        state, explained, upright = jax.tree.map(partial(jnp.where, resolved), after, (state, explained, upright))
        resolved = resolved & grid.resolved(grid.masses(state))
        return (state, explained, resolved, upright), watch(state, explained, first, resolved, upright)

    state, true = grid.state(start), jnp.array(True)
    first = means(*grid.cloud(state), DEGREE)
    zero = watch(state, jnp.zeros_like(first), first, true, true)
    _, seen = jax.lax.scan(row, (state, jnp.zeros_like(first), true, true), jnp.arange(rows))
    return jax.tree.map(lambda one, many: jnp.concatenate([one[None], many]), zero, seen)
