"""Eulerian solvers of (1.10) on the circle and S²: masses of cells, carried by the same map as the tokens (THEORY §4).

A step pushes the measure forward by one layer of the transformer at the same addresses, so the Itô term is that of the
token scheme (implied by LN) and the only new error is the grid's.  Both solvers move mass between cells and never
make any, and no cell becomes negative:

- the circle moves the edges of the cells; the masses between them give the distribution function at the moved edges,
  and a monotone cubic through it gives the masses of the fixed cells (second order on smooth flows);
- S² moves markers, ``SUB``² in each equal-area cell, with the mass of their cell, and deposits them in the cells again
  when the flow has stretched a cell by `STRETCH` (first order, one such error for each deposit, not for each step).

A density that is narrower than the grid is detected; the solver stops there and keeps what it has.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Array, Float, PRNGKey, Tokens, Weights
from ..errors import UserError
from ..model import Transformer
from ..sphere import layer_norm
from .initial import Density

SUB = 3  # markers along each side of a cell of S²
STRETCH = 2.0  # of neighbouring markers, before their masses are deposited in the cells
STEEPEST = 0.25  # jump between neighbouring cells, of the largest mass, beyond which a circle's grid is too coarse
FEWEST = 12  # cells of S² above half the largest mass, below which its grid is too coarse


def transport(key: PRNGKey, points: Tokens, cloud: Tokens, weights: Weights, model: Transformer, h: Any) -> Tokens:
    """One layer of the transformer at any points: Y = LN(x + h Attn_μ(x)), LN(Y + √h G(Y)), μ = Σ w_j δ_j the cloud.

    The same map, with the same draws, as `step` of tokens X = cloud at their own places.
    """
    depth = model.horizon / h
    after = points
    if model.attention is not None:
        alpha_1 = h if model.alpha_1 is None else model.alpha_1(depth)
        after = layer_norm(after + alpha_1 * model.attention(cloud, weights, at=points))
    if model.noise is not None:
        alpha_2 = jnp.sqrt(h) if model.alpha_2 is None else model.alpha_2(depth)
        after = layer_norm(after + alpha_2 * model.noise.field(key)(after))
    return after


class Grid(eqx.Module):
    """Cells of equal area and how their masses move.  Abstract."""

    cells: eqx.AbstractVar[int]

    @property
    @abstractmethod
    def centres(self) -> np.ndarray:
        """The centres of the cells, (cells, d)."""

    @property
    @abstractmethod
    def width(self) -> float:
        """The size of a cell, an angle: W_2 to the Lagrangian solution stays within it."""

    @abstractmethod
    def cell_of(self, points: Tokens) -> Array:
        """The cell of every point."""

    @abstractmethod
    def begin(self, density: Density) -> np.ndarray:
        """The masses (cells,) of a density, of sum 1."""

    @abstractmethod
    def state(self, masses: Weights) -> Any:
        """What a solver carries from step to step."""

    @abstractmethod
    def cloud(self, state: Any) -> tuple[Tokens, Weights]:
        """The measure as weighted points."""

    @abstractmethod
    def masses(self, state: Any) -> Weights:
        """The masses of the cells."""

    @abstractmethod
    def resolved(self, masses: Weights) -> Array:
        """Whether the density is wider than the grid."""

    @abstractmethod
    def advance(self, key: PRNGKey, state: Any, model: Transformer, h: Any) -> tuple[Any, Array]:
        """The state after a step, and whether the map kept its orientation."""


class CircleGrid(Grid):
    """``cells`` equal arcs.  The state is their masses; the cloud is at their centres.

    >>> CircleGrid(4).begin(None).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    cells: int = eqx.field(static=True)

    def __check_init__(self):
        if self.cells < 8 and self.cells != 4:
            raise UserError("cells", got=self.cells, expected="8 or more", mend="use --cells 512")

    @property
    def angles(self) -> np.ndarray:
        return 2 * np.pi * np.arange(self.cells) / self.cells

    @property
    def centres(self) -> np.ndarray:
        middle = self.angles + np.pi / self.cells
        return np.stack([np.cos(middle), np.sin(middle)], axis=1)

    @property
    def width(self) -> float:
        return 2 * np.pi / self.cells

    def begin(self, density: Density) -> np.ndarray:
        # Gauss-Legendre on every cell: the mass, not the density at the centre.
        nodes, weights = np.polynomial.legendre.leggauss(4)
        angle = (self.angles + np.pi / self.cells)[:, None] + nodes * np.pi / self.cells
        points = np.stack([np.cos(angle), np.sin(angle)], axis=-1).reshape(-1, 2)
        return _masses(density, points, np.tile(weights, self.cells), self.cells)

    def cell_of(self, points: Tokens) -> Array:
        turn = jnp.mod(jnp.arctan2(points[:, 1], points[:, 0]) / (2 * jnp.pi), 1.0)
        return jnp.minimum((turn * self.cells).astype(int), self.cells - 1)

    def state(self, masses: Weights) -> Weights:
        return masses

    def cloud(self, state: Weights) -> tuple[Tokens, Weights]:
        return jnp.asarray(self.centres, state.dtype), state

    def masses(self, state: Weights) -> Weights:
        return state

    def resolved(self, masses: Weights) -> Array:
        return jnp.max(jnp.abs(jnp.roll(masses, 1) - masses)) <= STEEPEST * jnp.max(masses)

    def advance(self, key: PRNGKey, state: Weights, model: Transformer, h: Any) -> tuple[Weights, Array]:
        angle = jnp.asarray(self.angles, state.dtype)
        edges = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        moved = transport(key, edges, *self.cloud(state), model, h)
        cross = edges[:, 0] * moved[:, 1] - edges[:, 1] * moved[:, 0]
        places = angle + jnp.arctan2(cross, jnp.sum(edges * moved, axis=1))
        gaps = jnp.diff(jnp.append(places, places[0] + 2 * jnp.pi))
        return remap(places, gaps, state), jnp.all(gaps > 0)


def remap(places: Float[Array, " n"], gaps: Float[Array, " n"], masses: Float[Array, " n"]) -> Float[Array, " n"]:
    """Masses between the fixed edges 2πk/n, of a measure with ``masses`` between increasing ``places`` on the circle.

    The distribution function at the places is known; between them it is the cubic with slopes from parabolas, limited
    to 3 times the smaller density beside (Fritsch and Carlson), so monotone.  Differences of it: nothing is lost.
    """
    n = masses.size
    density = masses / gaps
    before, gap_before = jnp.roll(density, 1), jnp.roll(gaps, 1)
    slope = (gaps * before + gap_before * density) / (gaps + gap_before)
    slope = jnp.clip(slope, 0, 3 * jnp.minimum(before, density))
    start = jnp.concatenate([jnp.zeros(1, masses.dtype), jnp.cumsum(masses)[:-1]])
    total = jnp.sum(masses)

    edges = 2 * jnp.pi * jnp.arange(n) / n
    turns = jnp.floor((edges - places[0]) / (2 * jnp.pi))
    edges = edges - 2 * jnp.pi * turns
    cell = jnp.clip(jnp.searchsorted(places, edges, side="right") - 1, 0, n - 1)
    width, mass, left, right = gaps[cell], masses[cell], slope[cell], jnp.roll(slope, -1)[cell]
    s = jnp.clip((edges - places[cell]) / width, 0, 1)
    # Hermite on [0, 1] from 0 to the cell's mass.
    inside = mass * s * s * (3 - 2 * s) + width * s * (1 - s) * (left * (1 - s) - right * s)
    level = start[cell] + jnp.clip(inside, 0, mass) + turns * total
    return jnp.maximum(jnp.diff(jnp.append(level, level[0] + total)), 0)


class Markers(NamedTuple):
    """Markers of S², (cells, SUB, SUB, 3), each with an equal part of its cell's mass."""

    places: Array
    masses: Array


class SphereGrid(Grid):
    """About ``cells`` cells of equal area on S², in rings of equal height and nearly square cells.

    >>> grid = SphereGrid(500)
    >>> bool(abs(grid.cells - 500) < 25), bool(np.isclose(grid.begin(None).sum(), 1.0))
    (True, True)
    """

    cells: int = eqx.field(static=True)
    counts: tuple[int, ...] = eqx.field(static=True)  #: cells in each ring, north to south

    def __init__(self, cells: int):
        if cells < 50:
            raise UserError("cells", got=cells, expected="50 or more", mend="use --cells 3000")
        rings = max(3, round(np.sqrt(np.pi * cells / 4)))
        middle = np.pi * (np.arange(rings) + 0.5) / rings
        self.counts = tuple(np.maximum(3, np.round(cells * np.sin(middle) / np.sin(middle).sum())).astype(int).tolist())
        self.cells = sum(self.counts)

    @property
    def heights(self) -> np.ndarray:
        """x_3 at the edges of the rings, decreasing from 1 to -1: each ring's area is its number of cells'."""
        return 1 - 2 * np.concatenate([[0], np.cumsum(self.counts)]) / self.cells

    @property
    def width(self) -> float:
        return float(np.sqrt(4 * np.pi / self.cells))

    def _points(self, sub: int) -> np.ndarray:
        """sub × sub points in every cell, spread evenly by area: (cells, sub, sub, 3)."""
        part = (np.arange(sub) + 0.5) / sub
        rows = []
        for ring, count in enumerate(self.counts):
            top, bottom = self.heights[ring], self.heights[ring + 1]
            z = top + (bottom - top) * part
            angle = 2 * np.pi * (np.arange(count)[:, None] + part) / count
            flat = np.sqrt(1 - z**2)[None, :, None]
            shape = (count, sub, sub)
            x, y = flat * np.cos(angle)[:, None, :], flat * np.sin(angle)[:, None, :]
            rows.append(np.stack([x, y, np.broadcast_to(z[None, :, None], shape)], axis=-1))
        return np.concatenate(rows)

    @property
    def centres(self) -> np.ndarray:
        return self._points(1).reshape(-1, 3)

    def cell_of(self, points: Tokens) -> Array:
        firsts = np.concatenate([[0], np.cumsum(self.counts)])
        share = (1 - points[:, 2]) * (self.cells / 2)
        ring = jnp.clip(jnp.searchsorted(jnp.asarray(firsts), share, side="right") - 1, 0, len(self.counts) - 1)
        count = jnp.asarray(self.counts)[ring]
        turn = jnp.mod(jnp.arctan2(points[:, 1], points[:, 0]) / (2 * jnp.pi), 1.0)
        return jnp.asarray(firsts)[ring] + jnp.minimum((turn * count).astype(int), count - 1)

    def begin(self, density: Density) -> np.ndarray:
        points = self._points(SUB).reshape(-1, 3)
        return _masses(density, points, np.ones(len(points)), self.cells)

    def state(self, masses: Weights) -> Markers:
        return Markers(jnp.asarray(self._points(SUB), masses.dtype), masses)

    def cloud(self, state: Markers) -> tuple[Tokens, Weights]:
        return state.places.reshape(-1, 3), jnp.repeat(state.masses / SUB**2, SUB**2)

    def masses(self, state: Markers) -> Weights:
        points, weights = self.cloud(state)
        return jnp.zeros(self.cells, weights.dtype).at[self.cell_of(points)].add(weights)

    def resolved(self, masses: Weights) -> Array:
        return jnp.sum(masses > 0.5 * jnp.max(masses)) >= FEWEST

    def advance(self, key: PRNGKey, state: Markers, model: Transformer, h: Any) -> tuple[Markers, Array]:
        points, weights = self.cloud(state)
        places = transport(key, points, points, weights, model, h).reshape(state.places.shape)
        state = Markers(places, state.masses)
        first = jnp.asarray(self._points(SUB), places.dtype)
        stretch = jnp.maximum(_stretch(places, first, 1), _stretch(places, first, 2))
        heavy = state.masses > 1e-3 / self.cells
        worn = jnp.any(heavy & (stretch > STRETCH))
        fresh = jax.lax.cond(worn, lambda old: self.state(self.masses(old)), lambda old: old, state)
        return fresh, jnp.array(True)


def _stretch(places: Array, first: Array, axis: int) -> Array:
    """The largest growth of the distance of neighbouring markers, by cell."""
    now, then = (jnp.linalg.norm(jnp.diff(points, axis=axis), axis=-1) for points in (places, first))
    return jnp.max(now / then, axis=(1, 2))


def _masses(density: Density, points: np.ndarray, weights: np.ndarray, cells: int) -> np.ndarray:
    values = np.ones(len(points)) if density is None else np.asarray(density(points), float)
    if values.shape != (len(points),) or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise UserError("density", got=f"values of shape {values.shape}", expected="finite numbers >= 0 at every point")
    masses = (values * weights).reshape(cells, -1).sum(axis=1)
    return masses / masses.sum()
