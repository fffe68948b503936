"""Commands that compute the theory, without a simulation: theory, pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from synchronoise.cli.common import LawFlags, Overwrite, app, flag, given, numbers, report
from synchronoise.errors import RunError, UserError


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PairFlags(LawFlags):
    """What the law of two tokens depends on."""

    attention: Annotated[
        Literal["none", "softmax", "unnormalised"] | None, Parameter(help="Attention of the tokens (none).")
    ] = None
    attention_scale: Annotated[float | None, flag("attention_scale")] = None


def pair_law(flags: PairFlags) -> dict[str, Any]:
    """The checked options of two tokens; without --attention there is none."""
    from synchronoise.config import configure

    config = configure({"attention": "none", **given(flags)})
    if config.attention == "none" and flags.attention_scale is not None:
        raise UserError("--attention-scale without attention changes nothing", mend="add --attention softmax")
    names = ("activation", "dim", "sigma_u", "sigma_w", "beta", "attention", "attention_scale")
    return {name: getattr(config, name) for name in names}


@app.command
def theory(
    *,
    flags: PairFlags = PairFlags(),
    map: Annotated[
        tuple[str, str] | None,
        Parameter(
            help="Phase map over two of dim, sigma_u, sigma_w, gain, attention_scale, beta; or sigma_u=0:1:21.",
            negative=(),
        ),
    ] = None,
    certify: Annotated[
        bool, Parameter(help="Proven intervals and signs of λ_1, λ̄ and λ̄' instead (extra `certify`).", negative=())
    ] = False,
    out: Annotated[Path | None, Parameter(help="The file of a map (map.nc); its figure goes beside it.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Exponents and rates, as one JSON object, or a phase map of them.

    The kernel's values κ(1) and κ'(1), the Lyapunov spectrum, the rates of the energy, the fate of two tokens, and
    in words whether tokens synchronise.  With --attention also what attention changes.
    """
    if map is None and (out is not None or overwrite):
        raise UserError("--out and --overwrite are about a map", mend="add --map X Y, or leave them out")
    if certify:
        from synchronoise.theory.certify import certificate

        law = pair_law(flags)
        if map is not None or law["attention"] != "none":
            raise UserError("--certify is about the noise alone at one point", mend="leave out --map and --attention")
        result = certificate(*(law[name] for name in ("activation", "dim", "sigma_u", "sigma_w", "beta")))
        report(result, as_json=True)
        refused = [entry["refused"] for entry in result.values() if "refused" in entry]
        if refused:
            raise RunError("; ".join(refused))
        return
    if map is None:
        from synchronoise.theory import theory_report

        report(theory_report(**pair_law(flags)), as_json=True)
        return
    from synchronoise.plots_theory import check_map_output, save_phase_map
    from synchronoise.theory.maps import phase_map

    for name in given(flags).keys() & {axis.partition("=")[0] for axis in map}:
        idle = name.replace("_", "-")
        raise UserError(f"--{idle} and an axis of the map", mend=f"leave out --{idle}, or choose another axis")
    out = out or Path("map.nc")
    check_map_output(out, overwrite=overwrite)
    phase = phase_map(*map, progress=True, **pair_law(flags))
    report(save_phase_map(phase, out), as_json=True)


@app.command
def pair(
    *,
    flags: PairFlags = PairFlags(),
    observable: Annotated[str, Parameter(help="overlap, distance2, log_distance, energy, exceedance or quantiles.")] = (
        "energy"
    ),
    times: Annotated[str, Parameter(help="Comma-separated.")] = "0.5,2,5",
    rho0: Annotated[float | None, Parameter(help="Overlap at time 0; without it two uniform tokens.")] = None,
    uniform: Annotated[bool, Parameter(help="Two uniform tokens (the default).", negative=())] = False,
    noise: Annotated[Literal["mlp", "none"], Parameter(help="The MLP's Gaussian field, or only the noises below.")] = (
        "mlp"
    ),
    private: Annotated[float, Parameter(help="Deviation of noise of each token's own.")] = 0.0,
    vector: Annotated[float, Parameter(help="Deviation of one Brownian vector for all.")] = 0.0,
    values: Annotated[float, Parameter(help="Deviation of random value matrices.")] = 0.0,
    threshold: Annotated[
        float | None, Parameter(help="Of exceedance, P(overlap > threshold).", show_default="0.9")
    ] = None,
    levels: Annotated[
        str | None, Parameter(help="Of quantiles, comma-separated.", show_default="0.05,0.25,0.5,0.75,0.95")
    ] = None,
) -> None:
    """E f(ρ_t) for the overlap of two tokens, without Monte Carlo, as one JSON object."""
    from synchronoise.theory import pair_report
    from synchronoise.theory.kolmogorov import OBSERVABLES

    if uniform and rho0 is not None:
        raise UserError("--uniform and --rho0 are two starts", mend="give one of them")
    if noise == "none":
        for name in given(flags).keys() & {"activation", "sigma_u", "sigma_w"}:
            idle = name.replace("_", "-")
            raise UserError(f"--{idle} is about the MLP, and there is none", mend=f"leave out --noise or --{idle}")
    still = observable in OBSERVABLES and observable != "energy"
    if flags.beta is not None and still and not values and flags.attention in (None, "none"):
        raise UserError(f"--beta changes no {observable} here", mend="leave it out, or add --attention or --values")
    noises = {"mlp": noise == "mlp", "private": private, "vector": vector, "values": values}
    asked = {"threshold": threshold, "levels": None if levels is None else numbers("levels", levels)}
    result = pair_report(observable, numbers("times", times), rho0, **pair_law(flags), **noises, **asked)
    report(result, as_json=True)
