"""The command about real transformers: probe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from synchronoise.cli.common import Json, Overwrite, app, report
from synchronoise.errors import UserError


@app.command
def probe(
    model: str | None = None,
    /,
    *,
    config: Annotated[str | None, Parameter(help="A Hugging Face configuration, config.json: random weights.")] = None,
    module: Annotated[str | None, Parameter(help="package.module:factory, a function that makes a module.")] = None,
    inputs: Annotated[
        str, Parameter(help="random, a .txt (with a checkpoint's tokenizer), or a .npy of embeddings.")
    ] = ("random"),
    tokens: Annotated[int, Parameter(help="Number of tokens.")] = 64,
    seeds: Annotated[int, Parameter(help="Models drawn, or inputs of a given one.")] = 8,
    depth: Annotated[int | None, Parameter(help="Another number of blocks.")] = None,
    blocks: Annotated[str | None, Parameter(help="The list of blocks, where it is not found: encoder.layers.")] = None,
    beta: Annotated[float, Parameter(help="β of the energy.")] = 1.0,
    light: Annotated[bool, Parameter(help="Only what costs O(tokens), with fused attention.", negative=())] = False,
    predict: Annotated[bool, Parameter(help="The prediction alone; needs no PyTorch.", negative=())] = False,
    confirm: Annotated[bool, Parameter(help="Measure every row of the what-if table.", negative=())] = False,
    save_embeddings: Annotated[
        str | None, Parameter(help="A .npy for what enters the first block: simulate --start FILE.")
    ] = None,
    out: Annotated[Path, Parameter(help="The result; a figure goes beside it.")] = Path("probe.nc"),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """A real transformer layer by layer: how similar its tokens become, beside what the theory predicts.

    Parameters
    ----------
    model
        gpt2-small, gpt2-medium, gpt2-xl, bert-base, vit-base, albert-base, llama-small or pythia-160m (random
        weights, no download), or the folder of a local checkpoint.
    """
    from synchronoise.probe import INSTALL
    from synchronoise.probe.report import Asked, predict_only, table
    from synchronoise.probe.report import probe as run

    asked = Asked(model, config, module, inputs, tokens, seeds, depth, blocks, beta, light, save_embeddings)
    if predict:
        if confirm or blocks is not None or light or save_embeddings is not None:
            raise UserError(
                "--predict measures nothing", mend="leave out --confirm, --blocks, --light and --save-embeddings"
            )
        result = predict_only(asked)
    else:
        try:
            result = run(asked, out, overwrite=overwrite, confirm=confirm, progress=True)
        except ModuleNotFoundError as missing:
            if missing.name not in ("torch", "transformers"):
                raise
            raise UserError(f"probe needs {missing.name}", mend=f"{INSTALL}, or --predict") from None
    if json:
        report(result, as_json=True)
        return
    if "note" in result:
        print(f"synchronoise: {result['note']}", file=sys.stderr)
    print(table(result))
