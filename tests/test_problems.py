"""The reference problems: the simulator meets their exact answers, and a broken one does not."""

import numpy as np
import pytest

from synchronoise import Transformer, simulate
from synchronoise.problems import PROBLEMS

REPLICAS = {"token decay": 3_000, "pair energy": 2_000, "merging slope": 200}


def solve(name, model):
    problem = PROBLEMS[name]
    run = simulate(model, problem.start, observers=problem.observers, every=model.layers, replicas=REPLICAS[name])
    return problem.read(run)


def meets(samples, problem):
    """|mean - exact| <= 5 SE + bias, asserting first that this notices a tenth of the answer."""
    allowed = 5 * samples.std(ddof=1) / np.sqrt(samples.size) + problem.bias
    assert allowed < 0.1 * abs(problem.exact)
    return abs(samples.mean() - problem.exact) <= allowed


@pytest.mark.stat
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_simulator_meets_the_exact_answer_and_a_forgotten_root_does_not(name):
    problem = PROBLEMS[name]
    assert meets(solve(name, problem.model), problem)
    # T/L in place of √(T/L) is a horizon of T²/L: hardly any noise is left
    layers, horizon = problem.model.layers, problem.model.horizon
    twin = Transformer(None, problem.model.noise, layers=layers, horizon=horizon**2 / layers)
    assert not meets(solve(name, twin), problem)


def test_pair_energy_is_the_reference_value():
    assert abs(PROBLEMS["pair energy"].exact - 0.6345792) < 1e-5 * 0.63
