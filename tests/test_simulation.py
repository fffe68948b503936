"""The loop: what it returns, how it stops, and what it refuses."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import synchronoise as sn
from checks import LAW, uniform_tokens
from synchronoise import simulation
from synchronoise.errors import RunError, UserError
from synchronoise.simulation import _advance

MODEL = sn.Transformer(sn.SoftmaxAttention(), sn.DrawnMLP(LAW, 4), layers=12, horizon=3.0)


def run(**options):
    defaults = {"replicas": 3, "seed": 1, "observers": [sn.Energy()]}
    return sn.simulate(MODEL, sn.Uniform(4, 5), **(defaults | options))


def test_the_result_names_its_axes_and_what_made_it():
    result = run(every=3, save_tokens=True, observers=[sn.Energy(), sn.OverlapHistogram(8)])
    assert result["energy"].dims == ("replica", "layer")
    assert result["tokens"].dims == ("replica", "layer", "token", "dim")
    assert result["overlap_histogram"].dims == ("replica", "layer", "overlap")
    assert result["layer"].values.tolist() == [0, 3, 6, 9, 12]
    np.testing.assert_allclose(result["time"].values, [0, 0.75, 1.5, 2.25, 3.0])
    assert result["energy"].attrs["reference"] == "THEORY §6"
    assert '"seed": 1' in result.attrs["provenance"]
    assert "width 4, weights drawn" in result.attrs["provenance"]


def test_looking_less_often_changes_no_number():
    often, seldom = run(save_tokens=True), run(every=4, save_tokens=True)
    assert (often["tokens"].values[:, ::4] == seldom["tokens"].values).all()
    assert (often["energy"].values[:, ::4] == seldom["energy"].values).all()


def test_other_numbers_reuse_the_compiled_code():
    run()
    traced = simulation._advance._cache_size()
    law = sn.MLP("relu", 5, 0.3, 0.4)
    other = sn.Transformer(sn.SoftmaxAttention(2.0, -1.0), sn.DrawnMLP(law, 4), layers=12, horizon=1.0)
    sn.simulate(other, sn.Uniform(4, 5), replicas=3, seed=5, observers=[sn.Energy(2.0)])
    assert simulation._advance._cache_size() == traced
    run(replicas=40)
    assert simulation._advance._cache_size() == traced  # batches of the same size, more of them
    sn.simulate(other, sn.Uniform(9, 5), replicas=3, observers=[sn.Energy(2.0)])
    assert simulation._advance._cache_size() == traced + 1  # another shape is another trace


def test_a_run_goes_on_from_its_state():
    states = []
    whole = run(chunk=4, save_tokens=True, on_chunk=states.append)
    assert [state.rows for state in states] == [4, 8, 12, 13]
    rest = run(chunk=4, save_tokens=True, resume=states[1])
    assert (rest["tokens"].values == whole["tokens"].values).all()
    assert (rest["energy"].values == whole["energy"].values).all()


def test_ctrl_c_keeps_what_is_done():
    def stop(state):
        if state.rows >= 8:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="stops at layer 7 of 12"):
        part = run(chunk=4, on_chunk=stop)
    assert part.attrs["completed_layers"] == 7
    assert (part["energy"].values == run()["energy"].values[:, :8]).all()


def test_a_token_that_stops_being_finite_is_named():
    model = sn.Transformer(None, sn.DrawnMLP(LAW, 4), layers=6, horizon=3.0, alpha_2=lambda depth: jnp.inf * depth)
    with pytest.raises(RunError, match=r"replica 0 .* layer 1; .* good up to layer 0"):
        sn.simulate(model, sn.Uniform(4, 5), replicas=2)


def test_the_floor_is_warned_about_once():
    tokens = uniform_tokens(1, 5)
    close = np.concatenate([tokens, tokens + 2e-4 * uniform_tokens(1, 5, seed=2)])
    model = MODEL.limit()
    with pytest.warns(sn.FloorWarning, match="closer than the floor 8e-04") as caught:
        sn.simulate(model, close, replicas=2)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sn.simulate(MODEL.limit(features=4), close, replicas=2)  # this route follows them
        sn.simulate(model, np.concatenate([tokens, tokens]), replicas=2)  # equal tokens are no matter


def test_tokens_of_the_user_and_their_weights():
    x = uniform_tokens(4, 5)
    shared = sn.simulate(MODEL, 2.0 * x, replicas=2, save_tokens=True)
    np.testing.assert_allclose(shared["tokens"].values[:, 0], np.stack([x, x]), atol=1e-6)
    own = sn.simulate(MODEL, np.stack([x, -x]), replicas=2, save_tokens=True)
    np.testing.assert_allclose(own["tokens"].values[1, 0], -x, atol=1e-6)
    weights = [0.5, 0.5, 0.0, 0.0]
    weighted = sn.Transformer(sn.SoftmaxAttention(), MODEL.noise, layers=12, horizon=3.0, weights=weights)
    pair = sn.Transformer(sn.SoftmaxAttention(), MODEL.noise, layers=12, horizon=3.0)
    four = sn.simulate(weighted, x, replicas=2, save_tokens=True)["tokens"].values[:, :, :2]
    two = sn.simulate(pair, x[:2], replicas=2, save_tokens=True)["tokens"].values
    np.testing.assert_allclose(four, two, atol=1e-5)


def test_extreme_shapes():
    for n, d, width in ((1, 2, 1), (2, 2, 1), (3, 512, 1), (1, 5, 3)):
        noise = sn.DrawnMLP(sn.MLP("relu", d), width)
        result = sn.simulate(sn.Transformer(sn.SoftmaxAttention(50.0), noise, layers=3), sn.Uniform(n, d), replicas=2)
        assert np.isfinite(result["energy"].values).all()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"replicas": 0}, "replicas"),
        ({"every": 5}, "every"),
        ({"every": 0}, "every"),
        ({"dtype": "float64"}, "dtype"),
        ({"seed": -1}, "seed"),
        ({"resume": simulation.State(1, np.zeros((2, 4, 5), np.float32), {})}, "start"),
    ],
)
def test_impossible_runs_are_one_line(options, what):
    with pytest.raises(UserError, match=what) as caught:
        run(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", [sn.Uniform(4, 6), np.zeros((4, 5)), np.ones((3, 4, 5)), np.ones(5)])
def test_starts_that_do_not_fit(start):
    with pytest.raises(UserError, match="start"):
        sn.simulate(MODEL, start, replicas=2)


@pytest.mark.parametrize(
    "noise",
    [
        sn.ScaledNoise(sn.GaussianField(sn.MLP("tanh", 4)), 2.0),
        sn.SumNoise(sn.SumNoise(sn.DrawnMLP(sn.MLP("tanh", 4), 2))),
    ],
)
def test_a_noise_of_another_dimension_is_found_in_sums_and_multiples(noise):
    with pytest.raises(UserError, match="dim=4, that of the noise"):
        sn.simulate(sn.Transformer(None, noise, layers=2, horizon=1.0), sn.Uniform(3, 5), replicas=2)


def test_weights_that_do_not_fit():
    model = sn.Transformer(None, None, weights=[1.0, 2.0])
    with pytest.raises(UserError, match="weights"):
        sn.simulate(model, sn.Uniform(4, 5), replicas=2)


def test_value_matrices_that_do_not_fit():
    model = sn.Transformer(sn.SoftmaxAttention(value=np.eye(3)), None)
    with pytest.raises(UserError, match="attention"):
        sn.simulate(model, sn.Uniform(4, 5), replicas=2)


def test_devices_and_threads_change_no_number(tmp_path):
    """On two simulated devices, and on one core, every replica has the bits it has here."""
    here = run(replicas=40, save_tokens=True)["tokens"].values
    script = (
        "import sys, numpy as np; sys.path.insert(0, sys.argv[1])\n"
        "import jax, test_simulation as t\n"
        "assert len(jax.local_devices()) == 2\n"
        "np.save(sys.argv[2], t.run(replicas=40, save_tokens=True)['tokens'].values)\n"
    )
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    arguments = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / "two.npy")]
    subprocess.run(arguments, env={**os.environ, **flags}, check=True)
    assert (np.load(tmp_path / "two.npy") == here).all()


def test_a_program_is_traced_once_for_each_shape():
    """Also where several threads run it, from the first chunk on, and with other numbers."""
    counter = []

    class Counted(sn.VectorNoise):
        def factor(self, key, x):
            counter.append(x.shape)
            return sn.VectorNoise.factor(self, key, x)

    def go(sigma, replicas, tokens):
        model = sn.Transformer(None, Counted(sigma), layers=6, horizon=1.0)
        sn.simulate(model, sn.Uniform(tokens, 3), replicas=replicas, observers=[sn.Energy()], chunk=2)

    go(0.5, 70, 6)
    once = len(counter)
    go(0.7, 70, 6)
    go(0.7, 130, 6)
    assert len(counter) == once
    go(0.7, 70, 7)
    assert len(counter) == 2 * once


def test_few_programs_are_kept_and_other_depths_need_no_other(monkeypatch):
    """A process that held a program for every run of a sweep would be ended by XLA after some 270."""

    def energies(layers, tokens=3):
        model = sn.Transformer(None, sn.DrawnMLP(LAW, 4), layers=layers, horizon=1.0)
        return sn.simulate(model, sn.Uniform(tokens, 5), replicas=2, observers=[sn.Energy()])["energy"].values

    _advance.clear_cache()
    before = [energies(layers) for layers in (34, 36, 38)]
    assert _advance._cache_size() == 1
    monkeypatch.setattr(simulation, "MOST_PROGRAMS", 2)
    for tokens in (4, 5, 6):
        energies(8, tokens)
        assert _advance._cache_size() <= 2
    assert all((energies(layers) == energy).all() for layers, energy in zip((34, 36, 38), before, strict=True))


def test_a_large_system_is_seen_through_its_first_tokens(monkeypatch):
    whole = uniform_tokens(40, 3)
    few = np.asarray(sn.Energy()(jnp.asarray(whole[:16]), None))
    monkeypatch.setattr("synchronoise.observables.MOST_PAIRED", 16)
    assert np.asarray(sn.Energy()(jnp.asarray(whole), None)) == few
    weights = jnp.full(40, 1 / 40)
    np.testing.assert_allclose(sn.Energy()(jnp.asarray(whole), weights), few, rtol=1e-6)
    assert sn.OverlapQuantiles()(jnp.asarray(whole), None).shape == (7,)
