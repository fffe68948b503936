"""`synchronoise converge corollary`: N, L and m -> ∞ together, one error on one grid   (THEORY §3, §4).

N tokens of a transformer of L layers and width m against the SPDE:  E W_2²(μ^{N,L,m}_T, μ_T) ~ a/L + b/m + c N^{-1}.
The layers are coupled with the limit's field (THEORY §3) at N tokens and at a quadrature of μ_0 at once.  Without
attention no token sees another given the noise, so the limit of the quadrature solves the SPDE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._arrays import PRNGKey, Tokens
from ..clusters import check_result
from ..convergence.coupling import coupled
from ..convergence.experiments import prepare_experiment, provenance
from ..convergence.fit import estimate, resampled_means
from ..errors import UserError
from ..model import Transformer
from ..noise import DrawnMLP
from ..plots_flow import save_figure
from ..plots_meanfield import corollary_figure
from ..progress import Progress
from ..routes import law_of
from ..sphere import Start, Uniform
from ..store import save
from .initial import nodes
from .wasserstein import wasserstein2

TOKENS, LAYERS, WIDTHS = (8, 32), (4, 16), (8, 64)
FINEST = 32  # steps of the limit
POINTS = 24  # of the quadrature: its own W_2² is 6e-3
EXPLAINED = 0.9  # share of the variance of log error


class WithQuadrature(Start):
    """Tokens iid uniform on the circle, and the points of a quadrature after them."""

    tokens: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __call__(self, key: PRNGKey, dtype: Any) -> Tokens:
        iid = Uniform(self.tokens - POINTS, self.dim)(key, dtype)
        return jnp.concatenate([iid, jnp.asarray(nodes(self.dim, POINTS), dtype)])


def converge_corollary(
    given: Mapping[str, object], out: str | Path, *, levels: Sequence[float] | None = None,
    widths: Sequence[float] | None = None, overwrite: bool = False, progress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """E W_2² on the grid of ``levels`` N × `LAYERS` × ``widths`` m, and the fit a/L + b/m + c/N; on the circle.

    Writes ``out`` and a figure beside it.  Raises `UserError` for attention and for other dimensions: there W_2 has
    other rates.
    """
    config = prepare_experiment("corollary", given).config
    if config.dim != 2 or config.attention != "none" or config.noise != "mlp":
        raise UserError(
            "converge corollary", got=f"dim {config.dim}, attention {config.attention}, noise {config.noise}",
            expected="dim 2, no attention and an mlp", mend="use converge tokens",
        )  # fmt: skip
    tokens = [int(n) for n in levels or TOKENS]
    narrow = [int(m) for m in widths or WIDTHS]
    if min(len(tokens), len(narrow)) < 2 or min(*tokens, *narrow) < 1:
        raise UserError("levels and widths", got=[tokens, narrow], expected="two or more whole numbers >= 1 each")
    out = check_result(out, "corollary", overwrite=overwrite)
    law = law_of(config)
    error = np.empty((len(tokens), len(LAYERS), len(narrow), config.replicas))
    with Progress("corollary", error[..., 0].size * config.replicas, "replica", shown=progress) as bar:
        for i, n in enumerate(tokens):
            for j, depth in enumerate(LAYERS):
                for k, m in enumerate(narrow):
                    model = Transformer(None, DrawnMLP(law, m), layers=depth, horizon=config.horizon)
                    run = coupled(model, WithQuadrature(n + POINTS, 2), refine=FINEST // depth,
                                  replicas=config.replicas, seed=config.seed, progress=bar)  # fmt: skip
                    pairs = zip(run.finite[:, :n], run.limit[:, n:], strict=True)
                    error[i, j, k] = [wasserstein2(x, y) for x, y in pairs]
    means = resampled_means(np.moveaxis(error, -1, 0))  # the same noises in every cell, so whole replicas
    mean = means[0].reshape(error.shape[:-1])
    basis = np.stack(
        np.broadcast_arrays(1 / np.array(LAYERS)[:, None], 1 / np.array(narrow), 1 / np.array(tokens)[:, None, None]),
        axis=-1,
    ).reshape(-1, 3)  # fmt: skip
    found = np.array([_relative_fit(basis, row) for row in means])
    terms = {name: estimate(found[:, index]) for index, name in enumerate(("a", "b", "c"))}
    fitted = (basis @ found[0]).reshape(mean.shape)
    left = np.log(np.maximum(fitted, 1e-300) / mean)
    explained = float(1 - np.sum(left**2) / np.sum((np.log(mean) - np.log(mean).mean()) ** 2))
    falls = all(term.low > 0 for term in terms.values())
    off = float(np.abs(np.expm1(left)).max())
    verdict = f"every limit lowers the error; a/L + b/m + c/N describes it to {off:.0%}"
    if not (falls and explained > EXPLAINED):
        verdict = (
            f"a/L + b/m + c/N explains {explained:.0%}; {'every' if falls else 'not every'} limit lowers the error"
        )
    summary: dict[str, Any] = {
        "levels": {"tokens": tokens, "layers": list(LAYERS), "width": narrow}, "error": mean.tolist(),
        "slope": {name: term.value for name, term in terms.items()},
        "ci": {name: [term.low, term.high] for name, term in terms.items()}, "theory": "a/L + b/m + c/N",
        "r_squared": explained, "largest_deviation": off, "verdict": verdict,
    }  # fmt: skip
    dataset = xr.Dataset(
        {
            "error": (("tokens", "layers", "width", "replica"), error, {"long_name": "W_2² at T"}),
            "fit": (("tokens", "layers", "width"), fitted, {"long_name": "a/L + b/m + c/N"}),
            "interval": (
                ("end", "tokens", "layers", "width"),
                np.quantile(means[1:], [0.025, 0.975], axis=0).reshape(2, *mean.shape),
                {"long_name": "95 % interval of the mean W_2²"},
            ),
        },
        {"tokens": tokens, "layers": list(LAYERS), "width": narrow},
    )
    made_by = provenance("corollary", config, tokens, narrow, summary=summary)
    save(dataset, out, made_by, kind="corollary")
    words = f"{config.activation} (σ_U = {config.sigma_u:g}), no attention, d = 2, T = {config.horizon:g}, " + (
        f"{config.replicas} noises, seed {config.seed}"
    )
    return {**summary, "file": str(out), "picture": save_figure(corollary_figure(dataset, words), out)}


def _relative_fit(basis: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The coefficients of the columns of ``basis`` by least squares of the relative errors."""
    return np.linalg.lstsq(basis / error[:, None], np.ones(len(error)), rcond=None)[0]
