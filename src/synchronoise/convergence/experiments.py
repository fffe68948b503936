"""The experiments of `synchronoise converge`: their settings, sizes and defaults, checked before anything runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import RunConfig, refuse_idle
from ..errors import UserError, did_you_mean
from ..model import Transformer
from ..noise import MLP, DrawnMLP, GaussianField
from ..options import CONVERGE, OPTIONS
from ..routes import law_of
from ..runs import Job, prepare
from ..sphere import Start
from ..store import environment

Number = int | float
Levels = tuple[Number, ...]


@dataclass(frozen=True)
class Plan:
    """The levels of an experiment (layers, or widths for `width`), its second axis, and what else it changes."""

    levels: Levels
    widths: Levels = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


PLANS = {
    "depth": Plan((8, 16, 32, 64, 128, 256)),
    "width": Plan((16, 32, 64, 128, 256, 512)),
    "limits": Plan((8, 16, 32, 64), (16, 32, 64, 128, 256, math.inf)),
    "law": Plan((32, 64, 128), (1, 4, 16, math.inf)),
}
QUICK = {
    "depth": Plan((8, 16, 32, 64), settings={"replicas": 64}),
    "width": Plan((16, 64, 256), settings={"replicas": 64}),
    "limits": Plan((8, 32), (16, 64, math.inf), {"replicas": 64}),
    "law": Plan((16, 32), (1, 16, math.inf), {"replicas": 16_384}),
}


QUICK_WORDS = "few levels and replicas: wide bands; leave out --quick for a measurement"


@dataclass(frozen=True)
class Experiment:
    """One experiment with everything that decides its numbers."""

    what: str
    job: Job
    levels: tuple[int, ...]
    widths: Levels
    quick: bool

    @property
    def law(self) -> MLP:
        """The law of the random layers."""
        return law_of(self.job.config)

    @property
    def start(self) -> Start:
        """Where the tokens of a replica start."""
        assert isinstance(self.job.start, Start)  # `experiment` refuses a file of tokens
        return self.job.start

    def model(self, width: Number, layers: int) -> Transformer:
        """The transformer of this width (∞: the Gaussian field) and depth, by drawn weights."""
        noise = GaussianField(self.law) if math.isinf(width) else DrawnMLP(self.law, int(width))
        return Transformer(self.job.model.attention, noise, layers=layers, horizon=self.job.config.horizon)


def prepare_experiment(what: str, values: Mapping[str, object], **settings: Any) -> Job:
    """The job of an experiment: where ``values`` are silent its ``settings``, then the defaults in `options.CONVERGE`.

    Raises `UserError` for an option that the experiment has not, or that changes nothing.
    """
    changed = CONVERGE[what]
    for name in values:
        if name in changed and changed[name] is None:
            mend = "use --levels" if what != "corollary" or name == "tokens" else "leave it out"
            raise UserError(f"converge {what} has no --{name}", mend=mend)
    if what in ("tokens", "corollary") and values.get("start", "uniform") != "uniform":
        raise UserError("start", got=values["start"], expected="uniform, for iid tokens", mend="leave it out")
    usual = {name: value for name, value in changed.items() if value is not None}
    job = prepare({**usual, "dtype": "float64", **settings, **values})
    refuse_idle(values, job.config, energy=what == "law")
    return job


def provenance(
    what: str, config: RunConfig, levels: Sequence[Number], widths: Sequence[Number] = (), **more: Any
) -> dict[str, Any]:
    """What made a result of `converge`: its command, its settings, but for those that levels stand for, and ``more``.

    >>> from synchronoise.convergence.experiments import experiment
    >>> chosen = experiment("depth", {"activation": "tanh"}, levels=(8, 16))
    >>> provenance("depth", chosen.job.config, chosen.levels)["command"]
    'synchronoise converge depth --activation tanh --levels 8,16'
    """
    usual = {name: option.default for name, option in OPTIONS.items()} | {"dtype": "float64"} | CONVERGE[what]
    settings = config.model_dump(exclude={"width", *(name for name in usual if usual[name] is None)})
    words = ["synchronoise", "converge", what]
    for name, value in settings.items():
        if value != usual[name]:
            words += [f"--{name.replace('_', '-')}", str(value)]
    axes = {"levels": [*levels], "widths": ["inf" if math.isinf(m) else int(m) for m in widths]}
    for name, values in axes.items():
        if values:
            words += [f"--{name}", ",".join(map(str, values))]
    made_by = {"experiment": f"converge {what}", "command": shlex.join(words), "config": settings, **axes}
    return {**made_by, **more, "environment": environment()}


def experiment(
    what: str, values: Mapping[str, object], *, levels: Levels | None = None, widths: Levels | None = None,
    quick: bool = False,
) -> Experiment:  # fmt: skip
    """The experiment of these settings (names of `RunConfig`), defaults where they are silent.

    ``what`` is depth, width, limits or law; ``levels`` are layers L (widths m for `width`), ``widths`` the other axis
    of `limits` and `law`.  ``quick`` takes fewer levels and replicas.  Raises `UserError` for what cannot run.

    >>> experiment("width", {"tokens": 10}).levels
    (20, 40, 80, 160, 320, 640)
    """
    if what not in PLANS:
        raise UserError(f"unknown experiment {what!r}", mend=did_you_mean(what, PLANS))
    plan = (QUICK if quick else PLANS)[what]
    job = prepare_experiment(what, values, **plan.settings)
    config = job.config
    if config.noise != "mlp":
        raise UserError("noise", got=config.noise, expected="mlp", mend="random layers are what converges")
    if isinstance(job.start, np.ndarray):
        raise UserError("start", got=config.start, expected="a law of tokens", mend="use --start uniform")
    if config.replicas < 8:
        raise UserError("replicas", got=config.replicas, expected="8 or more, for an interval", mend="use more")
    if what == "law" and config.start not in ("uniform", "equiangular"):
        raise UserError("start", got=config.start, expected="uniform or equiangular", mend="others have no pair law")
    if what == "law" and config.tokens != 2:
        raise UserError("tokens", got=config.tokens, expected="2, a pair", mend="leave --tokens out")
    if widths is not None and not plan.widths:
        raise UserError(f"converge {what} has no --widths", mend="use --levels")
    if levels is None:
        # Widths start at 2N at least: below, the coupling is not yet in its asymptotic regime.
        scale = max(1.0, 2 * config.tokens / plan.levels[0]) if what == "width" else 1.0
        levels = tuple(int(level * scale) for level in plan.levels)
    widths = plan.widths if widths is None else widths
    for name, given in (("levels", levels), ("widths", widths)):
        whole = [n for n in given if n >= 1 and (n == round(n) if math.isfinite(n) else name == "widths")]
        if list(given) != sorted(set(whole)) or len(given) == 1:
            raise UserError(name, got=list(given), expected="two or more increasing whole numbers >= 1")
    return Experiment(what, job, tuple(int(level) for level in levels), widths, quick)
