"""The parts of one step of the limit, each timed alone on this machine, as JAX computes them: a yardstick, no bound.

Another generator of normals is faster than JAX's (most of the sum for two tokens), and one fused loop spares memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from threadpoolctl import threadpool_limits

from others import law, start
from timing import seconds

PARTS = ("normals", "Gram", "exp", "kappa", "Cholesky", "products")


def sum_of_parts(replicas: int, tokens: int, dim: int, *, batch: int, threads: int, layers: int) -> dict[str, float]:
    """Microseconds per replica and step of each part: ``batch`` replicas in a call, ``threads`` calls at a time."""
    kappa = law(dim).kernel().evaluator("float32")
    x = jnp.asarray(start(batch, tokens, dim))
    gram = jnp.clip(x @ x.transpose(0, 2, 1), -1, 1)
    covariance = kappa(gram, jnp) + 1e-5 * jnp.eye(tokens)
    # Each loop feeds its result back, a little of it, so that nothing is computed once and for all.
    steps: dict[str, tuple[Any, Any]] = {
        "normals": (lambda k, a: a + 1e-9 * jax.random.normal(jax.random.fold_in(jax.random.key(0), k), a.shape), x),
        "Gram": (lambda k, a: a + 1e-9 * jnp.einsum("rid,rjd->rij", a, a)[..., :1], x),
        "exp": (lambda k, a: a + 1e-9 * jnp.exp(a), gram),
        "kappa": (lambda k, a: a + 1e-9 * kappa(a, jnp), gram),
        "Cholesky": (lambda k, a: a + 1e-9 * jax.lax.linalg.cholesky(a, symmetrize_input=False), covariance),
        "products": (lambda k, a: a + 1e-9 * (gram @ a), x),
    }
    # A step has two Gram matrices and two products.
    times = {"normals": 1, "Gram": 2, "exp": 1, "kappa": 1, "Cholesky": 1, "products": 2}
    calls = max(1, replicas // batch)
    result = {}
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        for name, (step, first) in steps.items():
            loop = jax.jit(lambda a, step=step: jax.lax.fori_loop(0, layers, step, a))
            jax.block_until_ready(loop(first))

            def run(loop: Any = loop, first: Any = first) -> None:
                list(pool.map(lambda _: jax.block_until_ready(loop(first)), range(calls)))

            result[name] = times[name] * seconds(run)[0] / (calls * batch * layers) * 1e6
    return result
