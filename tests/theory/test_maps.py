"""Phase maps: solved zero lines against closed forms, verdicts, the figure and the dataset."""

import numpy as np
import pytest

from synchronoise.errors import UserError
from synchronoise.kernel import Kernel
from synchronoise.plots_theory import phase_figure
from synchronoise.theory import lambda_1, lambda_bar
from synchronoise.theory.maps import axis, phase_map


def test_relu_zero_line_is_the_closed_form():
    phase = phase_map("sigma_u=0:0.3:4", "sigma_w=0:0.2:4", dim=8)
    u, w = phase.zeros["lambda_bar"].T
    np.testing.assert_allclose(1 / 8 - (u**2 + 2 * w**2) * 5 / 2, 0.0, atol=1e-11)  # λ̄ of ReLU, THEORY §6
    assert len(u) >= 4
    assert not np.allclose(1 / 8 - (u**2 + w**2) * 5 / 2, 0.0, atol=1e-3)
    assert len(phase.zeros["lambda_1"]) == 0
    sign = phase.fields["lambda_bar"] < 0
    assert (phase.fields["verdict"] == np.where(sign, 3, 2)).all()
    assert (phase.fields["sharp_rate"] < 0).all()


def test_attention_moves_the_line_to_lambda_1():
    phase = phase_map("sigma_w=0:0.2:3", "attention_scale=-1:0.5:4", activation="tanh", dim=32, attention="softmax")
    assert len(phase.zeros["lambda_1"]) >= 3
    for sigma_w, scale in phase.zeros["lambda_1"]:
        assert abs(lambda_1(Kernel("tanh", 32, 0.0, sigma_w)) - scale) < 1e-10
    for sigma_w, scale in phase.zeros["lambda_bar"]:
        assert abs(lambda_bar(Kernel("tanh", 32, 0.0, sigma_w)) - 2 * scale) < 1e-10
    assert (phase.fields["verdict"][:, 0] == [0, 0, 1, 2]).all()  # a = -1, -1/2, 0, 1/2 for an odd field
    # a = -1/2 costs Theorem 1.4 ε <= 2
    bounds = phase.fields["lambda_bar_prime"][1, 1:]
    assert (bounds > -2).any()
    assert (bounds < 0).all()
    assert (phase.fields["verdict"][1, 1:] == np.where(phase.fields["lambda_1"][1, 1:] > 0, 0, 2 + (bounds < -2))).all()


def test_dataset_and_figure():
    phase = phase_map("gain=0.5:2:3", "dim=2:8:2", activation="tanh")
    data = phase.dataset()
    assert data["lambda_1"].dims == ("dim", "gain")
    # κ, so λ_1, scales with the square of the gain where σ_W = 0
    ratio = data["lambda_1"].sel(gain=2.0) / data["lambda_1"].sel(gain=0.5)
    np.testing.assert_allclose(ratio, 16.0)
    assert (data["verdict"] == 1).all()
    figure = phase_figure(phase)
    assert [axis.get_title() for axis in figure.axes[:4]] == ["verdict", "λ₁", "λ̄", "sharp rate of the mean energy"]
    assert "tanh" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ("sigma_v", "dim", "did you mean 'sigma_"),
        ("sigma_u=1:0:5", "dim", "low:high:count"),
        ("sigma_u=0:1", "dim", "low:high:count"),
        ("dim", "dim", "both axes"),
        ("attention_scale", "dim", "without attention"),
    ],
)
def test_bad_axes_are_one_line(x, y, says):
    with pytest.raises(UserError, match=says):
        phase_map(x, y)


def test_a_dimension_axis_is_made_of_integers():
    assert axis("dim=2:5:8")[1].tolist() == [2.0, 3.0, 4.0, 5.0]
