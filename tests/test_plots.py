"""Figures draw what they are given: legible, inside the page, without warnings or a changed setting."""

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text

from synchronoise import plots
from synchronoise.plots_convergence import limits_figure
from synchronoise.plots_flow import escape_figure
from synchronoise.plots_meanfield import corollary_figure

LAYERS = np.arange(0, 31)
COLUMNS = ["attention scale +1", "no attention", "attention scale −1"]
ROWS = ["d = 5, σ = 0", "d = 128, σ = 0.1"]


def result(rate, note="", replicas=16):
    """Energies that decay at `rate`, with made-up overlaps and tokens."""
    rng = np.random.default_rng(0)
    time = LAYERS / 10
    mean = 0.8 * np.exp(-rate * time)
    energy = mean * np.exp(0.1 * rng.standard_normal((replicas, LAYERS.size)))
    shares = rng.random((LAYERS.size, 50))
    quantiles = np.sort(rng.uniform(-1, 1, (replicas, LAYERS.size, 3)))
    return xr.Dataset(
        {
            "energy": (("replica", "layer"), energy),
            "energy_mean": ("layer", energy.mean(0)),
            "energy_se": ("layer", energy.std(0) / 4),
            "energy_prediction": ("layer", mean),
            "energy_bound": ("layer", 2 * mean),
            "overlap_share": (("layer", "overlap"), shares / shares.sum(1, keepdims=True)),
            "overlap_quantiles": (("replica", "layer", "quantile"), quantiles),
            "tokens": (("replica", "layer", "token", "dim"), rng.uniform(-1, 1, (replicas, LAYERS.size, 4, 4))),
        },
        {"layer": LAYERS, "time": ("layer", time), "overlap": np.linspace(-0.98, 0.98, 50)},
        {"note": note},
    )


def grid(rate):
    note = "L too small: (T/L) κ(1)(d−1) = 0.53"
    return [[result(rate, note) for _ in COLUMNS] for _ in ROWS]


FIGURES = {
    "figure1": lambda: plots.figure1({"ReLU": result(0.1), "tanh": result(0.1)}, "a caption"),
    "overview": lambda: plots.overview({"ReLU": result(0.1), "tanh": result(0.1)}, result(3.0), "a caption"),
    "overlaps": lambda: plots.overlap_grid(grid(0.1), ROWS, COLUMNS, "a caption"),
    "energies": lambda: plots.energy_grid(grid(0.1), ROWS, COLUMNS, "a caption"),
    "decaying energies": lambda: plots.energy_grid(grid(20.0), ROWS, COLUMNS, "a caption"),
    "run": lambda: plots.run_figure(result(3.0), "a caption"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_word_is_on_the_page_and_at_least_7_points(name):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name]()
    assert dict(matplotlib.rcParams) == before
    figure.canvas.draw()
    page = figure.bbox
    assert page.width / figure.dpi == plots.PAGE_WIDTH
    # Ticks beyond the limits of an axis have labels that are never drawn.
    ticks = {
        label
        for axis in figure.axes
        for label in (*axis.get_xticklabels(which="both"), *axis.get_yticklabels(which="both"))
    }
    assert min(label.get_fontsize() for label in ticks) >= 7
    words = set(figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_text().strip() != "")) - ticks
    assert len(words) >= 6
    for text in words:
        box = text.get_window_extent()
        assert box.x0 >= page.x0 - 1, text
        assert box.x1 <= page.x1 + 1, text
        assert box.y0 >= page.y0 - 1, text
        assert box.y1 <= page.y1 + 1, text
        assert text.get_fontsize() >= 7, text


def curves(axis, label):
    return [line.get_ydata() for line in axis.lines if line.get_label() == label]


def test_the_data_and_the_theory_are_drawn_as_they_are():
    axis = plots.energy_grid(grid(0.1), ROWS, COLUMNS, "a caption").axes[0]
    data = result(0.1)
    np.testing.assert_array_equal(curves(axis, "single run"), data["energy"].values[:1])
    np.testing.assert_array_equal(curves(axis, "mean ± 1 SE"), [data["energy_mean"].values])
    np.testing.assert_array_equal(curves(axis, "two-token equation (limit)"), [data["energy_prediction"].values])
    np.testing.assert_array_equal(curves(axis, "bound of Theorem 1.4 (limit)"), [data["energy_bound"].values])


@pytest.mark.parametrize(("rate", "scale"), [(0.1, "linear"), (20.0, "log")])
def test_energies_are_logarithmic_where_they_decay_and_start_at_zero_elsewhere(rate, scale):
    for axis in plots.energy_grid(grid(rate), ROWS, COLUMNS, "a caption").axes:
        assert axis.get_yscale() == scale
        bottom, top = axis.get_ylim()
        assert top > 0.8
        assert bottom == 0 if scale == "linear" else 0 < bottom < 0.8 * np.exp(-rate * 3)


def test_what_is_below_the_floor_of_the_arithmetic_is_shaded():
    data = result(20.0).assign_attrs(floor_energy=1e-20)
    axis = plots.energy_grid([[data]], ["d = 5"], ["no attention"], "a caption").axes[0]
    (shade,) = [patch for patch in axis.patches if patch.get_label() == "rounding"]
    assert shade.get_y() + shade.get_height() == 1e-20
    assert not plots.energy_grid(grid(20.0), ROWS, COLUMNS, "a caption").axes[0].patches


def test_theory_that_is_not_there_is_not_drawn():
    bare = result(0.1, "not covered by theory: attention repels").drop_vars(["energy_prediction", "energy_bound"])
    axis = plots.energy_grid([[bare]], ["d = 5"], ["attention scale −1"], "a caption").axes[0]
    assert not curves(axis, "two-token equation (limit)")
    assert not curves(axis, "bound of Theorem 1.4 (limit)")
    assert [text.get_text() for text in axis.texts] == ["not covered by theory: attention repels"]


def test_the_corollary_draws_every_cell_of_its_grid():
    """Seven numbers of tokens, more than there are colours: none is dropped."""
    rng = np.random.default_rng(0)
    sizes = {"tokens": [2**k for k in range(1, 8)], "layers": [4, 16], "width": [8, 64]}
    shape = tuple(map(len, sizes.values()))
    fit = 1 / np.array(sizes["tokens"])[:, None, None] + np.zeros(shape)
    error = fit[..., None] * rng.uniform(0.9, 1.1, (*shape, 9))
    cells = tuple(sizes)
    data = {
        "error": ((*cells, "replica"), error),
        "fit": (cells, fit),
        "interval": (("end", *cells), np.quantile(error, [0, 1], axis=-1)),
    }
    axis = corollary_figure(xr.Dataset(data, sizes), "a caption").axes[0]
    drawn = sorted(float(bars.lines[0].get_ydata()[0]) for bars in axis.containers)
    np.testing.assert_allclose(drawn, np.sort(error.mean(axis=-1).ravel()))
    assert len(axis.get_legend().get_texts()) == 1 + 7 * 2


def test_more_curves_than_colours_are_all_drawn():
    times = {f"strength {k}": np.array([0.1, 0.2, np.inf]) for k in range(12)}
    assert len(escape_figure(times, 1.0, "a caption").axes[0].lines) == 12
    sizes = {"layers": [2**k for k in range(1, 11)], "width": [8.0, np.inf]}
    error = 1 / np.array(sizes["layers"])[:, None] * np.ones((1, 2))
    data = {name: (tuple(sizes), error) for name in ("mean", "low", "high", "fit")}
    against_width = limits_figure(xr.Dataset(data, sizes), "a caption").axes[1]
    assert sum(line.get_label().startswith("L = ") for line in against_width.lines) == 10
