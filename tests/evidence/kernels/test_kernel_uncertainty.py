"""Uncertainty of GPUs that were fitted to kernels: what shapes left out and drawn anew make of it."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from helpers.builders import CONFIG

from kareus.calibrate.gpu_file import with_kernel_uncertainty
from kareus.evidence import shipped_files
from kareus.evidence.kernels import uncertainty as module
from kareus.evidence.kernels.errors import shape_errors
from kareus.evidence.kernels.fit import parts_of
from kareus.evidence.kernels.rows import KernelKind, kind_of, read_kernels
from kareus.evidence.kernels.stages import STAGES
from kareus.evidence.kernels.uncertainty import StageRefits, kernel_uncertainty
from kareus.gpu_model.gpu import KernelUncertainty
from kareus.gpu_model.trust import kernel_numbers_of
from kareus.prediction.lines import read_lines
from kareus.workload.resolve import resolve_accepted


@pytest.fixture(scope="module")
def workload():
    (only,) = resolve_accepted(["gpu=h100-sxm5-80gb", "microbatch_size=2"], CONFIG).values()
    return only


@pytest.fixture(scope="module")
def collectives():
    header, lines = read_lines(shipped_files()["kernel_nccl"])
    return read_kernels(kind_of(header), lines, shipped_files()["kernel_nccl"])


@pytest.fixture(scope="module")
def stage(workload, collectives) -> StageRefits:
    option = "h100-sxm5-80gb"
    (rows,) = parts_of(STAGES[-1], {KernelKind.COLLECTIVE: collectives}, option)
    return module._refits(STAGES[-1], rows, workload.gpu, option)


@pytest.mark.parametrize("few", [0, 200])
def test_a_refit_to_all_shapes_changes_nothing(monkeypatch, stage, few):
    monkeypatch.setattr(module, "FEW_ROWS", few)
    assert stage.changed(np.ones(stage.num_shapes, dtype=np.int64)) == pytest.approx(stage.at)


def test_a_step_goes_where_a_refit_goes(monkeypatch, stage):
    """For a tenth of the shapes counted twice."""
    counts = np.where(np.arange(stage.num_shapes) % 10 == 0, 2, 1)
    refitted = stage.changed(counts) - stage.at
    monkeypatch.setattr(module, "FEW_ROWS", 0)
    stepped = stage.changed(counts) - stage.at
    bus = stage.problem.space.names.index("bus_efficiency")
    assert stepped[bus] == pytest.approx(refitted[bus], abs=0.01)


def test_a_refit_beside_a_bound_stays_within_it(monkeypatch, stage):
    monkeypatch.setattr(module, "FEW_ROWS", 0)
    space, counts = stage.problem.space, np.where(np.arange(stage.num_shapes) % 10 == 0, 5, 1)
    for bound in (space.lower, space.upper):
        changed = replace(stage, at=bound).changed(counts)
        assert np.all((space.lower <= changed) & (changed <= space.upper))


def test_shapes_left_out_err_as_full_refits_do(stage):
    times, energies = module._left_out(stage, "h100-sxm5-80gb")
    (written,) = (
        e.time_percent for e in shape_errors() if (e.gpu, e.kind) == ("h100-sxm5-80gb", KernelKind.COLLECTIVE)
    )
    assert 100 * np.abs(times).mean() == pytest.approx(written, abs=1.0)
    assert not energies.size


def test_few_collectives_leave_an_iteration_uncertain(monkeypatch, workload, collectives):
    monkeypatch.setattr(module, "SAMPLES", 6)
    found = kernel_uncertainty({KernelKind.COLLECTIVE: collectives}, workload.gpu, "h100-sxm5-80gb", workload)
    assert 3 < found.time_percent < 30
    assert 0 < found.time_interval_percent < 10
    assert (found.energy_percent, found.energy_interval_percent) == (None, None), "no power was read"
    assert found.estimated_for == kernel_numbers_of(workload.gpu)


def test_an_estimate_is_written_once_and_reads_back():
    known = KernelUncertainty(
        time_percent=9.5, energy_percent=None, time_interval_percent=0.25, energy_interval_percent=None,
        estimated_for="version-0",
    )  # fmt: skip
    text = "name: x\nuncertainty: null\n"
    written = with_kernel_uncertainty(with_kernel_uncertainty(text, replace(known, time_percent=1.0)), known)
    assert written.startswith(text)
    assert with_kernel_uncertainty(written, None) == text
    assert KernelUncertainty(**yaml.safe_load(written)["kernel_uncertainty"]) == known
