"""Clusters against brute force, and the attractors that the theory predicts (THEORY §6, §7)."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

import synchronoise as sn
from checks import NOISES, interrupt_second_chunk, many_keys, uniform_tokens
from synchronoise import cli, testing
from synchronoise.clusters import (
    GramRank,
    MergeAngles,
    check_result,
    cluster_count,
    cluster_report,
    cluster_sizes,
    watch,
)
from synchronoise.errors import RunError, UserError
from synchronoise.model import step
from synchronoise.runs import prepare
from synchronoise.theory import PairLaw, absorption_probability, kernel_law, sharp_rate, value_noise


@pytest.mark.parametrize("n", [1, 2, 40])
def test_counts_and_sizes_are_those_of_the_graph(n, x64):
    x = uniform_tokens(n, 3, dtype="float64")
    x[n // 2 :] = -x[: n - n // 2]
    edges = np.asarray(MergeAngles()(jnp.asarray(x), None))
    cosines = np.clip(x @ x.T, -1, 1)
    for kind, angles in enumerate([np.arccos(cosines), np.arccos(np.abs(cosines))]):
        for delta in (1e-6, 0.1, 0.3, 0.7, 1.5):
            count, labels = connected_components(angles < delta)
            assert cluster_count(edges[kind], delta) == count
            assert cluster_sizes(edges[kind], delta) == sorted(np.bincount(labels).tolist(), reverse=True)


def test_angles_are_right_down_to_merged_tokens(x64):
    x = jnp.asarray([[1.0, 0.0], [1.0, 1e-13], [-1.0, 1e-13]])
    same, up_to_sign = np.asarray(MergeAngles()(x, None))
    np.testing.assert_allclose(same, [1e-13, np.pi], rtol=1e-6)
    np.testing.assert_allclose(up_to_sign[0], 1e-13, rtol=1e-3)
    assert cluster_count(same, 1e-12) == 2


def test_observables_conform():
    testing.check_observable(MergeAngles())
    testing.check_observable(GramRank())


def run(**settings):
    settings = {"attention": "none", "start": "equiangular", "tokens": 2, **settings}
    return watch(prepare(settings), (MergeAngles(),))


def share(hits, exact, resolution):
    """|share - exact| <= 5 SE of a binomial, whose 5 SE notice the resolution."""
    error = np.sqrt(max(exact * (1 - exact), 1 / len(hits)) / len(hits))
    assert 5 * error <= resolution
    return abs(np.mean(hits) - exact) <= 5 * error


@pytest.mark.stat
@pytest.mark.filterwarnings("ignore::synchronoise.FloorWarning")
@pytest.mark.parametrize("activation", ["linear", pytest.param("tanh", marks=pytest.mark.slow)])
def test_an_odd_field_ends_in_two_points_with_the_theorys_probabilities(activation):
    """P(ρ_∞ = 1) from ρ_0 = 1/2: 2/3 for the linear field (½ + arcsin(ρ_0)/π), by the scale function for tanh."""
    law = kernel_law(sn.Kernel(activation, 4))
    together = absorption_probability(law, 0.5)
    report_on = run(
        activation=activation, dim=4, overlap=0.5, width=4, layers=1000, horizon=60.0, every=500, replicas=1000
    )
    report = cluster_report(report_on, 0.2)
    assert report["attractor"]["other"] < 0.04
    edges = report_on["merge_angles"].values[:, -1, 0, 0]
    assert share(edges < np.pi / 2, together, resolution=0.09)
    assert not share(edges < np.pi / 2, 0.5, resolution=0.09)
    assert report["antipodal_pairs"] == pytest.approx(report["attractor"]["two_points"], abs=0.01)


@pytest.mark.stat
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::synchronoise.FloorWarning")
def test_a_tiny_bias_merges_the_two_points_at_the_isolated_eigenvalue():
    """tanh, d = 4, σ_W = 0.02: up to sign merged early; then P(two opposite clusters) decays at the isolated rate."""
    kernel = sn.Kernel("tanh", 4, 0.0, 0.02)
    rate = sharp_rate(kernel_law(kernel))
    assert rate.part == "isolated"
    first, last, step_ = 60.0, 240.0, 0.15
    dataset = run(
        activation="tanh", dim=4, sigma_w=0.02, width=4, layers=round(last / step_), horizon=last, replicas=2000
    )
    edges, row = dataset["merge_angles"].values[..., 0], round(first / step_)
    assert (edges[:, row, 1] < 0.5).mean() > 0.9
    apart = (edges[:, [row, -1], 0] > np.pi / 2).sum(axis=0)
    assert apart[0] > 0.3 * 2000
    measured = np.log(apart[1] / apart[0]) / (last - first)
    error = np.sqrt(1 / apart[1] - 1 / apart[0]) / (last - first)
    assert 5 * error < 0.4 * -rate.rate
    assert abs(measured - rate.rate) < 5 * error
    assert abs(measured - rate.essential) > 5 * error


@pytest.mark.stat
@pytest.mark.filterwarnings("ignore::synchronoise.FloorWarning")
@pytest.mark.parametrize("beta", [0.8, pytest.param(1.6, marks=pytest.mark.slow), 2.2])
def test_random_values_make_antipodes_above_their_threshold(beta):
    """d = 8: P(antipodal) is 0 below cosh 2β = d - 2, β = 1.2389, and that of the two-token law above (THEORY §6)."""
    exact = 1 - absorption_probability(PairLaw(8, (value_noise(beta),)))
    assert (exact == 0) == (np.cosh(2 * beta) < 6)
    dataset = run(
        noise="values", beta=beta, dim=8, start="uniform", layers=1600, horizon=16.0, every=1600, replicas=1200
    )
    antipodal = dataset["merge_angles"].values[:, -1, 0, 0] > np.pi / 2
    assert share(antipodal, exact, resolution=0.15)
    assert (antipodal.sum() == 0) == (exact == 0)
    assert not share(antipodal, exact + 0.15, resolution=0.15)


COMMON = {
    **NOISES,
    "vector": sn.VectorNoise(0.4),
    "values": sn.ValueNoise(sn.SoftmaxAttention(2.0), 0.4),
    "sum of all": sn.SumNoise(NOISES["drawn"], sn.VectorNoise(0.2), sn.ValueNoise(sn.SinkhornAttention(1.0), 0.2)),
}


@pytest.mark.parametrize("name", COMMON)
def test_synchrony_to_machine_precision(name, x64):
    """Three tight clusters far apart, each with merged tokens: they never part, and distances are followed to 1e-12."""
    noise, d = COMMON[name], 5
    rng = np.random.default_rng(2)
    centres, aside = uniform_tokens(3, d, seed=7, dtype="float64"), rng.standard_normal((3, d))
    aside -= (aside * centres).sum(axis=1, keepdims=True) * centres
    rows = np.concatenate([centres, centres, centres + 1e-5 * aside, centres + 1e-11 * aside])
    x = jnp.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    model = sn.Transformer(sn.SoftmaxAttention(1.0), noise, layers=60, horizon=1.5)
    keys = [many_keys(1, step=k)[0] for k in range(model.layers)]
    layer = jax.jit(lambda key, x: step(key, x, model, 0.025)[0])
    for key in keys:
        x = layer(key, x)
        assert (x[:3] == x[3:6]).all()
    assert np.isfinite(x).all()
    wide, narrow = (np.linalg.norm(x[k : k + 3] - x[:3], axis=1) for k in (6, 9))
    assert wide.max() < 1e-3
    if noise.floor("float64") < 1e-12:
        # the two distances shrink alike, six orders of magnitude apart: no jitter, no floor
        np.testing.assert_allclose(1e6 * narrow / wide, 1, rtol=0.02)


def test_an_interrupted_run_is_no_result(monkeypatch):
    job = prepare({"layers": 20, "tokens": 3, "dim": 3, "replicas": 2, "width": 4, "every": 1})
    interrupt_second_chunk(monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="interrupted at layer"):
        watch(job, (GramRank(),))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="GB are available"):
        watch(prepare({"tokens": 2_000_000, "dim": 3, "width": 4}), (MergeAngles(),))


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["clusters", "--dim", "3", "--tokens", "6", "--layers", "20", "--replicas", "3", "--width", "4"]
    assert cli.status([*words, "--gram-rank"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["clusters"]) == len(result["time"]) == len(result["gram_rank"]) == 11
    assert sum(result["sizes_of_replica_0"]) == 6
    assert sum(result["attractor"].values()) == pytest.approx(1)
    assert (tmp_path / "clusters.png").stat().st_size > 1000
    assert cli.status(words) == 2
    assert cli.status([*words, "--overwrite"]) == 0
    with pytest.raises(RunError):
        check_result("clusters.nc", "escape", overwrite=True)
