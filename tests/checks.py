"""What several test files share: statistics with their resolution, and small models."""

import jax
import jax.numpy as jnp
import numpy as np

from synchronoise import MLP, DrawnMLP, GaussianField, InLawMLP, SumNoise, simulation
from synchronoise.randomness import replica_keys, step_key

LAW = MLP("relu", 5, 0.1, 0.2)
NOISES = {
    "drawn": DrawnMLP(LAW, 16),
    "in_law": InLawMLP(LAW, 16),
    "field": GaussianField(LAW),
    "sum": SumNoise(DrawnMLP(LAW, 4), DrawnMLP(MLP("tanh", 5), 3)),
    "sum_in_law": SumNoise(DrawnMLP(LAW, 4), GaussianField(MLP("tanh", 5))),
}


def agrees(samples: np.ndarray, exact: float, *, resolution: float) -> bool:
    """|mean - exact| <= 5 standard errors, asserting first that 5 of them notice an error of ``resolution``."""
    samples = np.asarray(samples, float)
    error = samples.std(ddof=1) / np.sqrt(samples.size)
    assert 5 * error <= resolution, f"5 SE = {5 * error:.2g} cannot notice {resolution:.2g}: more replicas"
    return bool(abs(samples.mean() - exact) <= 5 * error)


def interrupt_second_chunk(monkeypatch) -> None:
    """Ctrl-C in the second call of a run's compiled program, however long the chunks are."""
    advance, calls = simulation._run_chunk, []

    def second_is_interrupted(*arguments, **how):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return advance(*arguments, **how)

    monkeypatch.setattr(simulation, "_run_chunk", second_is_interrupted)


def uniform_tokens(n: int, d: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)


def many_keys(count: int, step: int = 0, seed: int = 0) -> jax.Array:
    """Keys of one step of many replicas."""
    return jax.vmap(lambda key: step_key(key, step))(replica_keys(seed, count))


def increments(noise, x, count: int, seed: int = 0) -> np.ndarray:
    """``count`` independent increments of a noise at the tokens x, shape (count, n, d)."""
    return np.asarray(jax.jit(jax.vmap(lambda key: noise.increment(key, jnp.asarray(x))))(many_keys(count, seed=seed)))
