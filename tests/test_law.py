"""The limit in law, every route, against the exact two-point theory; and the twins that must fail (THEORY §3, §5)."""

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import synchronoise as sn
from checks import agrees
from synchronoise.noise import Noise
from synchronoise.randomness import replica_keys, step_key
from synchronoise.sphere import layer_norm, tangent

T, D = 2.0, 5
LAW = sn.MLP("relu", D, 0.1, 0.1)
KAPPA = LAW.kernel().kappa_1
DECAY = float(np.exp(-KAPPA * (D - 1) * T / 2))  # E<X_t, X_0>


def reference(parameters: str) -> float:
    lines = (Path(__file__).parent / "reference" / "exact.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return next(float(row["value"]) for row in rows if row["parameters"] == parameters)


PAIR = reference("relu d=5 sigma_u=0.1 sigma_w=0.1 beta=1 uniform t=2")


def statistics(model, n, replicas, seed=0):
    """<X_T, X_0> averaged over the tokens, and the mean pair energy, for each replica."""
    run = sn.simulate(
        model,
        sn.Uniform(n, D),
        replicas=replicas,
        every=model.layers,
        save_tokens=True,
        seed=seed,
        observers=[sn.Energy()],
    )
    x = run["tokens"].values
    return (x[:, 0] * x[:, -1]).sum(-1).mean(-1), run["energy"].values[:, -1] / (1 - 1 / n)


def ensemble(noise, layers, n, replicas, seed=0):
    return statistics(sn.Transformer(None, noise, layers=layers, horizon=T), n, replicas, seed)


ROUTES = {"cholesky": sn.GaussianField(LAW), "features": sn.DrawnMLP(LAW, 4)}


@pytest.mark.stat
@pytest.mark.parametrize("layers", [50, 100])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("n", "replicas"), [(2, 8_000), (16, 1_500)])
def test_the_limit_has_the_exact_decay_and_pair_energy(route, n, replicas, layers):
    decay, energy = ensemble(ROUTES[route], layers, n, replicas)
    assert agrees(decay, DECAY, resolution=0.045)
    assert agrees(energy, PAIR, resolution=0.05)


@pytest.mark.stat
def test_another_activation_and_biases():
    law = sn.MLP("tanh", D, 0.4, 0.2)
    model = sn.Transformer(None, sn.GaussianField(law), layers=50, horizon=T)
    decay, energy = statistics(model, 2, 8_000, seed=1)
    assert agrees(energy, reference("tanh d=5 sigma_u=0.4 sigma_w=0.2 beta=1 uniform t=2"), resolution=0.05)
    assert agrees(decay, np.exp(-law.kernel().kappa_1 * (D - 1) * T / 2), resolution=0.045)


class Private(Noise):
    """Independent noise of the same one-token speed for each token."""

    common = False
    in_law_only = True
    route = "private"

    def factor(self, key, x):
        return jnp.sqrt(KAPPA).astype(x.dtype) * jnp.eye(x.shape[0], dtype=x.dtype)

    def floor(self, dtype):
        return 0.0


@pytest.mark.stat
@pytest.mark.parametrize(
    ("twin", "decay_fails"),
    [
        (sn.ScaledNoise(sn.DrawnMLP(LAW, 4), 2.0), True),  # 1/√m forgotten at m = 4
        (sn.ScaledNoise(sn.GaussianField(LAW), np.sqrt(T / 50)), True),  # T/L for √(T/L)
        (Private(), False),  # private for common noise: one token cannot tell, pairs can
    ],
    ids=["forgotten_root_m", "scaled_by_h", "private"],
)
def test_twins_are_rejected(twin, decay_fails):
    decay, energy = ensemble(twin, 50, 2, 8_000)
    assert agrees(decay, DECAY, resolution=0.045) != decay_fails
    assert not agrees(energy, PAIR, resolution=0.05)


def tangent_euler(ito: float, layers: int, replicas: int) -> np.ndarray:
    """<X_T, X_0> of one token by Euler steps without LN: dX = -ito·κ(1)(d-1)/2 X dt + P_X G(dt, X)."""
    h = T / layers

    def one(key):
        x0 = x = sn.Uniform(1, D)(key, jnp.float32)

        def step(k, x):
            noise = jnp.sqrt(h) * sn.GaussianField(LAW).increment(step_key(key, k), layer_norm(x))
            unit = layer_norm(x)
            return x - ito * h * KAPPA * (D - 1) / 2 * x + tangent(unit, noise)

        return jnp.sum(jax.lax.fori_loop(0, layers, step, x) * x0)

    return np.asarray(jax.jit(jax.vmap(one))(replica_keys(0, replicas)))


@pytest.mark.stat
def test_the_ito_term_is_there_once():
    """Without LN the Itô drift has to be written out, once; LN contains it already, and nothing may be added to it."""
    assert agrees(tangent_euler(1.0, 50, 8_000), DECAY, resolution=0.045)
    assert not agrees(tangent_euler(2.0, 50, 8_000), DECAY, resolution=0.045)
    assert not agrees(tangent_euler(0.0, 50, 8_000), DECAY, resolution=0.045)


@pytest.mark.stat
@pytest.mark.slow
@pytest.mark.parametrize(("width", "measured"), [(1, 0.5215), (4, 0.4913), (16, 0.4770)])
def test_shallow_networks_have_the_law_of_their_width(width, measured):
    """Mean pair energy at L = 10, T = 5: far from the limit 0.45614, the same by both routes (THEORY §3: ± 0.0018)."""
    for noise in (sn.DrawnMLP(LAW, width), sn.InLawMLP(LAW, width)):
        model = sn.Transformer(None, noise, layers=10, horizon=5.0)
        _, energy = statistics(model, 2, 70_000, seed=2)
        assert agrees(energy, measured, resolution=0.012)
        assert not agrees(energy, 0.4561419, resolution=0.012)


def slope_of_log_distance(law, n, *, layers, horizon, replicas, features, tail):
    """Per-replica slope of mean log(1-ρ) over the last part of the run, and the largest 1-ρ at its end."""
    model = sn.Transformer(None, sn.DrawnMLP(law, features), layers=layers, horizon=horizon)
    run = sn.simulate(
        model,
        sn.Uniform(n, law.dim),
        replicas=replicas,
        every=layers // 40,
        observers=[sn.LogDistance(), sn.LargestDistance()],
        dtype="float64",
    )
    values, time = run["log_distance"].values, run["time"].values
    first = int(tail * len(time))
    slopes = (values[:, -1] - values[:, first]) / (time[-1] - time[first])
    return slopes, run["largest_distance"].values[:, -1]


@pytest.mark.stat
def test_merging_tokens_keep_their_exponent_down_to_1e_20(x64):
    """64 tokens of sigmoid d = 64: all pairs below 1e-20, no NaN, slope 2 λ_1 = -15.8 (THEORY §6)."""
    law = sn.MLP("sigmoid", 64)
    kernel = law.kernel()
    exact = 61 * kernel.dkappa_1 - 63 * kernel.kappa_1  # 2 λ_1
    slopes, largest = slope_of_log_distance(law, 64, layers=2000, horizon=4.0, replicas=16, features=4, tail=0.15)
    assert largest.max() < 1e-20
    assert agrees(slopes, exact, resolution=0.05 * abs(exact))
    assert not agrees(slopes, exact / 2, resolution=0.05 * abs(exact))  # λ_1 itself, a natural mistake


@pytest.mark.stat
@pytest.mark.slow
def test_relu_tokens_merge_at_their_exponent(x64):
    law = sn.MLP("relu", 5, 0.1, 0.1)
    exact = 2 * (-1 / 10 - 3 * 0.01 * 4 / 4)
    # The logarithms of the distances spread by √(4st) (THEORY §6), so no time has all of 2000 replicas between 1e-20
    # and the floor at 1e-31: the slope is measured before the floor, the end with fewer replicas beyond it.
    slopes, _ = slope_of_log_distance(law, 4, layers=1600, horizon=60.0, replicas=2500, features=4, tail=0.2)
    assert agrees(slopes, exact, resolution=0.05 * abs(exact))
    assert not agrees(slopes, exact / 2, resolution=0.05 * abs(exact))
    with pytest.warns(sn.FloorWarning):
        _, largest = slope_of_log_distance(law, 4, layers=10_000, horizon=400.0, replicas=16, features=4, tail=0.1)
    assert largest.max() < 1e-20


def test_a_gaussian_field_without_jitter_reaches_its_floor_and_says_so(x64):
    model = sn.Transformer(None, sn.GaussianField(sn.MLP("sigmoid", 64)), layers=600, horizon=6.0)
    with pytest.warns(sn.FloorWarning):
        run = sn.simulate(
            model, sn.Uniform(8, 64), replicas=2, every=60, observers=[sn.LargestDistance()], dtype="float64"
        )
    assert np.isfinite(run["largest_distance"].values).all()
    assert run["largest_distance"].values[:, -1].max() < 1e-13
