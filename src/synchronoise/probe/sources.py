"""The models and inputs that a user can name: known names, configurations, checkpoint folders, factories (torch)."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from synchronoise.errors import UserError, did_you_mean
from synchronoise.probe.architectures import CONFIGURATIONS, Architecture, architecture, configuration

UNKNOWN_SHARE = 0.5  # of the tokens of a text, beyond which the tokenizer does not speak its language


@dataclass(frozen=True)
class Source:
    """A model that can be built from a seed, and what it is given.

    `build(seed)` draws weights anew (`random`) or loads them; `inputs(model, seed)` is what `measure` takes;
    `architecture` is None where it cannot be read.  `plain` inputs have the law that the architecture knows; others
    (texts, vectors) start a prediction from their measured overlaps.  `most` is the number of different runs there are.
    """

    name: str
    build: Callable[[int], nn.Module]
    inputs: Callable[[nn.Module, int], Any]
    architecture: Architecture | None
    random: bool
    special_first: bool
    plain: bool = True
    folder: Path | None = None
    most: int | None = None


def from_configuration(
    source: str | Path | Mapping[str, Any], *, tokens: int, depth: int | None = None, eager: bool = True
) -> Source:
    """Random weights of a known name or a Hugging Face configuration; nothing is downloaded.

    >>> tiny = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    >>> type(from_configuration(tiny, tokens=8).build(0)).__name__
    'BertModel'
    """
    transformers = _transformers()
    given = _deepened(configuration(source), depth)
    which = architecture(given)
    if isinstance(source, str) and source in CONFIGURATIONS:
        which = replace(which, name=source)
        if given["model_type"] == "vit":  # as many patches as make a square
            side = math.ceil(math.sqrt(max(tokens - 1, 1)))
            given["image_size"] = side * given.get("patch_size", 16)
    family = given.pop("model_type")
    config = transformers.CONFIG_MAPPING[family](**given)

    def build(seed: int) -> nn.Module:
        return transformers.AutoModel.from_config(config, attn_implementation="eager" if eager else "sdpa")

    return Source(which.name, build, random_inputs(tokens), which, random=True, special_first=True)


def from_folder(folder: str | Path, *, tokens: int, depth: int | None = None, eager: bool = True) -> Source:
    """The weights of a local checkpoint; `depth` runs shared blocks more often, or the first blocks only.

    Raises `UserError` where the folder holds no checkpoint, or a depth needs weights that it does not have.
    """
    transformers, path = _transformers(), Path(folder)
    given = configuration(path)
    which = replace(architecture(_deepened(given, depth)), name=path.name)
    had = architecture(given).depth
    if which.depth > had and not which.shared_blocks:
        raise UserError("depth", got=which.depth, expected=f"at most {had}", mend="only shared blocks can go deeper")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        config.update(_deepened(config.to_dict(), depth))
        model = transformers.AutoModel.from_pretrained(
            path, config=config, local_files_only=True, attn_implementation="eager" if eager else "sdpa"
        )
    except (OSError, ValueError) as failure:
        raise UserError(
            f"no checkpoint in {path}: {' '.join(str(failure).split())[:160]}", mend="give its folder"
        ) from None
    return Source(
        path.name, lambda seed: model, random_inputs(tokens), which, random=False, special_first=True, folder=path
    )


def from_factory(name: str, *, tokens: int) -> Source:
    """`package.module:factory`, a function without arguments that makes a module, called once for each seed.

    The module gets random token ids if it has a configuration with a vocabulary, else independent normal embeddings.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UserError(
            "module", got=name, expected="package.module:factory", mend="name a function that makes a model"
        )
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as failure:
        raise UserError(f"cannot import {name}: {failure}", mend="is it on PYTHONPATH?") from None
    finally:
        sys.path.pop(0)

    def build(seed: int) -> nn.Module:
        try:
            made = factory()
        except Exception as failure:  # whatever code of the user's raises
            raise UserError(
                f"{name} raised {type(failure).__name__}: {' '.join(str(failure).split())[:160]}", mend="mend it"
            ) from failure
        if not isinstance(made, nn.Module):
            raise UserError(name, got=type(made).__name__, expected="a torch.nn.Module", mend="return the model")
        return made

    from synchronoise.probe.describing import describe

    torch.manual_seed(0)
    which = describe(build(0))
    special = which is not None and which.special_first
    return Source(attribute, build, random_inputs(tokens), which, random=True, special_first=special)


def random_inputs(tokens: int) -> Callable[[nn.Module, int], Any]:
    """Random token ids, images of independent pixels, or independent normal embeddings, as the model takes them."""

    def inputs(model: nn.Module, seed: int) -> Any:
        config = getattr(model, "config", None)
        vocabulary, longest = getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)
        if vocabulary is not None:
            if longest is not None and tokens > longest:
                raise UserError(
                    "tokens", got=tokens, expected=f"at most {longest}", mend="the model has no more positions"
                )
            return {"input_ids": torch.randint(0, vocabulary, (1, tokens))}
        size = getattr(config, "image_size", None)
        if size is not None:
            pixels = torch.randn(1, getattr(config, "num_channels", 3), size, size)
            return {"pixel_values": pixels.to(_precision(model))}
        return torch.randn(1, tokens, _width(model)).to(_precision(model))

    return inputs


def _precision(model: nn.Module) -> torch.dtype:
    """That of the weights: half precision takes no single one."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _width(model: nn.Module) -> int:
    """The size of a token, from the first norm of the model."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return int(module.normalized_shape[-1])
        if hasattr(module, "dim") and isinstance(module.dim, int):
            return module.dim
    raise UserError(
        f"the size of a token of {type(model).__name__} is not known", mend="give embeddings: --inputs x.npy"
    )


def with_inputs(source: Source, inputs: str, *, tokens: int) -> Source:
    """The same model on a text (.txt, with the checkpoint's tokenizer), on embeddings (.npy), or "random" ones.

    A text is cut into pieces of `tokens`, one for each seed in turn.  Embeddings are (tokens, d) or (batch, tokens, d).
    """
    if inputs == "random":
        return source
    path = Path(inputs)
    if path.suffix == ".npy":
        return replace(source, inputs=_vectors(path), plain=False, most=None if source.random else 1)
    if path.suffix != ".txt":
        raise UserError(
            "inputs", got=inputs, expected="random, a .txt or a .npy file", mend=did_you_mean(inputs, ["random"])
        )
    if source.folder is None:
        raise UserError(
            f"a text needs a tokenizer, which {source.name} has not", mend="give a checkpoint folder, or a .npy"
        )
    pieces = _text(path, source.folder, tokens)
    given = lambda model, seed: {"input_ids": torch.tensor([pieces[seed]])}  # noqa: E731
    return replace(source, inputs=given, plain=False, most=len(pieces))


def _vectors(path: Path) -> Callable[[nn.Module, int], Any]:
    try:
        x = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as failure:
        raise UserError(f"cannot read {path}: {failure}", mend="give a .npy array") from None
    if x.ndim not in (2, 3) or x.dtype.kind != "f" or not np.isfinite(x).all():
        raise UserError(
            str(path), got=f"{x.dtype} of shape {x.shape}", expected="finite floats (tokens, d) or (batch, tokens, d)",
            mend="save such an array",
        )  # fmt: skip
    vectors = torch.from_numpy(x if x.ndim == 3 else x[None])

    def given(model: nn.Module, seed: int) -> Any:
        cast = vectors.to(_precision(model))
        return {"inputs_embeds": cast} if hasattr(model, "config") else cast

    return given


def _text(path: Path, folder: Path, tokens: int) -> list[list[int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise UserError(f"cannot read {path}: {failure}", mend="give a text in UTF-8") from None
    try:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as failure:
        raise UserError(
            f"no tokenizer in {folder}: {' '.join(str(failure).split())[:120]}", mend="give a .npy"
        ) from None
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    unknown = ids.count(tokenizer.unk_token_id) if tokenizer.unk_token_id is not None else 0
    if len(ids) < 3:
        raise UserError(
            f"{path}",
            got=f"{len(ids)} tokens",
            expected="at least 3",
            mend=f"a longer text, or the tokenizer in {folder}",
        )
    if unknown > UNKNOWN_SHARE * len(ids):
        raise UserError(
            f"{path}: {unknown} of {len(ids)} tokens are unknown to the tokenizer in {folder}", mend="give another text"
        )
    pieces = [ids[i : i + tokens] for i in range(0, len(ids), tokens)]
    return [piece for piece in pieces if len(piece) == tokens] or [ids]


def _deepened(given: Mapping[str, Any], depth: int | None) -> dict[str, Any]:
    """The configuration with another depth under whichever name it has."""
    if depth is None:
        return dict(given)
    return {**given, "n_layer" if given.get("model_type") == "gpt2" else "num_hidden_layers": depth}


def _transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
