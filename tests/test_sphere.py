import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks import uniform_tokens
from synchronoise.errors import UserError
from synchronoise.sphere import (
    Clusters,
    Equiangular,
    Uniform,
    gram,
    half_square_chords,
    layer_norm,
    leaders,
    tangent,
    tokens_from_file,
)

KEY = jax.random.key(0)


def test_layer_norm_is_radial_and_tangent_is_orthogonal(x64):
    v = jnp.asarray(np.random.default_rng(0).standard_normal((50, 7)))
    x = layer_norm(v)
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(jnp.sum(x * tangent(x, v), axis=1), 0, atol=1e-14)
    np.testing.assert_allclose(layer_norm(3.0 * v), x, atol=1e-15)


@pytest.mark.parametrize("length", [1e25, 1e-25])
def test_a_length_whose_square_does_not_fit_is_no_number(length):
    """In float32; dividing by an infinite length would give a token that is zero, and finite."""
    assert np.isnan(layer_norm(jnp.array([[length, length]]))).all()
    np.testing.assert_allclose(layer_norm(jnp.array([[1e18, 0.0], [1e-18, 0.0]])), [[1.0, 0.0]] * 2)


def test_chords_keep_what_a_dot_product_loses(x64):
    angle = 1e-11
    x = jnp.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    assert half_square_chords(x)[0, 1] == pytest.approx(angle**2 / 2, rel=1e-12)
    assert 1 - gram(x)[0, 1] == 0


@pytest.mark.parametrize("n", [1, 2, 9, 600])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_leaders_find_bitwise_equal_tokens(n, dtype, x64):
    x = uniform_tokens(n, 4, dtype=dtype)
    first = np.arange(n)
    for copy, original in ((n - 1, 0), (n // 2, 0), (n - 1, n // 3)):
        if copy > original:
            x[copy], first[copy] = x[original], first[original]
    assert np.array_equal(leaders(jnp.asarray(x)), first)
    if n > 2:  # one unit in the last place is another token
        x[n - 1, 0] = np.nextafter(x[n - 1, 0], 2, dtype=dtype)
        first[n - 1] = n - 1
        assert np.array_equal(leaders(jnp.asarray(x)), first)


def test_negative_zero_is_zero():
    assert leaders(jnp.array([[0.0, 1.0], [-0.0, 1.0]])).tolist() == [0, 0]


def test_uniform_tokens_have_the_moments_of_the_sphere():
    x = np.asarray(Uniform(20_000, 6)(KEY, jnp.float32))
    np.testing.assert_allclose(x.mean(0), 0, atol=5 / np.sqrt(6 * 20_000))
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(6) / 6, atol=0.01)
    assert np.abs((x**4).mean() - 3 / (6 * 8)) < 0.002  # E x_1^4 = 3/(d(d+2)), not the 3/d² of a Gaussian
    assert np.abs((x**4).mean() - 3 / 36) > 0.01


def test_clusters():
    x = Clusters(9, 8, clusters=3, spread=0.01)(KEY, jnp.float32)
    overlaps = np.asarray(gram(x))
    same = np.arange(9)[:, None] % 3 == np.arange(9) % 3
    assert overlaps[same].min() > 0.99
    assert overlaps[~same].max() < 0.95


@pytest.mark.parametrize(
    ("n", "d", "overlap"), [(3, 5, 0.3), (16, 16, 0.0), (3, 2, -0.5), (1, 2, 0.0), (4, 3, 1.0), (2, 2, -1.0)]
)
def test_equiangular(n, d, overlap, x64):
    x = Equiangular(n, d, overlap)(KEY, jnp.float64)
    expected = np.where(np.eye(n), 1, overlap)
    np.testing.assert_allclose(gram(x), expected, atol=1e-7 if abs(overlap) == 1 else 1e-12)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Uniform(3, 1), "dim"),
        (lambda: Uniform(0, 3), "tokens"),
        (lambda: Clusters(3, 4, clusters=4), "clusters"),
        (lambda: Clusters(3, 4, clusters=2, spread=-1.0), "spread"),
        (lambda: Equiangular(4, 3, 0.5), "dim"),
        (lambda: Equiangular(4, 8, -0.5), "overlap"),
    ],
)
def test_impossible_starts_are_one_line(build, what):
    with pytest.raises(UserError, match=what) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_tokens_from_file(tmp_path):
    rows = np.array([[3.0, 4.0], [0.0, 2.0]])
    np.save(tmp_path / "x.npy", rows)
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",")
    for name in ("x.npy", "x.csv"):
        x, off = tokens_from_file(tmp_path / name)
        np.testing.assert_allclose(x, [[0.6, 0.8], [0.0, 1.0]])
        assert off == pytest.approx(4)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.npy", None),
        ("empty.csv", ""),
        ("words.csv", "a,b\nc,d\n"),
        ("narrow.csv", "1\n2\n"),
        ("ragged.csv", "1,2\n3\n"),
        ("nan.csv", "1,nan\n"),
        ("zero.csv", "0,0\n1,2\n"),
        ("tokens.txt", "1,2\n"),
        ("broken.npy", "not a npy file"),
    ],
)
def test_bad_token_files_are_one_line(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="start file") as caught:
        tokens_from_file(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_pickled_array_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="start file"):
        tokens_from_file(tmp_path / "x.npy")
