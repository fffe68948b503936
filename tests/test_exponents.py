"""Exponents of the running flow against the closed form, alone and with attention (THEORY §6)."""

import json

import jax
import numpy as np
import pytest

import synchronoise as sn
from synchronoise import cli
from synchronoise.errors import RunError, UserError
from synchronoise.exponents import exponents_report, growth, kaplan_yorke, synchronised_frame


def agrees(report, exact=None, resolution=0.01):
    """Every exponent within 5 SE and the stated bias of the closed form, and SE below 1 % of κ(1) + κ'(1)."""
    exact = np.array(report["closed_form"] if exact is None else exact)
    error, bias = np.array(report["se"]), np.array(report["bias"])
    assert error.max() <= resolution * report["scale"], f"SE {error.max() / report['scale']:.2%}: more replicas"
    return bool((np.abs(np.array(report["measured"]) - exact) <= 5 * error + bias).all())


SETTINGS = [
    ("relu", 3, 512, ()),
    *((name, 3, 512, pytest.mark.slow) for name in ("tanh", "gelu", "sin:4")),
    *((name, 5, 768, pytest.mark.slow) for name in ("relu", "tanh", "gelu", "sin:4")),
    *((name, 16, 2304, pytest.mark.slow) for name in ("relu", "tanh", "gelu", "sin:4")),
]  # fmt: skip


@pytest.mark.stat
@pytest.mark.parametrize(
    ("activation", "dim", "replicas"), [pytest.param(a, d, r, marks=marks) for a, d, r, marks in SETTINGS]
)
def test_the_spectrum_is_the_closed_form(activation, dim, replicas, x64):
    report = exponents_report({"activation": activation, "dim": dim, "replicas": replicas})
    assert agrees(report)
    shifted = np.array(report["closed_form"]) + (dim - 1) / 2 * sn.Kernel(activation, dim).kappa_1
    assert not agrees(report, shifted)  # the Itô term forgotten
    deviation = report["finite_time"]["deviation"][0] / report["finite_time"]["deviation_closed_form"]
    assert abs(deviation - 1) < 0.05 + 5 / np.sqrt(2 * replicas)
    if (activation, dim) == ("sin:4", 16):
        assert report["measured"][0] > 5 * report["se"][0]
        assert 1 < report["kaplan_yorke"] < dim - 1
    elif activation != "sin:4":
        assert report["kaplan_yorke"] == 0


@pytest.mark.parametrize(
    ("attention", "pulls"),
    [
        ("softmax", [0, 1, 1]), ("l2", [0, 1, 1]), ("sinkhorn", [0, 1, 1]), ("multihead", [0, 1, 1]),
        ("unnormalised", [0, np.e, np.e]), ("causal", [0, 1 / 2, 2 / 3]),
    ],
)  # fmt: skip
def test_attention_alone_at_the_synchronised_state(attention, pulls, x64):
    """-a on relative directions and 0 on the centre; -a e^β unnormalised; -a(1-1/i) causal: each d - 1 times."""
    settings = {"noise": "none", "attention": attention, "dim": 4, "heads": 2, "attention_scale": 0.8, "replicas": 1}
    report = exponents_report({**settings, "layers": 1000, "horizon": 2.0})
    exact = np.sort(np.repeat(-0.8 * np.array(pulls), 3))[::-1]
    np.testing.assert_allclose(report["closed_form"], exact, atol=1e-15)
    np.testing.assert_allclose(report["measured"], exact, atol=1e-5)
    assert np.abs(np.array(report["finite"]) - exact).max() > 1e-4  # what the extrapolation takes away


@pytest.mark.stat
@pytest.mark.parametrize("attention", ["softmax", pytest.param("causal", marks=pytest.mark.slow)])
def test_noise_and_attention_at_the_synchronised_state(attention, x64):
    """λ_k for the centre, λ_k - a on the relative directions; repulsion (a < 0): stable iff λ_1 + |a| < 0."""
    given = {"activation": "tanh", "dim": 3, "sigma_u": 0.3, "attention": attention}
    given |= {"tokens": 2, "replicas": 64, "layers": 600, "horizon": 12.0}
    for scale in (1.0, -0.05):
        report = exponents_report({**given, "attention_scale": scale})
        assert agrees(report, resolution=0.04)
        assert not agrees(report, np.array(report["closed_form"]) - scale / 2, resolution=0.04)
    top = sn.theory.lambda_1(sn.Kernel("tanh", 3, 0.3))
    assert top < -0.05
    assert report["measured"][0] < 0  # λ_1 + |a| < 0: weak repulsion does not undo synchrony
    assert exponents_report({**given, "attention_scale": -1.0, "layers": 60})["measured"][0] > 0.5


@pytest.mark.slow
@pytest.mark.stat
def test_all_tokens_have_the_exponents_of_one(x64):
    """Without attention every token follows the same flow: each exponent N times, wherever the tokens are."""
    report = exponents_report({"activation": "tanh", "dim": 3, "tokens": 2, "replicas": 256}, full=True)
    exact = np.array(report["closed_form"])
    assert exact[0] == exact[1]
    found = np.array(report["measured"]).reshape(2, 2).mean(axis=1)  # pairs of equal exponents are ordered by chance
    assert (np.abs(found - exact[::2]) < 5 * np.array(report["se"])[::2] + np.array(report["bias"])[::2] + 0.02).all()


def test_the_mean_zero_part_is_what_is_subtracted(x64):
    model = sn.Transformer(None, sn.DrawnMLP(sn.MLP("tanh", 3), 16), layers=100, horizon=2.0)
    rates = growth(model, np.eye(1, 3), frame=synchronised_frame(None, 1, 3)[0], replicas=200)
    assert rates.even.std(axis=0).max() < 0.25 * rates.whole.std(axis=0).min()
    spread = 5 * rates.whole.std(axis=0) / np.sqrt(200)
    assert (np.abs(rates.even.mean(axis=0) - rates.whole.mean(axis=0)) < spread).all()


def test_kaplan_yorke_dimension():
    assert kaplan_yorke([-0.1, -1.0]) == 0
    assert kaplan_yorke([0.3, -0.1, -0.4]) == 2.5
    assert kaplan_yorke([0.3, -0.1]) == 2


def test_noises_without_a_tangent_are_refused(x64, capsys):
    with pytest.raises(UserError, match="no tangent"):
        exponents_report({"noise": "private"})
    field = sn.Transformer(None, sn.GaussianField(sn.MLP("relu", 3)), layers=2, horizon=1.0)
    with pytest.raises(UserError, match="no field"):
        growth(field, np.eye(1, 3))
    with jax.enable_x64(False), pytest.raises(UserError, match="64 bits"):
        growth(field, np.eye(1, 3))


def test_what_does_not_fit_or_is_not_finite_is_one_line(x64):
    with pytest.raises(UserError, match="GB are available"):
        exponents_report({"dim": 100_000})
    with pytest.raises(UserError, match=r"\[-300, 300\]"):
        exponents_report({"attention": "unnormalised", "beta": 800.0})
    with pytest.raises(UserError, match="nothing moves"):
        exponents_report({"noise": "none"})
    with pytest.warns(UserWarning, match="too long"):
        assert exponents_report({"dim": 3, "layers": 2, "replicas": 1})["se"] is None
    broken = sn.Transformer(None, sn.ScaledNoise(sn.VectorNoise(1.0), np.nan), layers=2, horizon=1.0)
    with pytest.raises(RunError, match="not finite"):
        growth(broken, np.eye(1, 3), replicas=1)


def test_the_command_is_one_json_object(x64, capsys):
    assert (
        cli.status(["exponents", "--dim", "3", "--replicas", "4", "--layers", "20", "--noise", "mlp+vector:0.2"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert {"measured", "se", "closed_form", "bias", "kaplan_yorke"} <= set(report)
    assert report["closed_form"][0] == pytest.approx(-1 / 6 - 0.04)
