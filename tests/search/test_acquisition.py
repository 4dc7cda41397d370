import numpy as np
import pytest
from helpers.builders import search
from hypothesis import given
from hypothesis import strategies as st

from kareus.search.dataset import Dataset
from kareus.search.problem import CostPrediction
from kareus.search.strategy import normalised_improvement, pass_sizes, plane, select

STATIC_W = 60.0


def dataset(costs):
    time_s, dynamic_j = np.array(costs, dtype=float).T
    return Dataset(np.arange(len(costs)), time_s, dynamic_j + STATIC_W * time_s, STATIC_W)


def prediction(costs):
    return CostPrediction(*np.array(costs, dtype=float).T)


@pytest.mark.parametrize(("batch", "sizes"), [(16, (6, 3, 3)), (32, (12, 6, 6)), (15, (6, 3, 3)), (1, (0, 0, 0))])
def test_pass_sizes_are_floors(batch, sizes):
    assert tuple(pass_sizes(search(), batch).values()) == sizes


def test_hyperparameters_are_those_of_the_appendix():
    config = search()
    sizes = [(s.initial, s.max_rounds, s.batch) for s in (config.small, config.medium, config.large)]
    assert sizes == [(36, 3, 16), (48, 4, 16), (96, 4, 32)]
    assert (config.total_energy_share, config.dynamic_energy_share, config.static_energy_share) == (0.4, 0.2, 0.2)
    assert (config.max_depth, config.learning_rate, config.boost_rounds) == (6, 0.3, 100)
    assert (config.ensemble_size, config.bootstrap_fraction) == (5, 0.8)
    assert (config.reference_margin, config.stopping_window, config.stopping_improvement) == (1.1, 2, 1e-3)


def test_every_pass_looks_at_its_own_energy():
    points = {
        name: plane(name, np.array([2.0]), np.array([100.0]), STATIC_W)[0] for name in ("total", "dynamic", "static")
    }
    assert {name: tuple(p) for name, p in points.items()} == {
        "total": (2.0, 220.0),
        "dynamic": (2.0, 100.0),
        "static": (2.0, 120.0),
    }


def test_the_static_pass_seeks_the_fastest():
    data = dataset([(5, 50), (6, 40)])
    offered = [(5.5, 10), (5.2, 400), (4.9, 500), (7, 1)]
    chosen = select(
        data,
        prediction(offered),
        np.zeros(4),
        search(static_energy_share=0.5, total_energy_share=0.0, dynamic_energy_share=0.0),
        4,
    )
    assert chosen[2].chosen_by == "static"
    assert chosen[2].candidates.tolist() == [2, 1]


def test_passes_that_agree_are_all_credited_and_exploration_fills_the_batch():
    data = dataset([(5, 50), (6, 40)])
    offered = [(4, 30), (10, 90), (10, 91), (10, 92), (10, 93)]
    config = search(total_energy_share=0.25, dynamic_energy_share=0.25, static_energy_share=0.25)
    chosen = select(data, prediction(offered), np.array([0, 1, 4, 3, 2.0]), config, 4)
    assert [(c.chosen_by, c.candidates.tolist()) for c in chosen] == [
        ("total", [0]),
        ("dynamic", [0]),
        ("static", [0]),
        ("uncertainty", [2, 3, 4]),
    ]


costs = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 200)), min_size=2, max_size=30)


@given(costs, costs, st.integers(1, 32), st.integers(0, 2**31))
def test_a_batch_is_full_and_credits_every_pass(measured, offered, batch, seed):
    uncertainty = np.random.default_rng(seed).random(len(offered))
    chosen = select(dataset(measured), prediction(offered), uncertainty, search(), batch)
    by_pass = {c.chosen_by: set(c.candidates.tolist()) for c in chosen}
    explored = by_pass.pop("uncertainty")
    exploited = set().union(*by_pass.values())
    assert len(exploited) + len(explored) == len(exploited | explored) == min(batch, len(offered))
    sizes = {name: min(size, len(offered)) for name, size in pass_sizes(search(), min(batch, len(offered))).items()}
    assert {name: len(own) for name, own in by_pass.items()} == sizes


def test_improvement_has_the_appendix_reference_point():
    measured = np.array([[2.0, 10.0], [1.0, 20.0]])
    # Scaled: front (1, .5), (.5, 1), reference (1.1, 1.1); the point (.5, .5) adds (1.0 - .5) x (1.0 - .5)
    assert normalised_improvement(np.array([[1.0, 10.0]]), measured, 1.1) == pytest.approx([0.25])
