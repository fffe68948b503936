"""The loop over layers: an ensemble of replicas, watched by observers (THEORY §1, §3)."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from ._arrays import Array, Float, Key, PRNGKey, Tokens
from .errors import RunError, UserError
from .model import Transformer, cast, observe, step
from .noise import GaussianField, Noise, ScaledNoise, SumNoise
from .observables import Energy, Observable, OverlapQuantiles, Positions
from .progress import Progress
from .randomness import Role, lanes, replica_keys, role_key, step_key
from .sphere import Start, layer_norm
from .store import environment

Ensemble = Float[Array, "replica n d"]

# The largest array of a step that is shorter than the call of its program, and the batches that a call then takes.
FEW, LOOPED = 128, 32

# Compiled programs that are kept: each takes some 240 of the 65 530 memory maps that Linux gives a process, and when
# these are used up XLA ends it.
MOST_PROGRAMS = 100


class FloorWarning(UserWarning):
    """Tokens are closer than the route of the noise resolves: distances below its floor are rounding."""


class NotFiniteError(RunError):
    """A run stopped because its ``part`` ("start", "attention" or "noise") gave something that is no number."""

    def __init__(self, replica: int, layer: int, part: str, good: int):
        self.part = part
        super().__init__(
            f"the {part} is not finite in replica {replica} at layer {layer}; the run is good up to layer {good}"
        )


class State(NamedTuple):
    """All that a run needs to go on: how many layers were observed, the tokens now, and what was seen so far."""

    rows: int  #: observed layers; layer 0 is the first
    tokens: np.ndarray  #: (replica, token, dim)
    seen: dict[str, np.ndarray]  #: by observer, (replica, observed layer, ...)


def simulate(
    model: Transformer,
    start: Start | np.ndarray | Array,
    *,
    replicas: int = 16,
    seed: int = 0,
    observers: Sequence[Observable] = (Energy(), OverlapQuantiles()),
    every: int = 1,
    save_tokens: bool = False,
    dtype: str = "float32",
    chunk: int | None = None,
    progress: bool = False,
    partial: bool = True,
    resume: State | None = None,
    on_chunk: Callable[[State], None] | None = None,
) -> xr.Dataset:
    """Run ``replicas`` independent copies of the model through its layers and keep what the observers see.

    ``start`` is a `Start` (drawn anew for each replica), tokens of shape (token, dim) shared by all replicas, or tokens
    (replica, token, dim).  Observers look at layer 0 and after every ``every`` layers (a divisor of the number of
    layers); ``save_tokens`` keeps the tokens as well.  ``chunk`` (observed layers per compiled call) changes no number.
    Ctrl-C ends the run early and returns what is done, with a warning; without ``partial`` it raises
    `KeyboardInterrupt`, for callers who would take a part for the whole.  ``on_chunk`` is given the
    `State` after each chunk, and ``resume`` continues from one.

    Returns an `xarray.Dataset` with dimensions ``replica``, ``layer`` and those of the observers; coordinates
    ``layer`` and ``time`` = layer · T/L; the provenance as one JSON string in its attributes.

    Raises `UserError` for a setting that cannot run and `RunError` when a token stops being finite.

    >>> from synchronoise import MLP, DrawnMLP, SoftmaxAttention, Transformer, Uniform, simulate
    >>> model = Transformer(SoftmaxAttention(beta=1.0), DrawnMLP(MLP("relu", dim=4), width=8), layers=6, horizon=1.0)
    >>> simulate(model, Uniform(tokens=3, dim=4), replicas=2, every=3)["energy"].shape
    (2, 3)
    """
    if chunk is not None and chunk < 1:
        raise UserError("chunk", got=chunk, expected="an integer >= 1, or None", mend="leave it out")
    if replicas < 1:
        raise UserError("replicas", got=replicas, expected="an integer >= 1", mend="use --replicas 16")
    check_run(model, every, dtype)
    if save_tokens:
        observers = (*observers, Positions())
    keys = replica_keys(seed, replicas)
    rows = model.layers // every + 1
    # One layer, then as many rows as take half a second: short calls cost more than they compute, in long ones nobody
    # is heard.  A few capacities in all, so that runs of near depths find the same program.
    capacity = max(2, _rounded_up(-(-rows // 2))) if chunk is None else min(chunk, rows)
    now = 2 if chunk is None else capacity
    programs: Any = _advance
    if programs._cache_size() >= MOST_PROGRAMS:
        programs.clear_cache()
    program = _Program.of(cast((model, tuple(observers)), dtype))
    state = resume or State(0, _begin(start, keys, dtype), {})
    _check_shapes(model, state.tokens, replicas)
    bar = Progress("simulate", rows, "row" if every > 1 else "layer", done=state.rows, shown=progress)
    # Threads of the linear algebra library under ours would fight for the cores: 40 times slower was seen.
    with bar, threadpool_limits(1, "blas"):
        try:
            while state.rows < rows:
                began, done = time.perf_counter(), min(now, rows - state.rows)
                state = _run_chunk(program, state, keys, done, capacity=capacity, every=every)
                bar.advance(done)
                if chunk is None:
                    fitting = int(0.5 / (time.perf_counter() - began) * done)
                    now = min(max(1, fitting), capacity)
                if on_chunk is not None:
                    on_chunk(state)
        except KeyboardInterrupt:
            if state.rows == 0:
                raise
            reached = (state.rows - 1) * every
            if not partial:
                raise KeyboardInterrupt(f"interrupted at layer {reached} of {model.layers}") from None
            warnings.warn(f"interrupted: the result stops at layer {reached} of {model.layers}", stacklevel=2)
    _warn_at_floor(model, state.tokens)
    return _dataset(model, start, state, observers, every, seed, dtype)


def _rounded_up(count: int) -> int:
    """The next number whose binary digits after the third are 0: at most a quarter more."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


def check_run(model: Transformer, every: int, dtype: str) -> None:
    """Refuse a stride between observed layers that misses the last one, and a dtype that JAX would cut down."""
    if every < 1 or model.layers % every:
        raise UserError("every", got=every, expected=f"a divisor of layers={model.layers}", mend="use --every 1")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UserError(
            "dtype", got=dtype, expected="float32 (JAX's 64-bit mode is off)",
            mend="call jax.config.update('jax_enable_x64', True) first",
        )  # fmt: skip


def _begin(start: Start | np.ndarray | Array, keys: Key[Array, " replica"], dtype: str) -> np.ndarray:
    """The tokens of every replica at layer 0."""
    if isinstance(start, Start):
        # So many at a time whatever their number: another size of a batch may round differently.
        size, replicas = max(1, min(64, 2**14 // (start.tokens * start.dim))), keys.shape[0]
        words, traced = np.asarray(jax.random.key_data(keys)), cast(start, dtype)
        batches = (jnp.asarray(words[lanes(first, size, replicas)]) for first in range(0, replicas, size))
        return np.concatenate([np.asarray(_draw_start(traced, batch, dtype)) for batch in batches])[:replicas]
    tokens = np.asarray(layer_norm(jnp.asarray(start, dtype)))
    if tokens.ndim == 2:
        tokens = np.broadcast_to(tokens, (keys.shape[0], *tokens.shape))
    if tokens.ndim != 3 or not np.isfinite(tokens).all():
        raise UserError(
            "start",
            got=f"an array of shape {tokens.shape}",
            expected="(token, dim) or (replica, token, dim) without zero or NaN rows",
        )
    return tokens


@eqx.filter_jit
def _draw_start(start: Start, words: Array, dtype: str) -> Ensemble:
    keys = jax.random.wrap_key_data(words)
    return jax.vmap(lambda key: start(role_key(step_key(key, 0), Role.START), jnp.dtype(dtype)))(keys)


def _check_shapes(model: Transformer, tokens: np.ndarray, replicas: int) -> None:
    count, n, d = tokens.shape
    if count != replicas:
        raise UserError("start", got=f"{count} replicas of tokens", expected=f"{replicas}", mend="change replicas")
    for noise in _parts(model.noise):
        law = getattr(noise, "mlp", None)
        if law is not None and law.dim != d:
            raise UserError("start", got=f"tokens of dimension {d}", expected=f"dim={law.dim}, that of the noise")
    if model.attention is not None and model.attention.dim not in (None, d):
        dim = model.attention.dim
        raise UserError("start", got=f"tokens of dimension {d}", expected=f"{dim}, that of the attention")
    if model.weights is not None and model.weights.shape[0] != n:
        raise UserError("weights", got=f"{model.weights.shape[0]} of them", expected=f"one for each of {n} tokens")


def _parts(noise: Noise | None) -> list[Noise | None]:
    """The noises of a sum, bare of their factors."""
    if isinstance(noise, SumNoise):
        return [part for summand in noise.parts for part in _parts(summand)]
    return _parts(noise.noise) if isinstance(noise, ScaledNoise) else [noise]


def _run_chunk(
    program: _Program, state: State, keys: Key[Array, " replica"], rows: int, *, capacity: int, every: int
) -> State:
    """``rows`` observed layers further, with a check that every token is still a number.

    Batches of replicas go to the devices in turn and, on a CPU, through one thread for each core: the small arrays of a
    step are too short for the threads of XLA itself.
    """
    replicas, n, d = state.tokens.shape
    batch = replicas_at_once(program.model, n, d)
    shape = (batches_in_a_call(program.model, n, d, replicas), batch)
    size = math.prod(shape)
    devices = jax.local_devices()
    words = np.asarray(jax.random.key_data(keys))  # to be indexed without a call of JAX
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

    def advance(first: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        device = devices[first // size % len(devices)]
        index = lanes(first, size, replicas).reshape(shape)
        counts = (np.int32(state.rows), np.int32(rows), np.int32(every))
        with jax.enable_x64(wide):  # what `with jax.enable_x64(True)` says holds for one thread
            tokens, lane_words = jax.device_put((state.tokens[index], words[index]), device)
            done = _advance(program.shape, program.numbers, tokens, lane_words, counts, capacity)
        return jax.tree.map(lambda value: np.asarray(value).reshape(size, *value.shape[2:]), done)

    firsts = range(0, replicas, size)
    with ThreadPoolExecutor(workers(devices)) as pool:
        # The first call of a run traces and compiles: alone, so that it happens once.
        done = [advance(0)] if state.rows == 0 else []
        try:
            done += pool.map(advance, firsts[len(done) :])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    whole = done[0] if len(done) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *done)
    tokens, finite, seen = jax.tree.map(lambda value: value[:replicas], whole)
    good = finite[:, :rows]
    if not good.all():
        row = int(np.argmin(good.all(axis=0)))
        replica = int(np.argmin(good[:, row]))
        layer = (state.rows + row) * every
        before = max(layer - every, 0)
        # The failing replica again, layer by layer from the last tokens known to be good.
        reached = max((state.rows - 1) * every, 0)
        layer, part = _first_failure(program.model, jnp.asarray(state.tokens[replica]), keys[replica], reached, layer)
        raise NotFiniteError(replica, layer, part, before)
    seen = {name: value[:, :rows] for name, value in seen.items()}
    if state.seen:
        seen = {name: np.concatenate([state.seen[name], value], axis=1) for name, value in seen.items()}
    return State(state.rows + rows, tokens, seen)


def workers(devices: Sequence[Any]) -> int:
    """Host threads that keep the devices busy: the cores this process may use, or one for each accelerator."""
    if devices[0].platform != "cpu":
        return len(devices)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_failure(model: Transformer, x: Tokens, key: PRNGKey, first: int, last: int) -> tuple[int, str]:
    """The layer in (first, last] at which the tokens of one replica stop being finite, and the part that does it."""
    h = model.horizon / model.layers
    silent = eqx.tree_at(lambda whole: whole.noise, model, None, is_leaf=lambda leaf: leaf is None)
    for layer in range(first, last):
        after, _ = step(step_key(key, layer), x, model.drawn(key, layer), h)
        if not bool(jnp.isfinite(after).all()):
            quiet, _ = step(step_key(key, layer), x, silent.drawn(key, layer), h)
            return layer + 1, "noise" if bool(jnp.isfinite(quiet).all()) else "attention"
        x = after
    return last, "start"


def replicas_at_once(model: Transformer, n: int, d: int) -> int:
    """Replicas in one batch: few enough for the arrays of a step to stay in the cache, many enough to fill a vector.

    A batch of another size is compiled to other products and rounds differently.  So that a replica's numbers do not
    depend on how many there are, the size is the model's alone, and the last batch is filled up.  The steps are where
    batches were measured to gain; at 8 tokens of dimension 8 one gains little and would cost a single long run most.
    """
    work = _work(model, n, d)
    if work <= 32:
        return 64
    return 1 if work <= FEW else min(16, max(1, 2**14 // work))


def batches_in_a_call(model: Transformer, n: int, d: int, replicas: int) -> int:
    """Batches that one call of the compiled program goes through, one after the other.

    Steps of few tokens are shorter than a call.  A loop over batches compiles to the same steps, so no number changes.
    """
    batches = -(-replicas // replicas_at_once(model, n, d))
    return LOOPED if _work(model, n, d) <= FEW and batches >= 2 * LOOPED else 1


def _work(model: Transformer, n: int, d: int) -> int:
    """The largest array of a step of one replica."""
    return n * max(n, d, getattr(model.noise, "width", 1))


class _Program(NamedTuple):
    """A model and its observers, taken apart once: what is traced, and what a compiled program is found by."""

    model: Transformer
    shape: Any
    numbers: list[Array]

    @staticmethod
    def of(traced: Any) -> _Program:
        numbers, rest = eqx.partition(traced, eqx.is_array)
        leaves, tree = jax.tree.flatten(numbers)
        others, other_tree = jax.tree.flatten(rest)
        return _Program(traced[0], (tree, other_tree, tuple(others)), leaves)


@partial(jax.jit, static_argnames=("shape", "capacity"))
def _advance(
    shape: Any, numbers: list[Array], x: Array, words: Array, counts: tuple[Any, Any, Any], capacity: int
) -> tuple[Array, Array, dict[str, Array]]:
    """Batches of replicas ``rows <= capacity`` observed layers further: one compiled loop for any number of them.

    ``x`` are their tokens (batch, replica, token, dim) and ``words`` the data of their keys; ``counts`` the observed
    layers before, those to do (rows), and the layers between two of them.
    """
    tree, other_tree, others = shape
    model, observers = eqx.combine(jax.tree.unflatten(tree, numbers), jax.tree.unflatten(other_tree, others))
    h = model.horizon / model.layers
    first, rows, every = counts

    def batch(x: Ensemble, words: Array) -> tuple[Ensemble, Array, dict[str, Array]]:
        keys = jax.random.wrap_key_data(words)

        def observed(x: Ensemble) -> dict[str, Array]:
            return for_each(lambda one: observe(one, model.weights, observers), x)

        def layer(k: Array, x: Ensemble) -> Ensemble:
            return for_each(lambda one, key: step(step_key(key, k), one, model.drawn(key, k), h)[0], x, keys)

        def row(i: Array, carry: tuple[Ensemble, Array, dict[str, Array]]) -> tuple[Ensemble, Array, dict[str, Array]]:
            x, finite, seen = carry
            last = (first + i) * every
            x = jax.lax.fori_loop(jnp.maximum(last - every, 0), last, layer, x)  # row 0 is layer 0: nothing before it
            seen = jax.tree.map(lambda buffer, value: buffer.at[:, i].set(value), seen, observed(x))
            return x, finite.at[:, i].set(jnp.isfinite(x).all(axis=(1, 2))), seen

        shapes = jax.eval_shape(observed, x)
        seen = jax.tree.map(lambda value: jnp.zeros((len(x), capacity, *value.shape[1:]), value.dtype), shapes)
        return jax.lax.fori_loop(0, rows, row, (x, jnp.zeros((len(x), capacity), bool), seen))

    return jax.lax.map(lambda one: batch(*one), (x, words))


def for_each(f: Callable[..., Any], *batch: Any) -> Any:
    """f of every replica of a batch.  One alone is not mapped: products of a batch of one are slower, by a fifth."""
    if len(batch[0]) > 1:
        return jax.vmap(f)(*batch)
    return jax.tree.map(lambda value: value[None], f(*(one[0] for one in batch)))


def _warn_at_floor(model: Transformer, tokens: np.ndarray) -> None:
    """Say once when some tokens (the first 64 of the first replicas) are closer than the noise's route resolves."""
    if model.noise is None or tokens.shape[1] < 2:
        return
    floor = model.noise.floor(tokens.dtype)
    some = tokens[: max(1, 2**18 // tokens[0].size), :64]
    closest = np.inf
    for apart in range(1, some.shape[1]):
        distances = np.linalg.norm(some[:, apart:] - some[:, :-apart], axis=2)
        closest = min(closest, distances[distances > 0].min(initial=np.inf))
    if closest < floor:
        mends = ["--dtype float64"] if tokens.dtype == np.float32 else []
        if any(isinstance(noise, GaussianField) for noise in _parts(model.noise)):
            mends.append("--route features (model.limit(features=16))")
        lower = f"; {' or '.join(mends)} goes lower" if mends else ""
        warnings.warn(
            # The floor is rounded, so that Python says the same words once in a sweep.
            f"some tokens are closer than the floor {floor:.0e} of this route ({model.route}, {tokens.dtype}): "
            f"distances there are rounding{lower}",
            FloorWarning,
            stacklevel=3,
        )


def _dataset(
    model: Transformer,
    start: Any,
    state: State,
    observers: Sequence[Observable],
    every: int,
    seed: int,
    dtype: str,
) -> xr.Dataset:
    layers = np.arange(state.rows) * every
    replicas = state.tokens.shape[0]
    time = ("layer", layers * (model.horizon / model.layers), {"long_name": "time t = layer T/L"})
    variables, coords = {}, {"layer": layers, "time": time, "replica": np.arange(replicas)}
    for observer in observers:
        dims = ("replica", "layer", *observer.dims)
        attributes = {"long_name": observer.long_name, "reference": observer.reference}
        variables[observer.name] = (dims, state.seen[observer.name], attributes)
        coords.update(observer.coords)
    provenance = {
        "model": model.describe(),
        "start": _describe_start(start),
        "replicas": replicas,
        "seed": seed,
        "dtype": dtype,
        "route": model.route,
        "environment": environment(),
    }
    text = json.dumps(provenance, sort_keys=True, ensure_ascii=False)
    return xr.Dataset(variables, coords, {"provenance": text, "completed_layers": int(layers[-1])})


def _describe_start(start: Any) -> dict[str, Any]:
    if isinstance(start, Start):
        return {"kind": type(start).__name__, **vars(start)}
    return {"kind": "tokens", "shape": list(np.shape(start))}
