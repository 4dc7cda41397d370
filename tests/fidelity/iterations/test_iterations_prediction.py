"""`kareus predict` for other software: sweeps, refusals, and the GPU that is predicted on."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.builders import CONFIG
from helpers.iterations import LLAMA

from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.fidelity.iterations.passes import charged
from kareus.fidelity.iterations.predict import Predictor
from kareus.fidelity.iterations.prediction import predictions
from kareus.fidelity.iterations.updates import _summed, stage_update
from kareus.fidelity.iterations.workloads import NIC_GB_PER_S, IterationSubjects
from kareus.gpu_model.energy import held_power_w, idle_power_w
from kareus.graph.records import TRACED, Direction, Scope
from kareus.model.parameters import embedding_parameters, scope_parameters
from kareus.profile.programs import chunk_shapes
from kareus.update.costs import stage_parameters
from kareus.workload.compose import compose

SMALL = (
    "model=qwen3-1.7b", "parallelism.pp=1", "num_microbatches=2", "sequence_length=4096", "microbatch_size=1",
)  # fmt: skip

GPU_80GB = compose(["gpu=a100-sxm4-80gb"], CONFIG)[0].workload.gpu


def _found(*overrides):
    return [(name, subject, found) for name, subject, found in predictions((*SMALL, *overrides), CONFIG)]


def test_numbers_of_gpus_are_swept():
    found = _found("software=nemo", "gpu=h100-sxm5-80gb", "parallelism.tp=1", "gpu.power_limit_w=300,700")
    assert [subject.workload.gpu.power_limit_w for _, subject, _ in found] == [300, 700]
    assert found[0][2].time_s > found[1][2].time_s


def test_measured_iterations_take_no_sweeps():
    with pytest.raises(ConfigError, match=r"gpu.power_limit_w=300,700: a sweep; measured iterations take one value"):
        IterationSubjects(("gpu.power_limit_w=300,700",), CONFIG).of(LLAMA)


def test_software_that_cannot_run_a_layout_is_refused():
    found = _found("software=megatron-2022,nemo", "parallelism=cp2tp4")
    assert [subject is None for _, subject, _ in found] == [True, False]
    assert "needs whole sequences; use cp=1" in found[0][2]


def test_one_predictor_tells_gpus_of_one_name_apart():
    ((_, subject, alone),) = _found("software=nemo", "parallelism.tp=2")
    workload = subject.workload
    others = (
        replace(workload, gpu=replace(workload.gpu, hbm_gb_per_s=workload.gpu.hbm_gb_per_s / 2)),
        replace(workload, testbed=replace(workload.testbed, default_collective_sm_count=1)),
    )
    shared = Predictor()
    assert shared.predict(subject) == alone
    for other in others:
        own = replace(subject, workload=other)
        assert shared.predict(own) == Predictor().predict(own)
        assert shared.predict(own).time_s > alone.time_s


def test_bandwidth_of_nodes_is_the_users():
    gpu = "gpu=a100-sxm4-80gb"
    own = [_found("software=nemo", gpu, *more)[0][1] for more in ((), ("gpu.node_gb_per_s=77",))]
    assert [subject.workload.gpu.node_gb_per_s for subject in own] == [GPU_80GB.node_gb_per_s, 77]


def test_measured_clusters_have_a_fabric_of_their_own():
    row = replace(LLAMA, gpu="a100-sxm4-80gb")
    assert IterationSubjects((), CONFIG).of(row).workload.gpu.node_gb_per_s == 8 * NIC_GB_PER_S
    overridden = IterationSubjects(("gpu.node_gb_per_s=77",), CONFIG).of(row)
    assert overridden.workload.gpu.node_gb_per_s == 77


def test_scores_of_unfused_attention_need_memory():
    long = ("gpu=a100-sxm4-80gb", "sequence_length=16384", "num_microbatches=2")
    ((_, fused, _), (_, unfused, reason)) = predictions(("software=nemo,megatron-2022", *long), CONFIG)
    assert fused is not None
    assert unfused is None
    assert "out of memory" in reason
    assert "\n" not in reason


def test_fp8_needs_tensor_cores_of_fp8():
    with pytest.raises(RefusedWorkloadError, match="precision=fp8: A100-SXM4-80GB has no fp8 tensor cores"):
        IterationSubjects((), CONFIG).of(replace(LLAMA, gpu="a100-sxm4-80gb", precision="fp8"))


def _charged(subject):
    return replace(subject.workload, gpu=charged(subject.workload.gpu))


def _update_costs(subject, direction, **changes):
    """Cost of an instruction of the update of the first stage, beside passes of 0.1 s."""
    ran = replace(subject, workload=_charged(subject), software=replace(subject.software, **changes))
    places = chunk_shapes(ran.workload.parallelism.split, ran.workload.chunks)
    return stage_update(ran, 0, {(place, d): 0.1 for place in places for d in TRACED})[direction]


def _moving_j(subject, cost):
    """Energy of a cost without the power that a GPU draws all the same."""
    gpu = charged(subject.workload.gpu)
    return cost.energy_j - float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz)))) * cost.time_s


def test_tied_embeddings_are_reduced_once():
    # Held SMs cost time, of which many buckets take more than one; here it is bytes that are compared.
    layout = (
        "software=nemo",
        "parallelism.dp=2",
        "parallelism.tp=4",
        "parallelism.cp=1",
        "gpu.coefficients.collective_sm_w=0",
    )
    tied, untied = (_found(*layout, f"model.tie_embeddings={tied}")[0][1] for tied in ("true", "false"))
    table = embedding_parameters(tied.workload.model, tied.workload.parallelism)
    once, twice = (_moving_j(s, _update_costs(s, Direction.GRADIENT_REDUCTION)) for s in (tied, untied))
    every = stage_parameters(tied.workload, 0)
    assert once == pytest.approx(_moving_j(tied, _summed(_charged(tied), tied.software, 0, every)), rel=0.01)
    more = _moving_j(tied, _summed(_charged(tied), tied.software, 0, table))
    assert twice - once == pytest.approx(more, rel=0.01)


def test_sums_of_gradients_pay_for_the_sms_they_hold():
    layout = ("software=nemo", "parallelism.dp=2", "parallelism.tp=4", "parallelism.cp=1")
    held, free = (_found(*layout, f"gpu.coefficients.collective_sm_w={watts}")[0][1] for watts in (1, 0))
    own, without = (_summed(_charged(s), s.software, 0, 10**9) for s in (held, free))
    gpu, sm_count = held.workload.gpu, held.workload.default_collective_sm_count
    assert own.time_s == without.time_s
    held_w = float(held_power_w(gpu, sm_count, np.array(float(gpu.maximum_clock_mhz))))
    assert held_w == sm_count
    assert own.energy_j - without.energy_j == pytest.approx(held_w * own.time_s)


def test_hidden_gathers_take_energy_all_the_same():
    layout = ("parallelism.dp=2", "parallelism.tp=1", "parallelism.cp=1", "parallelism.sharding=optimizer")
    ((_, subject, _),) = _found("software=nemo", *layout)
    hidden, whole = (_update_costs(subject, Direction.UPDATE, gather_beside_forward=beside) for beside in (True, False))
    assert hidden.time_s < whole.time_s
    assert _moving_j(subject, hidden) == pytest.approx(_moving_j(subject, whole))


def _exposed_gather_s(chunks):
    layout = (
        "parallelism.dp=2", "parallelism.tp=1", "parallelism.cp=1", "parallelism.pp=2",
        "parallelism.sharding=optimizer", "num_microbatches=4",
        "pipeline.schedule=interleaved", f"pipeline.chunks={chunks}",
        "model.num_layers=16", "parallelism.layers_per_stage=[8,8]", "model.tie_embeddings=false",
    )  # fmt: skip
    ((_, subject, _),) = predictions((SMALL[0], *SMALL[3:], "software=nemo", *layout), CONFIG)
    ran = replace(subject, workload=_charged(subject))
    places = chunk_shapes(ran.workload.parallelism.split, chunks)
    times_s = {(place, d): 0.1 / chunks for place in places for d in TRACED}
    return [stage_update(ran, stage, times_s)[Direction.UPDATE].communication_s for stage in (0, 1)]


def test_chunks_expose_no_more_of_a_gather():
    few, many = (_exposed_gather_s(chunks) for chunks in (2, 4))
    assert few == pytest.approx(many)
    assert few[1] < few[0], "the first stage gathers the embedding before anything else"


def test_weights_of_fp8_are_cast_once_an_iteration():
    ((_, subject, _),) = _found("software=nemo", "gpu=h100-sxm5-80gb", "parallelism.tp=1")
    casting = replace(subject, in_fp8=True)
    cost, more = (_update_costs(one, Direction.UPDATE) for one in (subject, casting))
    block = scope_parameters(subject.workload.model, subject.workload.parallelism)[Scope.BLOCK]
    least_s = 4 * block * subject.workload.model.num_layers / (subject.workload.gpu.hbm_gb_per_s * 1e9)
    assert least_s < more.time_s - cost.time_s < 2 * least_s


def test_low_power_limits_are_kept():
    layout = ("software=nemo", "gpu=h100-sxm5-80gb", "parallelism.tp=1")
    found = [one for _, _, one in _found(*layout, "gpu.power_limit_w=100,150,300,700")]
    assert all(slow.time_s > fast.time_s for slow, fast in pairwise(found))
    powers_w = [one.energy_j / one.time_s for one in found]
    assert powers_w == sorted(powers_w)
    limits_w = np.array([100, 150, 300, 700])
    assert np.all(powers_w <= 1.001 * limits_w), powers_w  # the update, 1 % of the time, is no pass


def test_limits_below_idle_power_are_refused():
    layout = ("software=nemo", "gpu=h100-sxm5-80gb", "parallelism.tp=1")
    ((_, subject, reason),) = _found(*layout, "gpu.power_limit_w=50")
    assert subject is None
    assert "gpu.power_limit_w=50: H100-SXM5-80GB draws 93 W waiting" in reason
