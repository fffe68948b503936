"""The step of the limit as one would write it without Synchronoise: NumPy, diffrax, torchsde, PyTorch.

All of them: softmax attention at β = 1 and V = I, the ReLU field of σ_U = σ_W = 0.1, tokens on the sphere (THEORY §3).
Their kernel is the closed form of THEORY §2, with its arccos; ours is the short series of `Kernel.evaluator`.  A
Cholesky factor without rank tolerance needs a jitter on the diagonal; ours has none.  The SDE solvers leave the sphere,
where κ is no covariance: their tokens are normalised before they are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

import synchronoise as sn
from synchronoise.sphere import layer_norm

SIGMA = 0.1
JITTER = 1e-5


def law(dim: int) -> sn.MLP:
    return sn.MLP("relu", dim=dim, sigma_u=SIGMA, sigma_w=SIGMA)


def closed_form(dim: int, xp: Any) -> Callable[[Any], Any]:
    """κ(u) = (q/2π)(√(1-c²) + (π - arccos c) c) + σ_W², c = (u/d + σ_U²)/q, in NumPy, JAX or PyTorch (``xp``)."""
    q = 1 / dim + SIGMA**2
    clip, arccos = (xp.clip, xp.arccos) if hasattr(xp, "arccos") else (xp.clamp, xp.acos)

    def kappa(u: Any) -> Any:
        c = clip((u / dim + SIGMA**2) / q, -1, 1)
        return q / (2 * np.pi) * (xp.sqrt(1 - c * c) + (np.pi - arccos(c)) * c) + SIGMA**2

    return kappa


def start(replicas: int, tokens: int, dim: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((replicas, tokens, dim), dtype=np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def numpy_run(replicas: int, tokens: int, dim: int, layers: int, threads: int = 1) -> Callable[[], Any]:
    """Plain NumPy on one core, or the replicas dealt to ``threads``; more threads of its BLAS only slow it down."""
    kappa, h = closed_form(dim, np), np.float32(1 / layers)
    jitter = JITTER * np.eye(tokens, dtype=np.float32)

    def some(x: np.ndarray, normals: np.random.Generator) -> np.ndarray:
        for _ in range(layers):
            share = np.exp(x @ x.transpose(0, 2, 1))
            x = x + h * (share @ x / share.sum(-1, keepdims=True))
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
            factor = np.linalg.cholesky(kappa(x @ x.transpose(0, 2, 1)) + jitter)
            x = x + np.sqrt(h) * (factor @ normals.standard_normal(x.shape, dtype=np.float32))
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
        return x

    def run() -> np.ndarray:
        parts = np.array_split(start(replicas, tokens, dim), threads)
        generators = [np.random.default_rng([1, part]) for part in range(threads)]
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(some, parts, generators)))

    return run


def diffrax_run(replicas: int, tokens: int, dim: int, layers: int, *, unsafe: bool) -> Callable[[], Any]:
    import diffrax
    import lineax

    kernel = law(dim).kernel()
    kappa, jitter, h = closed_form(dim, jnp), JITTER * jnp.eye(tokens), 1 / layers
    shape = jax.ShapeDtypeStruct((tokens, dim), jnp.float32)

    def tangent(x: Any, v: Any) -> Any:
        return v - jnp.sum(x * v, axis=1, keepdims=True) * x

    def drift(t: Any, x: Any, args: Any) -> Any:
        x = layer_norm(x)
        return tangent(x, jax.nn.softmax(x @ x.T, axis=-1) @ x) - kernel.kappa_1 * (dim - 1) / 2 * x

    def diffusion(t: Any, x: Any, args: Any) -> Any:
        x = layer_norm(x)
        factor = jnp.linalg.cholesky(kappa(x @ x.T) + jitter)
        return lineax.FunctionLinearOperator(lambda noise: tangent(x, factor @ noise), shape)

    def solve(x: Any, key: Any) -> Any:
        path: Any = (
            diffrax.UnsafeBrownianPath(shape, key)
            if unsafe
            else diffrax.VirtualBrownianTree(0, 1, h / 2, shape, key)  # what its documentation names for fixed steps
        )
        terms = diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(diffusion, path))
        solution = diffrax.diffeqsolve(
            terms, diffrax.Euler(), 0.0, 1.0, h, x, adjoint=diffrax.ForwardMode(), max_steps=layers + 1, throw=False
        )
        return solution.ys[-1]

    solve_all = jax.jit(jax.vmap(solve))
    x, keys = jnp.asarray(start(replicas, tokens, dim)), jax.random.split(jax.random.key(0), replicas)

    def run() -> Any:
        end = jax.block_until_ready(solve_all(x, keys))
        assert np.isfinite(np.asarray(end)).all(), "diffrax gave NaN"
        return end

    return run


def torchsde_run(replicas: int, tokens: int, dim: int, layers: int) -> Callable[[], Any]:
    import torch
    import torchsde

    kernel, jitter = law(dim).kernel(), JITTER * torch.eye(tokens)
    kappa = closed_form(dim, torch)

    class Tokens:
        noise_type, sde_type = "general", "ito"

        def f_and_g_prod(self, t: Any, y: Any, noise: Any) -> Any:
            x = torch.nn.functional.normalize(y.view(-1, tokens, dim), dim=-1)
            dw = noise.view(-1, tokens, dim)
            gram = x @ x.transpose(1, 2)
            drift = tangent(x, torch.softmax(gram, -1) @ x) - kernel.kappa_1 * (dim - 1) / 2 * x
            factor = torch.linalg.cholesky(kappa(gram) + jitter)
            return drift.view(y.shape), tangent(x, factor @ dw).reshape(y.shape)

    def tangent(x: Any, v: Any) -> Any:
        return v - (x * v).sum(-1, keepdim=True) * x

    y, times = torch.from_numpy(start(replicas, tokens, dim)).view(replicas, -1), torch.tensor([0.0, 1.0])

    def run() -> Any:
        path = torchsde.BrownianInterval(0.0, 1.0, size=tuple(y.shape))
        with torch.no_grad():
            return torchsde.sdeint(Tokens(), y, times, bm=path, method="euler", dt=1 / layers)

    return run


def torch_run(replicas: int, tokens: int, dim: int, layers: int, width: int | None = None) -> Callable[[], Any]:
    """PyTorch, eager: the limit, or with ``width`` the finite transformer with its weights drawn."""
    import torch

    h, jitter = 1 / layers, JITTER * torch.eye(tokens)
    kappa = closed_form(dim, torch)

    def increment(x: Any) -> Any:
        if width is None:
            return torch.linalg.cholesky(kappa(x @ x.transpose(1, 2)) + jitter) @ torch.randn(x.shape)
        weights = torch.randn(replicas, width, dim)
        hidden = torch.relu(x @ weights.transpose(1, 2) / dim**0.5 + SIGMA * torch.randn(replicas, 1, width))
        return hidden @ torch.randn(replicas, width, dim) / width**0.5 + SIGMA * torch.randn(replicas, 1, dim)

    def run() -> Any:
        x = torch.from_numpy(start(replicas, tokens, dim))
        with torch.no_grad():
            for _ in range(layers):
                x = torch.nn.functional.normalize(x + h * torch.softmax(x @ x.transpose(1, 2), -1) @ x, dim=-1)
                x = torch.nn.functional.normalize(x + h**0.5 * increment(x), dim=-1)
        return x

    return run
