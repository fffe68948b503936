"""Clusters of tokens: how many there are at every angle, their sizes, and when few are left (THEORY §6, §7).

Clusters at an angle δ are the connected components of the graph that joins tokens at angles below δ.  The minimal
spanning tree of the angles knows them for every δ at once: n - 1 of its edges, in the order in which Prim's algorithm
takes them, cut the tokens (in the same order) into the clusters wherever an edge is at least δ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from ._arrays import Array, Float, Gram, Tokens, Weights
from .budget import available_memory, check_memory, memory
from .errors import UserError
from .observables import Observable
from .pictures import caption
from .plots_flow import clusters_figure, save_figure
from .runs import Job, prepare, provenance
from .simulation import simulate
from .sphere import gram, half_square_chords
from .store import check_output, load, save

KINDS = ("angle", "angle up to sign")
DELTAS = np.geomspace(1e-3, math.pi / 2, 40)  # the curve over δ in a result


def spanning_edges(angles: Gram) -> Float[Array, " n_minus_1"]:
    """The edges of a minimal spanning tree of a matrix of angles, in Prim's order from token 0.

    >>> import jax.numpy as jnp
    >>> spanning_edges(jnp.array([[0.0, 3.0, 1.0], [3.0, 0.0, 2.5], [1.0, 2.5, 0.0]])).tolist()
    [1.0, 2.5]
    """
    n = angles.shape[0]
    if n == 1:
        return jnp.zeros(0, angles.dtype)

    def take(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        nearest, edges = carry
        token = jnp.argmin(nearest)
        edges = edges.at[k].set(nearest[token])
        # Taken tokens stay at infinity: ∞ joined with anything is ∞ there.
        nearest = jnp.where(jnp.isinf(nearest), nearest, jnp.minimum(nearest, angles[token]))
        return nearest.at[token].set(jnp.inf), edges

    first = angles[0].at[0].set(jnp.inf)
    return jax.lax.fori_loop(0, n - 1, take, (first, jnp.zeros(n - 1, angles.dtype)))[1]


class MergeAngles(Observable):
    """`spanning_edges` of the angles 2 arcsin(|x_i - x_j|/2), and of the angles up to sign, min(angle, π - angle).

    From chords, so right down to merged tokens.  `cluster_count` reads the number of clusters off them.

    >>> import jax.numpy as jnp
    >>> MergeAngles()(jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), None).round(1).astype(int).tolist()
    [[1, 1], [0, 1]]
    """

    name = "merge_angles"
    dims = ("kind", "edge")
    long_name = "edges of the minimal spanning tree of the angles, in Prim's order"
    reference = "THEORY §6"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        same, opposite = half_square_chords(x), half_square_chords(x, -x)
        angles = [2 * jnp.arcsin(jnp.minimum(jnp.sqrt(e / 2), 1)) for e in (same, jnp.minimum(same, opposite))]
        return jax.vmap(spanning_edges)(jnp.stack(angles))

    @property
    def coords(self) -> dict[str, np.ndarray]:
        return {"kind": np.array(KINDS)}


class GramRank(Observable):
    """The literature's count of clusters: eigenvalues of the Gram matrix over n above a tolerance.

    It counts directions: clusters beyond d, or antipodal ones, are not told apart.

    >>> import jax.numpy as jnp
    >>> int(GramRank()(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), None))
    1
    """

    tolerance: float = 1e-3
    name = "gram_rank"
    dims = ()
    long_name = "number of eigenvalues of the Gram matrix / n above the tolerance"
    reference = "THEORY §6"

    def __call__(self, x: Tokens, weights: Weights | None) -> Array:
        values = jnp.linalg.eigvalsh(gram(x) / x.shape[0])
        return jnp.sum(values > self.tolerance).astype(x.dtype)


def cluster_count(edges: np.ndarray, delta: float) -> np.ndarray:
    """The number of clusters at δ, from `MergeAngles` (the last axis).

    >>> cluster_count(np.array([0.1, 0.5, 0.1]), 0.3).item()
    2
    """
    return np.asarray(1 + (edges >= delta).sum(axis=-1))


def cluster_sizes(edges: np.ndarray, delta: float) -> list[int]:
    """The sizes of the clusters at δ, largest first, from one row of `MergeAngles`.

    >>> cluster_sizes(np.array([0.1, 0.5, 0.1, 0.1]), 0.3)
    [3, 2]
    """
    ends = np.concatenate([[0], np.flatnonzero(edges >= delta) + 1, [edges.size + 1]])
    return sorted(np.diff(ends).tolist(), reverse=True)


def first_time(reached: np.ndarray, time: np.ndarray) -> np.ndarray:
    """For each row the first time at which it is true, ∞ where it never is.

    >>> first_time(np.array([[False, True], [False, False]]), np.array([0.0, 1.0])).tolist()
    [1.0, inf]
    """
    return np.where(reached.any(axis=1), time[np.argmax(reached, axis=1)], np.inf)


def summary_of_times(times: np.ndarray) -> dict[str, Any]:
    """Share of the replicas that got there, and mean, standard error and median of their times.

    >>> summary_of_times(np.array([1.0, 3.0, np.inf]))["reached"].__round__(3)
    0.667
    """
    got = times[np.isfinite(times)]
    return {
        "reached": got.size / times.size,
        "mean": float(got.mean()) if got.size else None,
        "se": float(got.std(ddof=1) / math.sqrt(got.size)) if got.size > 1 else None,
        "median": float(np.median(times)) if got.size > times.size / 2 else None,
    }


def check_delta(delta: float) -> None:
    """Refuse what is no angle between tokens.

    >>> check_delta(0.0)
    Traceback (most recent call last):
    synchronoise.errors.UserError: delta: got 0.0, expected an angle in (0, π]; for example 0.1
    """
    if not 0 < delta <= math.pi:
        raise UserError("delta", got=delta, expected="an angle in (0, π]", mend="for example 0.1")


def check_result(out: str | Path, kind: str, *, overwrite: bool) -> Path:
    """Refuse, before anything is computed, an output that should not be written: `overwrite` replaces its own kind.

    The picture that goes beside it counts as well.

    >>> check_result("clusters.png", "clusters", overwrite=False)
    Traceback (most recent call last):
    synchronoise.errors.UserError: output 'clusters.png': got '.png', expected a name ending in .nc; ...
    """
    if not (overwrite and Path(out).exists()):
        path, picture = check_output(out), Path(out).with_suffix(".png")
        if picture.exists() and not overwrite:
            raise UserError(f"{picture} exists", mend="--overwrite replaces it, --out names another file")
        return path
    load(out, kind=kind)
    return Path(out)


def watch(job: Job, observers: Sequence[Observable], *, progress: bool = False) -> xr.Dataset:
    """Run a job with these observers and nothing written; `KeyboardInterrupt` when it is interrupted.

    Raises `UserError` when it does not fit in memory.
    """
    config, rows = job.config, job.model.layers // job.config.every + 1
    n, d = job.start.shape[-2:] if isinstance(job.start, np.ndarray) else (job.start.tokens, job.start.dim)
    x = jax.ShapeDtypeStruct((n, d), jnp.float32)
    shapes = jax.eval_shape(lambda x: [observer(x, None) for observer in observers], x)
    observed = sum(math.prod(shape.shape) for shape in shapes) + config.save_tokens * n * d
    need = memory(
        job.model, tokens=n, dim=d, replicas=config.replicas, observed=observed, rows=rows, dtype=config.dtype
    )
    check_memory(need, available_memory())
    return simulate(
        job.model, job.start, replicas=config.replicas, seed=config.seed, observers=observers, every=config.every,
        save_tokens=config.save_tokens, dtype=config.dtype, progress=progress, partial=False,
    )  # fmt: skip


def cluster_report(dataset: xr.Dataset, delta: float) -> dict[str, Any]:
    """Clusters at δ against time, the times to two and to one, antipodal pairs and the attractor, as plain numbers.

    "attractor" are the shares of replicas that end in one point, in two antipodal points, or elsewhere.
    """
    edges, time = dataset["merge_angles"].values, dataset["time"].values
    count, up_to_sign = (cluster_count(edges[:, :, kind], delta) for kind in range(2))
    rows = np.unique(np.linspace(0, time.size - 1, 11).round().astype(int))
    end, end_up_to_sign = count[:, -1], up_to_sign[:, -1]
    two = (end == 2) & (end_up_to_sign == 1)
    sizes = [cluster_sizes(row, delta) for row in edges[:, -1, 0]]
    report: dict[str, Any] = {
        "delta": delta,
        "replicas": count.shape[0],
        "time": time[rows].tolist(),
        "clusters": count[:, rows].mean(axis=0).tolist(),
        "clusters_se": _errors(count[:, rows]),
        "time_to_two": summary_of_times(first_time(count <= 2, time)),
        "time_to_one": summary_of_times(first_time(count <= 1, time)),
        "largest_share": float(np.mean([size[0] / (edges.shape[-1] + 1) for size in sizes])),
        "sizes_of_replica_0": sizes[0],
        "antipodal_pairs": float((end - end_up_to_sign).mean()),
        "attractor": {
            "one_point": float((end == 1).mean()),
            "two_points": float(two.mean()),
            "other": float(((end > 1) & ~two).mean()),
        },
    }
    if "gram_rank" in dataset:
        report["gram_rank"] = dataset["gram_rank"].values[:, rows].mean(axis=0).tolist()
    return report


def _errors(samples: np.ndarray) -> list[float] | None:
    n = samples.shape[0]
    return (samples.std(axis=0, ddof=1) / math.sqrt(n)).tolist() if n > 1 else None


def count_clusters(
    given: Mapping[str, object], out: str | Path, *, delta: float = 0.1, gram_rank: bool = False,
    overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run a configuration, count its clusters, and write `out` (netCDF, every replica and layer) and its figure.

    The number of clusters is also kept as a curve over δ.  Returns `cluster_report` and what was written.
    """
    check_delta(delta)
    job = prepare(given)
    out = check_result(out, "clusters", overwrite=overwrite)
    observers = (MergeAngles(), *((GramRank(),) if gram_rank else ()))
    dataset = watch(job, observers, progress=progress)
    edges = dataset["merge_angles"].values
    shown = (delta / 4, delta, 4 * delta)
    deltas = np.union1d(DELTAS, shown)
    curve = np.stack([cluster_count(edges, angle).mean(axis=0) for angle in deltas], axis=-1)
    dataset["clusters"] = (("layer", "kind", "delta"), curve, {"long_name": "mean number of clusters at angle delta"})
    dataset = dataset.assign_coords(delta=deltas)
    del dataset.attrs["provenance"]
    save(dataset, out, {**provenance(job), "delta": delta}, kind="clusters")
    picture = save_figure(clusters_figure(dataset, shown, caption(job.config)), out)
    return {"file": str(out), "picture": picture, **cluster_report(dataset, delta)}
