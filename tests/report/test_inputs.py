import dataclasses

import pytest
from helpers.builders import resealed
from helpers.report_tables import SIMULATED, WORKLOAD, with_runs, write_inputs

from kareus.artifacts.files import read_json, write_json
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.errors import ArtifactError
from kareus.report.workload.inputs import load
from kareus.search.tables import ROUNDS

OTHER = dataclasses.replace(SIMULATED, kind="cuda", detail="GPU-0")


@pytest.fixture
def paths(tmp_path):
    return write_inputs(tmp_path / "one")


def test_a_report_is_of_the_testbed_and_seed_of_its_tables(paths):
    inputs = load(WORKLOAD, paths)
    assert inputs.testbed == SIMULATED
    assert inputs.provenance.seed == 7
    assert inputs.provenance.created_at
    assert inputs.gpus == 16


def test_every_table_is_named_as_a_source(paths):
    names = [source.name for source in load(WORKLOAD, paths).sources]
    assert len(names) == len(set(names)) == 2 + 3 * len(paths.candidates)


@pytest.mark.parametrize("name", ["iteration", "microbatch", "candidates", "rounds", "proposals", "plans"])
def test_inputs_of_two_testbeds_are_refused(paths, tmp_path, name):
    foreign = write_inputs(tmp_path / "two", testbed=OTHER)
    with pytest.raises(ArtifactError, match=r"simulated testbed, A100-SXM4-40GB.*Rerun all on one") as error:
        load(WORKLOAD, dataclasses.replace(paths, **{name: getattr(foreign, name)}))
    assert "measured on A100-SXM4-40GB" in str(error.value)


def test_runs_are_of_the_same_testbed_and_named_as_a_source(paths, tmp_path):
    inputs = load(WORKLOAD, with_runs(paths, tmp_path))
    assert inputs.sources[-1].name == "iterations of end-to-end"
    with pytest.raises(ArtifactError, match="Rerun all on one"):
        load(WORKLOAD, with_runs(paths, tmp_path, OTHER))


def test_a_table_of_another_workload_is_refused(paths):
    table, origin = read_table(paths.rounds[0], ROUNDS), read_provenance(paths.rounds[0], ROUNDS)
    write_table(paths.rounds[0], table, ROUNDS, dataclasses.replace(origin, subject="other"))
    with pytest.raises(ArtifactError, match="rounds of forward-mlp-allreduce: made for another"):
        load(WORKLOAD, paths)


def test_a_plan_of_another_workload_is_refused(paths):
    with pytest.raises(ArtifactError, match=rf"fastest\.json: a plan for {WORKLOAD}, expected another"):
        load("another", paths)


def test_a_file_that_is_no_plan_is_refused(paths):
    write_json(paths.plans[0], resealed({**read_json(paths.plans[0]), "methd": "kareus"}))
    with pytest.raises(ArtifactError, match=r"fastest\.json: methd: unknown key; perhaps you meant method"):
        load(WORKLOAD, paths)


def test_an_edited_plan_is_refused(paths):
    write_json(paths.plans[0], {**read_json(paths.plans[0]), "selector": "edp"})
    with pytest.raises(ArtifactError, match=r"fastest\.json: was edited .*: its seal"):
        load(WORKLOAD, paths)


def test_a_plan_under_the_name_of_another_request_is_refused(paths):
    write_json(paths.plans[0], read_json(paths.plans[1]))
    with pytest.raises(ArtifactError, match=r"fastest\.json: .*'deadline=4s'"):
        load(WORKLOAD, paths)


def test_a_partition_needs_both_its_tables(paths):
    with pytest.raises(ArtifactError, match=r"candidates of backward.*forward.* but rounds of forward-mlp-allreduce;"):
        load(WORKLOAD, dataclasses.replace(paths, rounds=paths.rounds[:1]))


def test_searches_keep_their_partitions_in_any_file_order(paths):
    turned = dataclasses.replace(paths, rounds=paths.rounds[::-1])
    assert [s.partition for s in load(WORKLOAD, turned).searches] == ["forward-mlp-allreduce", "backward-mlp-allreduce"]
