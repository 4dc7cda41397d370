import dataclasses
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import moocore
import numpy as np
import polars as pl
import pytest
from helpers.builders import a100, graphs
from hypothesis import given
from hypothesis import strategies as st

import search
from kareus.gpu_model import model
from kareus.gpu_model.coefficients import SHARES
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.profile.programs import partition_program
from yardstick import other_laws
from yardstick.score import Trajectory, gpu_time_ratio, gpu_time_ratio_to_end, hypervolume_shares
from yardstick.truths import PERTURBATION, TruthKind, perturbed, truth_of

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
CLOCKS = np.arange(900.0, 1411.0, 30.0)


def trajectory(gpu_s, shares):
    return Trajectory(np.array(gpu_s, dtype=float), np.array(shares, dtype=float))


@given(st.integers(0, 10_000), st.integers(2, 40))
def test_shares_are_those_of_an_independent_hypervolume(seed, candidates):
    random = np.random.default_rng(seed)
    truth = random.uniform(1, 5, size=(candidates, 2))
    measured = random.permutation(candidates)
    front = truth[moocore.is_nondominated(truth)]
    ideal, reference = front.min(axis=0), 1.1 * front.max(axis=0)
    scaled = (truth - ideal) / (reference - ideal)
    whole = moocore.hypervolume(scaled, ref=[1.0, 1.0])
    shares = hypervolume_shares(truth, measured)
    expected = [moocore.hypervolume(scaled[measured[: n + 1]], ref=[1.0, 1.0]) / whole for n in range(candidates)]
    assert shares == pytest.approx(expected)
    assert shares[-1] == pytest.approx(1.0)


def test_the_ratio_counts_until_the_final_paper_hypervolume():
    paper = trajectory([10, 20, 30, 40], [0.5, 0.9, 0.95, 0.95])
    ours = trajectory([3, 6, 9], [0.8, 0.95, 0.99])
    assert gpu_time_ratio(ours, paper) == pytest.approx(6 / 30)
    assert gpu_time_ratio_to_end(ours, paper) == pytest.approx(6 / 40)


def test_ending_below_paper_is_no_saving():
    paper = trajectory([10, 20], [0.5, 0.96])
    assert gpu_time_ratio(trajectory([1, 2], [0.9, 0.95]), paper) == math.inf


def test_rounding_does_not_decide_who_reached_the_hypervolume():
    paper = trajectory([10], [0.1 + 0.2])
    assert gpu_time_ratio(trajectory([5], [0.3]), paper) == pytest.approx(0.5)


@given(st.integers(0, 10_000))
def test_every_coefficient_is_off_by_no_more_than_allowed(seed):
    nominal, drawn = a100(), perturbed(a100(), np.random.default_rng(seed))
    assert dataclasses.replace(drawn, coefficients=nominal.coefficients) == nominal
    for field in dataclasses.fields(nominal.coefficients):
        before, after = (getattr(gpu.coefficients, field.name) for gpu in (nominal, drawn))
        assert after == 1.0 or (1 - PERTURBATION) * before - 1 <= after <= (1 + PERTURBATION) * before
        if isinstance(before, float):
            assert (1 - PERTURBATION) * before <= after <= (1 + PERTURBATION) * before
        if field.name in SHARES:
            assert after <= 1


def test_a_seed_says_which_truth_it_is():
    assert truth_of(a100(), 3) == truth_of(a100(), 3)
    assert len({truth_of(a100(), seed).gpu.coefficients.contention for seed in range(4)}) == 4
    assert [truth_of(a100(), seed).kind for seed in range(4)] == [TruthKind.PERTURBED, TruthKind.OTHER_LAWS] * 2


@pytest.mark.parametrize("launch", [0, 2])
@pytest.mark.parametrize("sm_count", [3, 30])
def test_other_laws_agree_for_one_program_and_all_schedules(sm_count, launch):
    at_once = other_laws.run_schedules(
        a100(), PARTITION, CLOCKS, np.full_like(CLOCKS, sm_count), np.full_like(CLOCKS, launch)
    )
    program = partition_program(PARTITION, sm_count, PARTITION.operators[launch].name)
    for place, clock in enumerate(CLOCKS):
        alone = other_laws.run_program(a100(), program, clock)
        assert float(alone.time_s) == pytest.approx(at_once.time_s[place])
        assert float(alone.energy_j) == pytest.approx(at_once.energy_j[place])


def test_other_laws_are_other_laws_of_a_similar_gpu():
    grid = np.array([(f, s, launch) for f in CLOCKS for s in (3, 12, 30) for launch in (0, 1, 2, 3)], dtype=float)
    ours = model.run_schedules(a100(), PARTITION, *grid.T)
    others = other_laws.run_schedules(a100(), PARTITION, *grid.T)
    for mine, theirs in ((ours.time_s, others.time_s), (ours.energy_j, others.energy_j)):
        ratio = theirs / mine
        assert 0.5 < ratio.min() < ratio.max() < 2
        assert ratio.max() / ratio.min() > 1.02, "a mere factor is no other law"


def test_voltage_is_that_of_the_top_of_a_clocks_step():
    tops = other_laws.top_of_step_mhz(a100(), CLOCKS)
    assert (tops >= CLOCKS).all()
    assert (tops - CLOCKS < other_laws.VOLTAGE_STEP_MHZ).all()
    assert len(set(tops)) == 4


@pytest.mark.slow
def test_the_benchmark_prints_an_object_and_writes_its_table(tmp_path, monkeypatch, capsys):
    command = ["benchmarks/search.py", "--json", "--quick", "--seeds=1", "--processes=1"]
    command += [f"--out={tmp_path}", "--partitions", "backward-attention-reducescatter"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(search, "ProcessPoolExecutor", lambda jobs, _: ThreadPoolExecutor(jobs))  # no further process
    for library in ("OMP", "OPENBLAS", "MKL"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "1")  # as the benchmark sets them, and leaves them
    search.main()
    found = json.loads(capsys.readouterr().out)
    assert {
        "gpu_time_ratio_median",
        "gpu_time_ratio_wrong_prior",
        "final_hypervolume_share_min",
        "paper_hypervolume_share_median",
    } <= found.keys()
    assert found["gpu_time_ratio_wrong_prior"] is None, "one seed has one truth, of the model's laws"
    rows = pl.read_parquet(tmp_path / "runs.parquet")
    assert set(rows["strategy"]) == {"random", "paper", "informed"}
    assert rows["truth"].unique().to_list() == ["perturbed"]
    ends = rows.filter(strategy="paper").group_by("workload").agg(pl.col("hypervolume_share").max())
    assert found["paper_hypervolume_share_median"] == pytest.approx(ends["hypervolume_share"].median())
