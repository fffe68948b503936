"""What a run will cost, before it starts: memory by counting, time by running one layer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from synchronoise.attention import BLOCK
from synchronoise.errors import UserError
from synchronoise.harmonic_attention import HarmonicAttention
from synchronoise.model import Transformer, observe, step
from synchronoise.observables import MOST_PAIRED, Observable
from synchronoise.randomness import replica_keys, step_key
from synchronoise.simulation import batches_in_a_call, for_each, replicas_at_once, workers

# An idle process with JAX loaded and one program compiled.
BASE = 400e6
# Tokens up to which a layer is run to know its time.
MEASURED = 2**15


class Memory(NamedTuple):
    """Bytes a run needs at once: `base` the process, `state` the tokens, `layer` one step, `saved` the
    result."""

    base: float
    state: float
    layer: float
    saved: float

    @property
    def total(self) -> float:
        return sum(self)


def memory(model: Transformer, *, tokens: int, dim: int, replicas: int, observed: int, rows: int, dtype: str) -> Memory:
    """Bytes for `replicas` copies of `tokens` × `dim` and a result of `rows` × `observed` numbers for each.

    Counted: three copies of the state (before, after, checkpoint); for the replicas that are computed at the same
    time, the matrices over pairs of tokens (twelve to sort the overlaps of the first ones, four for attention, fewer
    where it goes in blocks, four for a factor), the hidden layer or the factor twice and one layer's weights; and the
    result four times, which is what it takes to put it together and to write it whole.

    >>> from synchronoise import Transformer
    >>> model = Transformer(None, None, layers=10, horizon=1.0)
    >>> need = memory(model, tokens=8, dim=4, replicas=2, observed=1, rows=11, dtype="float32")
    >>> need.saved == 4 * 4 * 2 * 11
    True
    """
    size = np.dtype(dtype).itemsize
    width = getattr(model.noise, "width", 0)
    together = batches_at_once(model, tokens, dim, replicas) * replicas_at_once(model, tokens, dim)
    pairs = tokens * tokens
    in_blocks = model.attention is None or model.attention.rowwise
    held = 12 * min(tokens, MOST_PAIRED) ** 2 + 4 * (min(pairs, BLOCK) if in_blocks else pairs)
    columns, growing = _columns(model, dim)
    held += 4 * pairs if growing else 0
    one = held + 2 * tokens * max(width, columns) + 2 * width * dim + 6 * tokens * dim
    return Memory(
        base=BASE,
        state=3.0 * size * replicas * tokens * dim,
        layer=1.0 * size * together * one,
        saved=4.0 * size * replicas * rows * observed,
    )


def _columns(model: Transformer, dim: int) -> tuple[int, bool]:
    """The columns of the noise's factor at a few tokens, and whether there are more for more tokens."""
    noise = model.noise
    if noise is None:
        return 0, False
    key = jax.random.key(0)
    few, more = (jax.eval_shape(noise.factor, key, jax.ShapeDtypeStruct((n, dim), "float32")) for n in (8, 16))
    return more.shape[1], more.shape[1] > few.shape[1]


def available_memory() -> float:
    """Bytes this process may still take: what the system has free, or less where a control group limits it.

    >>> available_memory() > 0
    True
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        # what the group's processes hold; file caches count in memory.current, but give way
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
        held = next(float(line.split()[1]) for line in lines if line.startswith("anon "))
    except (OSError, ValueError, StopIteration):
        return free
    return min(free, limit - held)


def check_memory(need: Memory, available: float) -> None:
    """Refuse a run that cannot fit, before it starts.

    >>> check_memory(Memory(0.0, 1e9, 1e9, 8e12), available=16e9)
    Traceback (most recent call last):
    synchronoise.errors.UserError: the run needs about 8,002.0 GB of memory and 16.0 GB are available; ...
    """
    if need.total <= available:
        return
    mends = {
        "state": "use fewer --replicas or --tokens",
        "layer": "use fewer --tokens or a smaller --width",
        "saved": "use a larger --every, fewer --replicas, or no --save-tokens",
        "base": "free some memory",
    }
    largest = max(mends, key=lambda name: getattr(need, name))
    raise UserError(
        f"the run needs about {need.total / 1e9:,.1f} GB of memory and {available / 1e9:,.1f} GB are available",
        mend=mends[largest],
    )


def seconds_per_layer(
    model: Transformer, tokens: np.ndarray, replicas: int, observers: Sequence[Observable] = ()
) -> tuple[float, float]:
    """Wall-clock seconds of one layer of all replicas, and of looking at all of them, measured on one batch.

    `tokens` (n, d) are any tokens of the right shape.  Compilation is not counted.  Beyond `MEASURED` tokens a layer
    grows with their number, or with its square where the route goes through all pairs; observers look at the first
    tokens only.
    """
    n, d = tokens.shape
    x = tokens[:MEASURED]
    h = model.horizon / model.layers
    looped = batches_in_a_call(model, len(x), d, replicas)
    layer = _seconds_of_batch(model, x, looped, lambda key, x: step(step_key(key, 0), x, model.drawn(key, 0), h)[0])
    look = 0.0
    if observers:
        look = _seconds_of_batch(model, x, looped, lambda key, x: observe(x, model.weights, observers))
    pairs = not isinstance(model.attention, HarmonicAttention | None) or _columns(model, d)[1]
    layer *= (n / len(x)) ** (2 if pairs else 1)
    batches = -(-replicas // replicas_at_once(model, n, d))
    rounds = -(-batches // batches_at_once(model, n, d, replicas))
    return rounds * layer, rounds * look


def _seconds_of_batch(model: Transformer, tokens: np.ndarray, looped: int, what: Callable[[Any, Any], Any]) -> float:
    """Those of one of ``looped`` batches in a call."""
    together = replicas_at_once(model, *tokens.shape)
    x = np.broadcast_to(tokens, (looped, together, *tokens.shape))
    keys = replica_keys(0, looped * together).reshape(looped, together)
    batches = partial(jax.lax.map, lambda batch: for_each(what, *batch))
    compiled = jax.jit(batches).lower((keys, x)).compile()
    times: list[float] = []
    while len(times) < 2 or (len(times) < 5 and sum(times) < 1):  # the first one also touches its memory
        start = time.perf_counter()
        jax.block_until_ready(compiled((keys, x)))
        times.append(time.perf_counter() - start)
    return min(times) / looped


def batches_at_once(model: Transformer, tokens: int, dim: int, replicas: int) -> int:
    """Batches of replicas that are computed at the same time, each by a thread of its own."""
    return min(workers(jax.local_devices()), -(-replicas // replicas_at_once(model, tokens, dim)))
