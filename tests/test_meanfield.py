"""The SPDE (1.10): weighted tokens and grids solve it, under the noise of the tokens; each check has a failing twin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from checks import interrupt_second_chunk, uniform_tokens
from synchronoise import (
    MLP,
    CausalAttention,
    DrawnMLP,
    GaussianField,
    HarmonicAttention,
    PrivateNoise,
    SoftmaxAttention,
    SumNoise,
    Transformer,
    UserError,
    VectorNoise,
    simulate,
)
from synchronoise.banks import HarmonicField
from synchronoise.harmonics import degrees
from synchronoise.meanfield import CircleGrid, SphereGrid, VonMisesFisher, lagrangian, quadrature, solve, speed
from synchronoise.meanfield.eulerian import remap
from synchronoise.meanfield.solve import DEGREE, Masses, SmoothEnergy, smooth_energy
from synchronoise.meanfield.wasserstein import wasserstein2
from synchronoise.meanfield.weak import means
from synchronoise.observables import energy

TWO_PEAKS = VonMisesFisher([[1.0, 0.0], [-0.5, 0.8]], [3.0, 1.0])
FIELD = HarmonicField(MLP("relu", 2, 0.3, 0.1), 12)


def circle_model(noise=FIELD, layers=100, attention=True):
    return Transformer(HarmonicAttention(2.0, dim=2) if attention else None, noise, layers=layers, horizon=1.0)


def tokens_at_the_end(model, x, weights, seed=0, replicas=1):
    how = {"observers": (), "every": model.layers, "save_tokens": True, "dtype": "float64", "seed": seed}
    return lagrangian(model, x, weights, replicas=replicas, **how)["tokens"].values[:, -1]


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_quadratures_integrate(dim):
    """<x, m> under a von Mises-Fisher law has the mean I_{d/2}(k)/I_{d/2-1}(k)."""
    from scipy.special import ive

    k, mean = 3.0, np.eye(dim)[0]
    x, w = quadrature(VonMisesFisher(mean, k), dim, 4096)
    exact = ive(dim / 2, k) / ive(dim / 2 - 1, k)
    tolerance = {2: 1e-10, 3: 1e-4, 5: 0.01}[dim]
    assert w @ x @ mean == pytest.approx(exact, abs=tolerance)
    assert not np.isclose(np.mean(x @ mean), exact, atol=0.1)  # without the weights
    assert np.allclose(np.linalg.norm(x, axis=1), 1)


def test_the_distance_on_the_circle_is_the_best_assignment():
    x, y = uniform_tokens(40, 2, 1, "float64"), uniform_tokens(40, 2, 2, "float64")
    cost = np.arccos(np.clip(x @ y.T, -1, 1)) ** 2
    exact = cost[linear_sum_assignment(cost)].mean()
    assert wasserstein2(x, y) == pytest.approx(exact, rel=1e-9)
    assert wasserstein2(x, x) < 1e-13
    sorted_only = np.mean((np.sort(np.arctan2(*x.T[::-1])) - np.sort(np.arctan2(*y.T[::-1]))) ** 2)
    assert sorted_only > exact * 1.001  # quantiles from a fixed origin are not enough
    # Weights: a token of weight 2/40 is two tokens.
    w = np.full(39, 1.0)
    w[0] = 2.0
    twice = np.concatenate([x[:1], x[:39]])
    assert wasserstein2(x[:39], y, w) == pytest.approx(wasserstein2(twice, y), rel=1e-9)


def test_the_distance_elsewhere():
    pytest.importorskip("ot")
    x, y = uniform_tokens(30, 4, 1, "float64"), uniform_tokens(30, 4, 2, "float64")
    assert wasserstein2(x, y, np.ones(30), np.ones(30)) == pytest.approx(wasserstein2(x, y), rel=1e-6)


def test_without_pot_it_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ot", None)
    with pytest.raises(UserError, match=r"synchronoise\[ot\]"):
        wasserstein2(uniform_tokens(3, 3), uniform_tokens(4, 3))


def test_equal_weights_are_the_token_simulation(x64):
    model = Transformer(SoftmaxAttention(2.0), DrawnMLP(MLP("relu", 4, 0.1), 8), layers=20, horizon=2.0)
    x = uniform_tokens(24, 4, dtype="float64")
    how = {"replicas": 2, "save_tokens": True, "dtype": "float64"}
    tokens = simulate(model, x, **how)["tokens"].values
    assert np.array_equal(lagrangian(model, x, np.full(24, 1 / 24), **how)["tokens"].values, tokens)
    weighted = lagrangian(model, x, np.arange(1.0, 25.0), **how)["tokens"].values
    assert not np.allclose(weighted, tokens, atol=1e-3)
    # Weights k/n are k equal tokens.
    repeated = lagrangian(model, np.repeat(x[:3], [1, 3, 2], axis=0), **how)["tokens"].values
    merged = lagrangian(model, x[:3], np.array([1.0, 3.0, 2.0]), **how)["tokens"].values
    assert np.allclose(repeated[:, :, [0, 1, 4]], merged, atol=1e-12)


def test_what_has_no_common_noise_is_refused():
    x = uniform_tokens(8, 2)
    for model, words in (
        (Transformer(CausalAttention(), None, layers=2), "order of the tokens"),
        (Transformer(None, SumNoise(VectorNoise(1.0), PrivateNoise(0.1)), layers=2), "private"),
    ):
        with pytest.raises(UserError, match=words):
            lagrangian(model, x)
    with pytest.raises(UserError, match="at the tokens only"):
        solve(Transformer(None, GaussianField(MLP("relu", 2)), layers=2), CircleGrid(64))
    with pytest.raises(UserError, match="narrower than the grid"):
        solve(
            Transformer(None, None, layers=2), CircleGrid(64), VonMisesFisher([[1.0, 0.0]], [3000.0]), dtype="float32"
        )


def test_the_circle_is_second_order_conservative_and_positive(x64):
    cells = (64, 128, 256, 1024)
    ends = {}
    for n in cells:
        result = solve(circle_model(), CircleGrid(n), TWO_PEAKS, every=50)
        mass = result["mass"].values
        assert np.abs(mass.sum(axis=1) - 1).max() < 1e-12
        assert mass.min() >= 0
        ends[n] = (mass[-1], result.attrs["stopped"])
    assert ends[64][1].startswith("the density is narrower than the grid after time")
    assert ends[1024][1] == ""
    errors = [np.abs(ends[n][0] - ends[1024][0].reshape(n, -1).sum(axis=1)).sum() for n in (128, 256)]
    assert np.log2(errors[0] / errors[1]) > 1.7


def test_a_remap_is_monotone_and_exact_where_it_can_be():
    n = 64
    rng = np.random.default_rng(0)
    places = 2 * np.pi * np.arange(n) / n + 0.3 + rng.uniform(-0.04, 0.04, n)
    gaps = np.diff(np.append(places, places[0] + 2 * np.pi))
    uniform = np.asarray(remap(jnp.asarray(places), jnp.asarray(gaps), jnp.asarray(gaps / (2 * np.pi))))
    assert np.allclose(uniform, 1 / n, atol=1e-6)
    rough = rng.uniform(0, 1, n) * (rng.uniform(0, 1, n) > 0.5)
    moved = np.asarray(remap(jnp.asarray(places), jnp.asarray(gaps), jnp.asarray(rough)))
    assert moved.min() >= 0
    assert moved.sum() == pytest.approx(rough.sum(), rel=1e-6)


@pytest.mark.parametrize("dim", [2, 3])
def test_grids_and_weighted_tokens_solve_one_equation(dim, x64):
    """W_2 within the size of a cell, under the same noise; another noise is far away."""
    if dim == 2:
        density, grid, model = TWO_PEAKS, CircleGrid(256), circle_model()
    else:
        density, grid = VonMisesFisher([[1.0, 0.0, 0.0], [-0.5, 0.8, 0.1]], [3.0, 1.0]), SphereGrid(900)
        noise = HarmonicField(MLP("relu", 3, 0.3, 0.1), 6)
        model = Transformer(HarmonicAttention(1.0, dim=3), noise, layers=50, horizon=0.5)
    result = solve(model, grid, density, every=model.layers)
    assert result.attrs["stopped"] == ""
    mass = result["mass"].values[-1]
    assert mass.min() >= 0
    assert abs(mass.sum() - 1) < 1e-12
    x, w = quadrature(density, dim, 2000 if dim == 2 else 1500)
    same, other = (tokens_at_the_end(model, x, w, seed)[0] for seed in (0, 1))
    heavy = mass > 1e-6
    distance = [wasserstein2(grid.centres[heavy], end, mass[heavy], w) ** 0.5 for end in (same, other)]
    assert distance[0] < grid.width < distance[1] / 2


def test_an_interrupted_flow_is_no_solution(monkeypatch):
    """Ctrl-C in the second chunk raises: a part must not be taken for the whole.  Asked for, the part comes back."""
    interrupt_second_chunk(monkeypatch)
    model, x = circle_model(noise=None, layers=40), uniform_tokens(5, 2)
    with pytest.raises(KeyboardInterrupt, match="at layer 1 of 40"):
        lagrangian(model, x, replicas=1, dtype="float32")
    monkeypatch.undo()
    interrupt_second_chunk(monkeypatch)
    with pytest.warns(UserWarning, match="stops at layer 1"):
        assert lagrangian(model, x, replicas=1, dtype="float32", partial=True).sizes["layer"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "apart"), [(2, 5), (3, 4)])
def test_the_weak_form_holds(dim, apart, x64):
    """The residual is that of Euler's scheme, of order √h over 16 times the layers; without the Laplacian it stays."""
    if dim == 2:
        field, grid, density, beta, horizon, depths, replicas = (
            FIELD,
            CircleGrid(512),
            TWO_PEAKS,
            2.0,
            1.0,
            (50, 800),
            16,
        )
    else:
        field, grid = HarmonicField(MLP("relu", 3, 0.3, 0.1), 8), SphereGrid(800)
        density = VonMisesFisher([[1.0, 0.0, 0.0], [-0.5, 0.8, 0.2]], [1.0, 0.5])
        beta, horizon, depths, replicas = 1.0, 0.25, (25, 400), 12
    n, rows = degrees(dim, DEGREE), depths[0]
    some = (n >= 1) & (n <= 4)
    rms = {}
    for layers in depths:
        with_it, without = [], []
        model = Transformer(HarmonicAttention(beta, dim=dim), field, layers=layers, horizon=horizon)
        for replica in range(replicas):
            run = solve(model, grid, density, every=layers // rows, replica=replica)
            assert run.attrs["stopped"] == ""
            rate = speed(field) / 2 * n * (n + dim - 2)
            laplacian = rate * run["harmonic_mean"].values[:-1].sum(axis=0) * horizon / rows
            with_it.append(run["weak_residual"].values[-1])
            without.append(run["weak_residual"].values[-1] - laplacian)
        rms[layers] = [np.sqrt(np.mean(np.square(values)[:, some])) for values in (with_it, without)]
    first, last = (rms[layers] for layers in depths)
    assert last[0] < 0.4 * first[0]
    assert last[1] > apart * last[0]


@pytest.mark.parametrize("dim", [2, 3])
def test_harmonics_decay_in_the_mean(dim, x64):
    """E<μ_t, Y_l> = e^{-κ(1) l(l+d-2) t/2} <μ_0, Y_l>, κ of the field in use; without the Laplacian it would stay."""
    noise = HarmonicField(MLP("relu", dim, 0.3, 0.1), 6)
    density, time = VonMisesFisher(np.eye(dim)[:1], [4.0]), 0.5
    x, w = quadrature(density, dim, 32)
    model = Transformer(None, noise, layers=40, horizon=time)
    ends = tokens_at_the_end(model, x, w, replicas=2000)
    start = np.asarray(means(jnp.asarray(x), jnp.asarray(w), 4))
    now = np.asarray(jax.vmap(lambda end: means(end, jnp.asarray(w), 4))(jnp.asarray(ends)))
    n = degrees(dim, 4)
    for degree in range(1, 5):
        share = now[:, n == degree] @ start[n == degree] / np.sum(start[n == degree] ** 2)
        exact = np.exp(-speed(noise) * degree * (degree + dim - 2) * time / 2)
        error = share.std(ddof=1) / np.sqrt(len(share))
        assert 5 * error < 1 - exact
        assert abs(share.mean() - exact) < 5 * error
        assert abs(share.mean() - 1) > 5 * error
        assert degree > 2 or abs(share.mean() - exact**2) > 5 * error  # the Laplacian counted twice


def test_energies_in_harmonics(x64):
    for dim in (2, 3):
        x = jnp.asarray(uniform_tokens(50, dim, dtype="float64"))
        w = jnp.asarray(np.arange(1, 51) / 1275.0)
        for beta in (-2.0, 1.0, 7.0):
            assert smooth_energy(x, w, beta) == pytest.approx(float(energy(x, beta, w)), rel=1e-12)
    run = lagrangian(
        circle_model(None, layers=4), uniform_tokens(50, 2), observers=(SmoothEnergy(2.0), Masses(CircleGrid(16))),
        replicas=1,
    )  # fmt: skip
    assert run["mass"].sum("cell").values == pytest.approx(1, abs=1e-5)
