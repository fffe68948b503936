"""Measure a PyTorch transformer layer by layer, by hooks: each activation is seen once and forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from synchronoise.errors import RunError, UserError
from synchronoise.probe.layouts import Layout, find_layout
from synchronoise.probe.prediction import SITES
from synchronoise.probe.statistics import ALL, FULL, LIGHT, QUANTILES, attention_entropy, token_statistics

FUSED = "no attention entropy: fused attention returns no weights (attn_implementation='eager' does)"


def measure(
    model: nn.Module,
    inputs: torch.Tensor | Mapping[str, Any],
    *,
    blocks: str | None = None,
    special_first: bool = True,
    full: bool = True,
    beta: float = 1.0,
) -> xr.Dataset:
    """Statistics of the tokens by input, layer and site of one forward pass.

    `model` is any module with a list of blocks (`find_layout`; `blocks` names it where it is not found), `inputs` what
    its forward takes: a mapping of keyword arguments (with `attention_mask`, padding is left out) or one tensor.  Sites
    as in `predict`.  With `special_first` the first token is kept out of all but `first_cosine` and `first_norm`.
    Without `full` only what costs O(N d).  The model runs in evaluation mode and without gradients; no activation
    outlives its hook.

    Raises `UserError` for an unknown layout or inputs that the model does not take, `RunError` for NaN activations.

    >>> _ = torch.manual_seed(0)
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
    >>> measure(encoder, torch.randn(1, 8, 16), special_first=False).mean_cosine.sizes["layer"]
    2
    """
    layout = find_layout(model, blocks)
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    recorder = _Recorder(layout, mask, special_first, full, beta)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode(), ExitStack() as hooks:
            recorder.attach(hooks)
            try:
                _call(model, inputs)
            except (TypeError, RuntimeError, IndexError, ValueError) as failure:
                if isinstance(failure, UserError | RunError):
                    raise
                line = " ".join(str(failure).split())[:200]
                raise UserError(
                    f"{type(model).__name__} does not take these inputs: {line}", mend="check their shape"
                ) from None
    finally:
        for module in training:
            module.training = True
    return recorder.dataset()


def embeddings(
    model: nn.Module, inputs: torch.Tensor | Mapping[str, Any], *, blocks: str | None = None
) -> torch.Tensor:
    """The tokens that enter the first block, (batch, N, d).  Raises `UserError` as `measure` does.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
    >>> x = torch.randn(1, 8, 16)
    >>> torch.equal(embeddings(encoder, x), x)
    True
    """
    seen: list[torch.Tensor] = []
    first = find_layout(model, blocks).blocks[0]
    handle = first.register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append(_stream(args, kwargs).clone()) if not seen else None,
        with_kwargs=True,
    )
    try:
        measure(model, inputs, blocks=blocks, special_first=False, full=False)
    finally:
        handle.remove()
    return seen[0]


def _call(model: nn.Module, inputs: torch.Tensor | Mapping[str, Any]) -> None:
    if isinstance(inputs, Mapping):
        model(**inputs)
    else:
        model(inputs)


class _Recorder:
    """The hooks of one forward pass and what they saw; the layer is counted, so that a shared block is many layers."""

    def __init__(self, layout: Layout, mask: torch.Tensor | None, special_first: bool, full: bool, beta: float):
        self.layout, self.special_first, self.full, self.beta = layout, special_first, full, beta
        self.mask = None if mask is None else mask.bool()
        self.layer = 0
        self.rows: dict[tuple[int, str], list[tuple[dict[str, float], list[float]]]] = {}
        self.entropy: dict[int, list[float]] = {}
        self.fused = False
        self.overlaps: torch.Tensor | None = None

    def attach(self, hooks: ExitStack) -> None:
        def on(module: nn.Module | None, before: bool, action: Callable[..., None]) -> None:
            if module is None:
                return
            if before:
                handle = module.register_forward_pre_hook(action, with_kwargs=True)
            else:
                handle = module.register_forward_hook(action)
            hooks.callback(handle.remove)

        def enter(_module, args, kwargs) -> None:
            if self.layer == 0:
                self.see("embedding", _stream(args, kwargs))

        def middle(_module, args, kwargs) -> None:
            self.layer += 1
            self.see("resid_mid", _stream(args, kwargs))
            self.layer -= 1

        def leave(_module, _args, output) -> None:
            self.layer += 1
            self.see("resid_post", _first(output))

        def final(_module, _args, output) -> None:
            self.see("final_norm", _first(output))

        def attended(_module, _args, output) -> None:
            weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            if isinstance(weights, torch.Tensor) and weights.ndim == 4:
                self.entropy[self.layer + 1] = [attention_entropy(self.kept(w, b)) for b, w in enumerate(weights)]
            else:
                self.fused = True

        on(self.layout.blocks[0], True, enter)
        for block in dict.fromkeys(self.layout.blocks):
            on(self.layout.middle(block), True, middle)
            if self.full:
                on(self.layout.attention(block), False, attended)
            on(block, False, leave)
        on(self.layout.final_norm, False, final)

    def kept(self, weights: torch.Tensor, row: int) -> torch.Tensor:
        """The weights between tokens that are no padding."""
        if self.mask is None:
            return weights
        keep = self.mask[row]
        return weights[:, keep][:, :, keep]

    def see(self, site: str, x: torch.Tensor) -> None:
        name = "the embedding" if self.layer == 0 else f"layer {self.layer}"
        if x.ndim != 3:
            raise UserError(
                f"{name}: activations",
                got=f"shape {tuple(x.shape)}",
                expected="(batch, tokens, dim)",
                mend="use batch_first",
            )
        seen = []
        for row, tokens in enumerate(x):
            tokens = tokens if self.mask is None else tokens[self.mask[row]]
            if len(tokens) < 2 + self.special_first:
                raise UserError(
                    "tokens", got=len(tokens), expected=f"at least {2 + self.special_first}", mend="give a longer input"
                )
            if not torch.isfinite(tokens).all():
                raise RunError(f"{name} ({site}) has NaN or infinite activations")
            seen.append(
                token_statistics(tokens.float(), special_first=self.special_first, full=self.full, beta=self.beta)
            )
        self.rows[self.layer, site] = seen
        if site == "embedding" and self.mask is None:
            self.overlaps = torch.einsum("bid,bjd->bij", x.float(), x.float()) / x.shape[-1]

    def dataset(self) -> xr.Dataset:
        depth, batch = self.layer, len(next(iter(self.rows.values())))
        names = [*LIGHT, *(FULL if self.full else ())]
        shape = (batch, depth + 1, len(SITES))
        values = {name: np.full(shape, np.nan) for name in names}
        quantiles = np.full((*shape, len(QUANTILES)), np.nan)
        for (layer, site), seen in self.rows.items():
            at = SITES.index(site)
            for row, (statistics, levels) in enumerate(seen):
                for name in names:
                    values[name][row, layer, at] = statistics[name]
                if levels:
                    quantiles[row, layer, at] = levels
        dims = ("input", "layer", "site")
        data: dict[str, Any] = {name: (dims, array, {"long_name": ALL[name]}) for name, array in values.items()}
        coords: dict[str, Any] = {"layer": np.arange(depth + 1), "site": list(SITES)}
        if self.full:
            entropy = np.full(shape[:2], np.nan)
            for layer, rows in self.entropy.items():
                entropy[:, layer] = rows
            data["attention_entropy"] = (dims[:2], entropy, {"long_name": ALL["attention_entropy"]})
            data["cosine_quantiles"] = (
                (*dims, "quantile"),
                quantiles,
                {"long_name": "quantiles of the cosine over pairs"},
            )
            coords["quantile"] = list(QUANTILES)
        if self.overlaps is not None:
            data["embedding_overlaps"] = (("input", "token", "other_token"), self.overlaps.double().numpy())
        note = FUSED if self.fused and not self.entropy else ""
        return xr.Dataset(data, coords, {"note": note})


def _first(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple) else output.last_hidden_state


def _stream(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The tokens that a module is given: its first argument, by position or by name."""
    return args[0] if args else next(v for v in kwargs.values() if isinstance(v, torch.Tensor))


def measure_seeds(
    build: Callable[[int], nn.Module],
    inputs: Callable[[nn.Module, int], Any],
    seeds: int,
    *,
    done: Callable[[], None] = lambda: None,
    **options: Any,
) -> xr.Dataset:
    """Means of `measure` over random models and inputs, and their standard errors as `*_se`.

    `build(seed)` makes a model, `inputs(model, seed)` what it is given; `done` is called after each.  Standard errors
    are over seeds where there are several (the inputs of one model are not independent), else over inputs.
    """
    results = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = build(seed)
        results.append(measure(model, inputs(model, seed), **options))
        done()
    every = xr.concat(results, "seed")
    across = "seed" if seeds > 1 else "input"
    independent = every.mean("input" if seeds > 1 else "seed")
    count = independent.sizes[across]
    out = independent.mean(across, keep_attrs=True)
    if count > 1:
        spread = independent.std(across, ddof=1) / math.sqrt(count)
        out = out.assign({f"{name}_se": spread[name] for name in ALL if name in spread})
    for name, values in out.data_vars.items():
        values.attrs.update(every[str(name)].attrs if name in every else {})
    return out.assign_attrs(runs=count, across=across, note=results[0].attrs["note"])
