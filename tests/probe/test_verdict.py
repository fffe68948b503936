"""Collapse, shares, the paper's parameters and back, and what would change it."""

from dataclasses import replace

import numpy as np
import pytest

import synchronoise as sn
from synchronoise import UserError
from synchronoise.probe import (
    Architecture,
    architecture,
    collapse_depths,
    paper_architecture,
    predict,
    translate,
    what_if,
)
from synchronoise.probe.verdict import changes, first_above, shares
from synchronoise.theory.exponents import lambda_1, lambda_bar

POST = Architecture("post", 6, 64, 4, 128, "relu", "post", 0.05, 0.1, 0.1, 0.1, 0.1, mlp_in_bias=0.3, mlp_out_bias=0.3)


@pytest.mark.parametrize("act", ["relu", "tanh"])
def test_the_papers_parameters_and_back(act):
    which = paper_architecture(act, 64, 0.1, 0.2, layers=50, horizon=5.0, width=256)
    there, kernel = translate(which), sn.Kernel(act, 64, 0.1, 0.2)
    assert there["horizon"] == pytest.approx(5)
    assert (there["gain"], there["sigma_u"], there["sigma_w"]) == pytest.approx((1, 0.1, 0.2))
    assert there["kappa_1"] == pytest.approx(kernel.kappa_1)
    assert there["lambda_1"] == pytest.approx(lambda_1(kernel))
    assert there["lambda_bar"] == pytest.approx(lambda_bar(kernel))


def test_lambda_bar_is_the_rate_at_which_close_tokens_approach_in_the_prediction():
    """E(1 - c) of close tokens grows like e^{λ̄ t} (THEORY §6), here over 400 small layers."""
    which = paper_architecture("relu", 64, 0.2, 0.2, attention_scale=0.0, layers=400, horizon=1.0)
    close = (1 - 1e-6) + 1e-6 * np.eye(4)
    curve = predict(which, start=close).mean_cosine.sel(site="resid_post").values[1:]
    there = translate(which)
    rate = np.log((1 - curve[-1]) / (1 - curve[199])) / 0.5
    assert rate == pytest.approx(there["lambda_bar"], rel=0.02)
    assert rate != pytest.approx(2 * there["lambda_1"], rel=0.02)


def test_a_gated_mlp_has_the_kernel_of_the_product():
    """φ = linear: E[(w·h)(w·h')(v·h)(v·h')] = (g² u/d)², so κ'(1) = 2κ(1)."""
    which = replace(POST, activation="linear", gated=True, mlp_in_bias=0.0, mlp_out_bias=0.0)
    there = translate(which)
    assert there["kappa_1"] == pytest.approx((64 * 0.1**2) ** 2)
    assert there["dkappa_1"] == pytest.approx(2 * there["kappa_1"])


def test_collapse_is_the_first_layer_above_the_level():
    deep = replace(POST, depth=200)
    curve = predict(deep, 16).mean_cosine.sel(site="resid_post").values
    found = collapse_depths(POST, 16)
    assert found == {str(level): first_above(curve, level) for level in (0.9, 0.99)}
    assert found["0.9"] < found["0.99"]
    # Nothing brings these tokens together: without attention and biases an odd MLP keeps orthogonal ones orthogonal.
    still = replace(POST, value_std=0.0, activation="tanh", mlp_in_bias=0.0, mlp_out_bias=0.0)
    assert collapse_depths(still, 16) == {"0.9": None, "0.99": None}


def test_shares_are_of_the_parts_that_are_there():
    parts = shares(POST, 16)
    assert min(parts.values()) > 0.01
    assert shares(replace(POST, value_std=0.0), 16)["attention"] == pytest.approx(0, abs=1e-12)
    bare = replace(POST, mlp_in_bias=0.0, mlp_out_bias=0.0)
    assert shares(bare, 16)["biases"] == 0
    rise = predict(bare, 16).mean_cosine.values
    assert sum(shares(bare, 16).values()) == pytest.approx(rise[-1, 2] - rise[0, 0])


def test_what_if_has_a_row_for_each_change_that_means_something():
    assert [row["change"] for row in what_if(POST, 8)] == [
        "none", "no biases", "residual scale 1/√(2L)", "activation tanh", "twice as deep", "pre-norm blocks",
    ]  # fmt: skip
    assert "no biases" not in [change.name for change in changes(architecture("gpt2-small"))]
    rows = {row["change"]: row["mean_cosine"] for row in what_if(POST, 8)}
    assert rows["no biases"] < rows["none"] < rows["twice as deep"]
    with pytest.raises(UserError, match="has no MLP noise"):
        translate(replace(POST, mlp_out_std=0.0))
