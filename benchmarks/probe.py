"""What probing costs: time beside the fused forward pass, and memory beyond it.  One JSON line.

    .venv/bin/python benchmarks/probe.py [layers] [tokens] [dim]        (48 1024 768: a few minutes)

`light` and `full` are the added processor time over the plain forward pass (median of 5, the three taken in turn),
`*_megabytes` the peak memory of each beyond the memory before it (Linux), `kept_megabytes` what keeping every
activation would take.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers

from synchronoise.probe import measure

ROUNDS = 5


def memory(kind: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def main(layers: int = 48, tokens: int = 1024, dim: int = 768) -> None:
    config = transformers.GPT2Config(n_layer=layers, n_embd=dim, n_head=dim // 64, n_positions=tokens)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="sdpa").eval()
    inputs = {"input_ids": torch.randint(0, config.vocab_size, (1, tokens)), "use_cache": False}

    def forward() -> None:
        with torch.inference_mode():
            model(**inputs)

    runs = {
        "forward": forward,
        "light": lambda: measure(model, inputs, full=False),
        "full": lambda: measure(model, inputs),
    }
    peaks, times = {}, {name: [] for name in runs}
    forward()
    for name, run in runs.items():  # the first round warms up and shows the peak of each
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        run()
        peaks[name] = memory("VmHWM") - before
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    # Ratios within a round, of processor time: other work on the machine disturbs both least.
    ratios = {
        name: statistics.median(a / b for a, b in zip(times[name], times["forward"], strict=True)) - 1
        for name in ("light", "full")
    }
    result = {
        "layers": layers, "tokens": tokens, "dim": dim, "threads": torch.get_num_threads(),
        "forward_seconds": round(seconds["forward"], 3), **{name: round(value, 3) for name, value in ratios.items()},
        **{f"{name}_megabytes": round(peak, 1) for name, peak in peaks.items()},
        "kept_megabytes": round(2 * layers * tokens * dim * 4 / 2**20, 1),
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
