"""`kareus fit --measurements`: calibrations and searches in the store are fitted to; what is unknown is left out."""

import shutil

import pytest
from helpers.builders import CONFIG, a100, all_reduce, gemm, memory
from helpers.calibrations import PROTOCOL, hidden_testbed

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import write_table
from kareus.calibrate.coefficients import expectations
from kareus.calibrate.design import clocks_of, ordered_trials
from kareus.calibrate.measure import measure_trials, shelves_of
from kareus.calibrate.probes import ProbeKind, probes
from kareus.calibrate.rehearsal import hidden_gpu
from kareus.calibrate.stage import CalibrationConfig
from kareus.calibrate.stored import read_stored
from kareus.cli import main
from kareus.errors import ArtifactError
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import Direction, Partition
from kareus.partition.read import partition_rows
from kareus.partition.tables import PARTITIONS
from kareus.profile.bench import Bench
from kareus.profile.programs import partition_program
from kareus.workload.compose import compose

OPTION = "a100-sxm4-40gb"
PARTITION = Partition(
    name="forward-mlp-allreduce",
    direction=Direction.FORWARD,
    operators=(memory("norm", 2**24), gemm("up", 8192, 2048, 3072)),
    collective=all_reduce(2**24),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder with measurements of a hidden GPU: a calibration, and a partition of a workload."""
    folder = tmp_path_factory.mktemp("stored")
    shutil.copytree(CONFIG, folder / "config")
    gpu, hidden = a100(), hidden_gpu(a100(), 4)
    testbed = hidden_testbed(hidden)
    bench = Bench(CalibrationConfig(gpu=hidden, testbed=testbed.config, protocol=PROTOCOL, seed=0), testbed)
    chosen = [probe for probe in probes(8) if probe.kind in (ProbeKind.GEMM, ProbeKind.MEMORY)]
    trials = ordered_trials(chosen, clocks_of(gpu, settable=True), gpu, expectations(gpu), PROTOCOL, 90.0)
    with shelves_of(bench, folder / "results/measurements") as shelves:
        measure_trials(testbed, PROTOCOL, shelves, trials, 90.0)
    with bench.profiler(folder / "results/measurements", PARTITION.name, PARTITION) as profiler:
        for sm_count in (4, 16, 65):  # no search gives a collective as many as the last
            profiler.measure(partition_program(PARTITION, sm_count, "norm"), 1410)
    return folder


def with_results(folder):
    """Add the table of the workload's partitions beside the store."""
    path = folder / "results/workload/partition/partitions.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, PARTITIONS.frame(partition_rows({PARTITION: 1})), PARTITIONS, Provenance(config_hash=""))


def test_a_calibration_in_the_store_gives_the_file_of_a_gpu(store, monkeypatch):
    monkeypatch.chdir(store)
    command = ["fit", "--gpu", OPTION, "--measurements", "results/measurements"]
    assert main([*command, "--output", "config/gpu/mine.yaml"]) == 0
    (composition,) = compose(["gpu=mine"], store / "config")
    found, hidden = composition.workload.gpu, hidden_gpu(a100(), 4)
    assert found.coefficients.gemm_efficiency == pytest.approx(hidden.coefficients.gemm_efficiency, rel=0.02)
    assert found.static_power_w == pytest.approx(hidden.static_power_w, rel=0.05)
    assert "NOT OF A REAL" in (store / "config/gpu/mine.yaml").read_text().replace("\n# ", " ")


def test_partitions_are_known_where_results_are_beside_the_store(store):
    without = read_stored([store / "results/measurements"], a100())
    assert without.unknown == 3
    with_results(store)
    stored = read_stored([store / "results/measurements"], a100())
    assert stored.unknown == 1
    found = [own for own in stored.observations if own.probe.kind is ProbeKind.PARTITION]
    assert sorted(own.probe.program.steps[0].sm_count for own in found) == [4, 16]


def test_measurements_above_the_maximum_clock_are_refused(store):
    with pytest.raises(ArtifactError, match="measured at 1410 MHz, and A100-SXM4-40GB has at most 1110"):
        read_stored([store / "results/measurements"], _slower())


def test_folders_without_measurements_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match="there are no measurements"):
        read_stored([tmp_path], a100())


def _slower():
    clocks = FrequencyRange(minimum_mhz=900, maximum_mhz=1110, stride_mhz=30)
    return a100(maximum_clock_mhz=1110, search_frequencies=clocks)
