"""`make bench`: Synchronoise against what one would use otherwise, in one run; JSON lines, a table and a figure.

    python benchmarks/bench.py [CASE ...] --out benchmarks/

Each case runs in a process of its own, so that its memory is its own.  Ratios count, not times: all methods of a case
run one after the other on the same machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import others
import parts
from timing import best_of_threads, line, machine, peak_memory, seconds

ENSEMBLES = {(256, 32, 16): 100, (4096, 2, 8): 200, (1, 8, 8): 20_000, (8, 256, 128): 20}
WIDTHS = [(8, 32, 128, 2048), (8, 64, 64, 512), (64, 2, 8, 16), (8, 64, 5, 512), (8, 8, 512, 512)]


def ours(model: Any, replicas: int, tokens: int, dim: int, *, observed: bool = False) -> Callable[[], Any]:
    """A run that keeps its last tokens alone, as the other programs do, or what `simulate` looks at by default."""
    import synchronoise as sn

    start = others.start(replicas, tokens, dim)
    if observed:
        return lambda: sn.simulate(model, start, replicas=replicas)
    return lambda: sn.simulate(model, start, replicas=replicas, every=max(1, model.layers // 20), observers=())


def limit(dim: int, layers: int) -> Any:
    import synchronoise as sn

    return sn.Transformer(sn.SoftmaxAttention(beta=1.0), sn.GaussianField(others.law(dim)), layers=layers, horizon=1.0)


def ensemble() -> None:
    """(a) Microseconds per replica and step of the limit."""
    import jax

    from synchronoise.simulation import replicas_at_once, workers

    for (replicas, tokens, dim), layers in ENSEMBLES.items():
        size, per = (replicas, tokens, dim), replicas * layers
        setting = f"{replicas} x {tokens} x d={dim}"

        def report(
            method: str, run: Callable[[], Any], steps: int = per, clock: Any = seconds, setting: str = setting
        ) -> None:
            median, first = clock(run)
            line("ensemble", setting, method, median / steps * 1e6, "us per replica-step", first_call_s=first)

        model = limit(dim, layers)
        report("synchronoise", ours(model, *size))
        report("synchronoise, every layer observed", ours(model, *size, observed=True))
        report("NumPy", others.numpy_run(*size, layers))
        cores = min(workers(jax.local_devices()), replicas)
        if cores > 1:
            report("NumPy, a thread for each core", others.numpy_run(*size, layers, threads=cores))
        if replicas > 1:
            whole = parts.sum_of_parts(*size, batch=replicas, threads=1, layers=max(5, layers // 5))
            line("ensemble", setting, "sum of parts", sum(whole.values()), "us per replica-step", parts=whole)
            how = {"batch": replicas_at_once(model, tokens, dim), "threads": workers(jax.local_devices())}
            batched = parts.sum_of_parts(*size, **how, layers=max(5, layers // 5))
            line("ensemble", setting, "sum of parts, in our batches and threads", sum(batched.values()),
                 "us per replica-step", parts=batched)  # fmt: skip
        report("diffrax, unsafe path", others.diffrax_run(*size, layers, unsafe=True))
        if tokens <= 32:
            few = max(10, layers // 5)
            report("diffrax, default tree", others.diffrax_run(*size, few, unsafe=False), replicas * few)
            report("torchsde", others.torchsde_run(*size, few), replicas * few, best_of_threads)
        few = max(10, layers // 5)
        report("PyTorch eager", others.torch_run(*size, few), replicas * few, best_of_threads)


def width() -> None:
    """(b) Microseconds per replica and layer of a finite width."""
    import synchronoise as sn

    for replicas, tokens, dim, m in WIDTHS:
        layers, law = 60 if m > 1000 else 200, others.law(dim)
        noises = {
            "weights drawn": sn.DrawnMLP(law, m),
            "exact in law": sn.InLawMLP(law, m),
            "chosen by size": sn.mlp_noise(law, m, tokens),
            "limit": sn.GaussianField(law),
        }
        setting = f"N={tokens}, d={dim}, m={m}"
        for method, noise in noises.items():
            model = sn.Transformer(sn.SoftmaxAttention(beta=1.0), noise, layers=layers, horizon=1.0)
            median, first = seconds(ours(model, replicas, tokens, dim))
            line("width", setting, method, median / (replicas * layers) * 1e6, "us per replica-layer",
                 first_call_s=first, route=noise.route)  # fmt: skip
        median, _ = best_of_threads(others.torch_run(replicas, tokens, dim, layers, m))
        line("width", setting, "PyTorch eager", median / (replicas * layers) * 1e6, "us per replica-layer")


def large() -> None:
    """(c) Seconds per step of one large system: the limit by narrow features, d = 64."""
    import jax
    import jax.numpy as jnp

    import synchronoise as sn
    from synchronoise.attention import BLOCK

    n, dim, layers = 20_000, 64, 5
    noise = sn.DrawnMLP(others.law(dim), 16)
    model = sn.Transformer(sn.SoftmaxAttention(beta=1.0), noise, layers=layers, horizon=0.1)
    median, first = seconds(ours(model, 1, n, dim))
    line("large", f"N={n}, d={dim}", "synchronoise", median / layers, "s per step", first_call_s=first,
         peak_GB=peak_memory())  # fmt: skip
    x = jnp.asarray(others.start(1, n, dim)[0])
    rows = BLOCK // n

    @jax.jit
    def products(x: Any) -> Any:
        return jax.lax.map(lambda row: (row[None] @ x.T @ x)[0], x, batch_size=rows)

    median, _ = seconds(lambda: jax.block_until_ready(products(x)))
    line("large", f"N={n}, d={dim}", "its matrix products alone", median, "s per step")
    sizes, times = (10_000, 100_000, 1_000_000), []
    for n in sizes:
        model = sn.Transformer(None, sn.DrawnMLP(others.law(dim), 16), layers=4, horizon=0.1)
        times.append(seconds(ours(model, 1, n, dim))[0] / 4)
        line("large", f"N={n}, d={dim}, no attention", "synchronoise", times[-1], "s per step", peak_GB=peak_memory())
    _exponent("large", f"d={dim}, no attention", sizes, times)


def _exponent(case: str, setting: str, sizes: tuple[int, ...], times: list[float]) -> None:
    slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    line(case, setting, "synchronoise", slope, "exponent of time in N")


def tokens() -> None:
    """(d) Seconds per step of many tokens on the circle and on S², attention in harmonics; the field apart."""
    import synchronoise as sn

    sizes = (10_000, 100_000, 1_000_000)
    for dim, beta in ((2, 5.0), (3, 1.0), (3, 20.0)):
        attention, times = sn.HarmonicAttention(beta, 1.0, dim=dim, dtype="float32"), []
        where = f"{'circle' if dim == 2 else 'S2'}, beta={beta:g}"
        for n in sizes:
            model = sn.Transformer(attention, None, layers=2, horizon=0.1)
            median, first = seconds(ours(model, 1, n, dim))
            times.append(median / 2)
            line("tokens", f"{where}, N={n}", "harmonic attention", times[-1], "s per step", first_call_s=first,
                 peak_GB=peak_memory())  # fmt: skip
        _exponent("tokens", where, sizes, times)
    for dim in (2, 3):
        model = sn.Transformer(None, sn.DrawnMLP(others.law(dim), 16), layers=2, horizon=0.1)
        median, _ = seconds(ours(model, 1, sizes[-1], dim))
        where = f"{'circle' if dim == 2 else 'S2'}, N={sizes[-1]}"
        line("tokens", where, "field, 16 fresh features", median / 2, "s per step", peak_GB=peak_memory())


def kappa() -> None:
    """κ of a step against exp of the same array, 16 Gram matrices of 32 tokens, nanoseconds per entry."""
    import jax
    import jax.numpy as jnp

    import synchronoise as sn

    jax.config.update("jax_enable_x64", True)
    names = ("relu", "tanh", "gelu", "sigmoid", "silu", "sin:4")
    for dtype in ("float32", "float64"):
        x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (16, 32, 32)).astype(dtype))

        def nanoseconds(function: Callable[..., Any], *numbers: Any, x: Any = x, loops: int = 2000) -> float:
            loop = jax.jit(
                lambda a, *numbers: jax.lax.fori_loop(
                    0, loops, lambda _, a: a * 0.999 + 1e-9 * function(a, *numbers), a
                )
            )
            return seconds(lambda: jax.block_until_ready(loop(x, *numbers)))[0] / loops / x.size * 1e9

        reference = nanoseconds(jnp.exp)
        line("kappa", dtype, "exp", reference, "ns per entry")
        for name in names:
            evaluator = sn.GaussianField(sn.MLP(name, 16, 0.1, 0.1)).evaluators[dtype == "float64"]
            value = nanoseconds(lambda a, kappa: kappa(a, jnp), evaluator)
            line("kappa", dtype, f"kappa of {name}", value, "ns per entry", times_exp=value / reference)


def command() -> None:
    """(e) Seconds of `import synchronoise` and of `synchronoise --help`, processes of their own."""
    for name, what in {
        "python": "pass",
        "import synchronoise": "import synchronoise",
        "synchronoise --help": "from synchronoise.cli import main\nmain(['--help'])",
    }.items():
        argument = [sys.executable, "-c", what]
        median, first = seconds(lambda argument=argument: subprocess.run(argument, capture_output=True, check=True))
        line("command", "a fresh process", name, median, "s", first_call_s=first)


CASES = {"ensemble": ensemble, "width": width, "large": large, "tokens": tokens, "kappa": kappa, "command": command}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES) + " (all)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # this process runs the case
    chosen = parser.parse_args()
    unknown = set(chosen.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown case {sorted(unknown)[0]!r}; known: {', '.join(CASES)}")
    if chosen.here:
        CASES[chosen.cases[0]]()
        return
    rows, before = [], machine()
    if (before["load"] or 0) > 0.5:
        print(f"# the machine is busy (load {before['load']}): other ratios than on an idle one", file=sys.stderr)
    for case in chosen.cases or CASES:
        print(f"# {case}: {CASES[case].__doc__.splitlines()[0]}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        command = [sys.executable, __file__, case, "--here"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for text in process.stdout:
            row = json.loads(text)
            rows.append(row)
            print(f"{row['setting']:<36} {row['method']:<42} {row['value']:>12.4g} {row['unit']}", flush=True)
        if process.wait():
            sys.exit(f"the case {case} failed")
        print(f"# {case}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    from table import write

    write(rows, before, chosen.out)


if __name__ == "__main__":
    main()
