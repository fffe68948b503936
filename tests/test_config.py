"""A run as data: every mistake is one line, and a configuration survives its file."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synchronoise.config import ATTENTIONS, LARGEST, NOISES, RunConfig, configure, read_toml, refuse_idle, to_toml
from synchronoise.errors import UserError
from synchronoise.options import OPTIONS

finite = st.floats(-LARGEST, LARGEST)
positive = st.floats(0, LARGEST, exclude_min=True)
nonnegative = st.floats(0, LARGEST)
count = st.integers(1, LARGEST)

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "activation": st.sampled_from(["relu", "tanh", "sin:4.6", "gelu", "leaky_relu:0.1"]),
        "dim": st.integers(2, LARGEST),
        "sigma_u": nonnegative,
        "sigma_w": nonnegative,
        "beta": finite,
        "attention": st.sampled_from(ATTENTIONS),
        "attention_scale": finite,
        "noise": st.sampled_from([*NOISES, "mlp+values", "mlp+private:0.3"]),
        "tokens": count,
        "width": st.one_of(count, st.just("inf")),
        "layers": count,
        "horizon": positive,
        "start": st.one_of(
            st.sampled_from(["uniform", "clusters", "equiangular"]),
            st.text(st.characters(codec="utf-8"), min_size=1).map(lambda name: name + ".npy"),
        ),
        "overlap": st.floats(-1, 1),
        "seed": st.integers(0, 2**32 - 1),
        "dtype": st.sampled_from(["float32", "float64"]),
        "save_tokens": st.booleans(),
    },
)


def test_fields_and_options_are_the_same_names():
    assert list(RunConfig.model_fields) == list(OPTIONS)


@settings(deadline=None)
@given(VALUES)
def test_file_and_back(values):
    config = configure(values)
    again = configure(tomllib.loads(to_toml(config)))
    assert again == config
    assert to_toml(again) == to_toml(config)


def one_line_or_a_config(make) -> RunConfig | None:
    try:
        return make()
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return None


ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*OPTIONS, "dims", "sigma"]), ANYTHING))
def test_anything_else_is_one_line(values):
    """Whatever is thrown at it: a configuration that survives its file, or one line."""
    config = one_line_or_a_config(lambda: configure(values))
    assert config is None or configure(tomllib.loads(to_toml(config))) == config


@settings(deadline=None)
@given(st.text())
def test_any_text_as_a_file_is_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "run.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    one_line_or_a_config(lambda: configure(read_toml(path), source=path.name))


@pytest.mark.parametrize(
    "values",
    [
        {"layers": 2**31}, {"dim": 10**400}, {"redraw": 10**20}, {"sigma_u": 1e200}, {"attention_scale": -1e25},
        {"noise": "mlp+private:1e300"}, {"activation": "sin:1e300"}, {"activation": "-1e300*relu"},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_that_no_loop_could_take_is_one_line(values):
    (name,) = values
    with pytest.raises(UserError, match=f"{name}.*expected no number beyond 2147483647") as caught:
        configure(values)
    assert "\n" not in str(caught.value)
    assert configure({"layers": LARGEST, "activation": "-2*sin:4.6"}).layers == LARGEST


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "run.toml").write_text("dim = 3", encoding="utf-8-sig")
    assert read_toml(tmp_path / "run.toml") == {"dim": 3}


def test_infinite_width_in_every_spelling():
    assert {configure({"width": width}).width for width in ("inf", math.inf)} == {"inf"}
    assert configure(tomllib.loads("width = inf")).width == "inf"
    assert configure({"width": "16"}).width == 16


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dim", 1), ("dim", 2.5), ("dim", "64"), ("dim", True), ("tokens", 0), ("width", 0), ("width", -3),
        ("width", "wide"), ("width", 2.5), ("width", True), ("layers", 0), ("horizon", 0.0),
        ("horizon", -1.0), ("horizon", math.inf), ("sigma_u", -0.1), ("sigma_w", math.nan),
        ("beta", math.inf), ("beta", "1"), ("seed", -1), ("seed", 2**32), ("replicas", 0), ("every", 0),
        ("chunk", -1), ("dtype", "float16"), ("save_tokens", 1), ("overlap", 1.5), ("activation", 3),
    ],
)  # fmt: skip
def test_a_bad_value_says_what_got_and_expected(name, value):
    with pytest.raises(UserError) as caught:
        configure({name: value}, source="run.toml")
    message = str(caught.value)
    assert message.startswith(f"{name} in run.toml: got {value!r}, expected {OPTIONS[name].expects}; for example ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("activation", "rellu", "relu"), ("attention", "softmx", "softmax"), ("noise", "mlpp", "mlp"),
        ("start", "unifrom", "uniform"), ("dims", 3, "dim"), ("sigma_uu", 0.1, "sigma_u"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_answered_with_the_known_one(name, value, meant):
    with pytest.raises(UserError, match=f"did you mean '{meant}'"):
        configure({name: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "not a text file"),
        (b"dim = ", "is not TOML"),
        (b"dim 3", "is not TOML"),
        (b"dim = 3\ndim = 4", "is not TOML"),
        (b"dim = " + b"9" * 5000, "is not TOML"),
        (b"dim = " + b"[" * 100_000, "is not TOML"),
    ],
)
def test_an_unreadable_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_toml(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "without"),
    [
        ({"heads": 2}, "multihead"), ({"overlap": 0.5}, "equiangular"), ({"spread": 0.5}, "clusters"),
        ({"noise": "vector", "width": "8"}, "an mlp"), ({"noise": "private", "sigma_u": 0.1}, "an mlp"),
        ({"attention": "none", "attention_scale": 2.0}, "attention"), ({"attention": "none", "beta": 2.0}, "attention"),
        ({"attention_scale": 0.0, "method": "dense"}, "attention"),
    ],
)  # fmt: skip
def test_what_would_change_nothing_is_refused(typed, without):
    with pytest.raises(UserError, match=f"changes nothing without .*{without}"):
        refuse_idle(typed, configure(typed), energy=False)
    mended = {"attention": "multihead", "attention_scale": 2.0, "start": "clusters", "noise": "mlp"}
    if "overlap" in typed:
        mended["start"] = "equiangular"
    refuse_idle(typed, configure({**typed, **mended}), energy=False)
