"""The noise contract: the same address gives the same field, or the noise says that it is no field."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import synchronoise as sn
from checks import NOISES, uniform_tokens
from synchronoise.errors import UserError
from synchronoise.randomness import Role, address, replica_keys, step_key
from synchronoise.simulation import _begin, batches_in_a_call

FIELDS = [name for name, noise in NOISES.items() if not noise.in_law_only]
LAWS = [name for name, noise in NOISES.items() if noise.in_law_only]


def key_at(seed, replica, step):
    return step_key(replica_keys(seed, replica + 1)[replica], step)


def data(key):
    return jax.random.key_data(key).tolist()


def test_every_part_of_an_address_matters():
    keys = {
        tuple(data(address(seed, replica, step, role)))
        for seed in (0, 1)
        for replica in (0, 1, 2)
        for step in (0, 1, 5)
        for role in Role
    }
    assert len(keys) == 2 * 3 * 3 * len(Role)


def test_a_replica_has_the_same_key_whatever_the_number_of_replicas():
    assert data(replica_keys(3, 4)[2]) == data(replica_keys(3, 900)[2]) == data(replica_keys(3, 1, first=2)[0])


def test_longer_arrays_begin_with_the_shorter_ones():
    key = key_at(0, 0, 0)
    for dtype in (jnp.float32,):
        few, many = (jax.random.normal(key, (n, 7), dtype) for n in (5, 64))
        assert (few == many[:5]).all()


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_the_same_for_any_number_and_order_of_tokens(name, x64):
    noise, x = NOISES[name], jnp.asarray(uniform_tokens(40, 5, dtype="float64"))
    field = noise.field(key_at(0, 2, 7))
    whole = field(x)
    order = np.random.default_rng(1).permutation(40)
    np.testing.assert_allclose(field(x[:3]), whole[:3], rtol=0, atol=1e-14)
    np.testing.assert_allclose(field(x[order]), whole[order], rtol=0, atol=1e-14)
    np.testing.assert_allclose(field(x[-1:]), whole[-1:], rtol=0, atol=1e-14)
    other = noise.field(key_at(0, 2, 8))(x)
    assert np.abs(other - whole).max() > 0.1  # the same test would see another address


@pytest.mark.parametrize("name", LAWS)
def test_a_noise_that_is_no_field_says_so(name, x64):
    noise, x = NOISES[name], jnp.asarray(uniform_tokens(40, 5, dtype="float64"))
    with pytest.raises(UserError, match="at the tokens only"):
        noise.field(key_at(0, 2, 7))
    if name == "in_law":  # and rightly: other tokens see another noise at the same point
        key = key_at(0, 2, 7)
        assert np.abs(noise.increment(key, x)[:3] - noise.increment(key, x[:3])).max() > 0.01


def test_the_gaussian_field_extends_to_more_tokens(x64):
    noise, x = NOISES["field"], jnp.asarray(uniform_tokens(40, 5, dtype="float64"))
    key = key_at(0, 0, 0)
    np.testing.assert_allclose(noise.increment(key, x)[:6], noise.increment(key, x[:6]), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("drawn", "float32"),
        ("in_law", "float64"),
        ("field", "float32"),
        ("sum_in_law", "float64"),
    ],
)
def test_no_number_depends_on_replicas_or_chunks(name, dtype, x64):
    model = sn.Transformer(sn.SoftmaxAttention(), NOISES[name], layers=6, horizon=1.0)

    def run(replicas, chunk):
        return sn.simulate(
            model, sn.Uniform(9, 5), replicas=replicas, chunk=chunk, save_tokens=True, dtype=dtype, seed=4
        )

    reference = run(17, 3)
    for replicas, chunk in ((1, 2), (5, 3)):
        other = run(replicas, chunk)
        for variable in ("tokens", "energy", "overlap_quantiles"):
            assert (other[variable].values == reference[variable].values[:replicas]).all(), (variable, replicas)


@pytest.mark.parametrize(("tokens", "replicas"), [(2, 64 * 64 + 1), (8, 70)])
def test_batches_that_share_a_call_change_no_number(tokens, replicas):
    """Many small batches go through one call: every replica has the bits it has in a small ensemble."""
    model = sn.Transformer(sn.SoftmaxAttention(), NOISES["field"], layers=3, horizon=1.0)

    def run(replicas):
        return sn.simulate(model, sn.Uniform(tokens, 5), replicas=replicas, save_tokens=True, seed=4)["tokens"].values

    assert batches_in_a_call(model, tokens, 5, replicas) > 1 == batches_in_a_call(model, tokens, 5, 3)
    many = run(replicas)
    assert (many[:3] == run(3)).all()
    assert len(np.unique(many[:, -1, 0, 0])) == replicas


@pytest.mark.parametrize(
    "start",
    [
        sn.Uniform(9, 5),
        sn.Uniform(300, 64),
        sn.Clusters(8, 4, clusters=2, spread=0.1),
        sn.Equiangular(3, 8, overlap=0.2),
    ],
)
def test_a_start_does_not_depend_on_how_many_are_drawn(start):
    many = _begin(start, replica_keys(1, 100), "float32")
    for replicas in (1, 3, 17):
        assert (_begin(start, replica_keys(1, replicas), "float32") == many[:replicas]).all(), replicas


def test_a_run_does_not_depend_on_attention_or_start_through_its_noise(x64):
    x = jnp.asarray(uniform_tokens(4, 5, dtype="float64"))
    noise, key = NOISES["drawn"], key_at(5, 1, 3)
    attended = sn.step(key, x, sn.Transformer(sn.SoftmaxAttention(), noise, layers=10, horizon=1.0), 0.1)[0]
    y = sn.step(key, x, sn.Transformer(sn.SoftmaxAttention(), None, layers=10, horizon=1.0), 0.1)[0]
    moved = y + np.sqrt(0.1) * noise.field(key)(y)
    np.testing.assert_allclose(attended, moved / np.linalg.norm(moved, axis=1, keepdims=True), atol=1e-14)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range(seed):
    with pytest.raises(UserError, match="seed"):
        replica_keys(seed, 1)
