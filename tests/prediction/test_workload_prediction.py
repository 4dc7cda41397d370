"""Predictions of whole workloads, against plans without noise and figures worked out by hand."""

import dataclasses

import pytest
from helpers.builders import CONFIG

from kareus.errors import ConfigError
from kareus.evidence.frontiers.predict import PlannedMethods
from kareus.evidence.frontiers.reference import Scenario
from kareus.evidence.frontiers.subject import subject
from kareus.gpu_model.model import run_program
from kareus.gpu_model.thermal import sustained_j
from kareus.graph.records import Direction
from kareus.model.parallelism import Sharding
from kareus.partition.extract import extract
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import build_dag, makespan
from kareus.pipeline.transfers import transfers_s
from kareus.prediction.workload_prediction import predict
from kareus.profile.programs import Execution, chunk_shapes, instruction_program
from kareus.workload.memory import estimate_memory
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

DEFAULT = Scenario(model="llama3.2-3b", cp=1, tp=8, pp=2, num_microbatches=8, microbatch_size=8, seq_len=4096)
COARSE = ("space.sm_stride=12", "space.sm_max=24", "gpu.search_frequencies.stride_mhz=170")
TOKENS = 8 * 8 * 4096


def resolved(*overrides, update=False):
    (workload,) = resolve_accepted([*overrides, f"iteration.include_update={update}"], CONFIG).values()
    return workload


@pytest.fixture(scope="module")
def default():
    return resolved()


@pytest.fixture(scope="module")
def planned():
    without_heat = (*COARSE, "gpu.coefficients.leakage_w_per_c=0")
    return PlannedMethods(subject(DEFAULT, without_heat, CONFIG), with_transfers=True)


@pytest.mark.parametrize("method", ["sequential", "nanobatching"])
def test_the_default_workload_costs_what_its_plan_costs(method, planned):
    time_s, energy_j = planned.at_max_throughput(method)
    found = predict(resolved("gpu.coefficients.leakage_w_per_c=0"), method)
    assert found.time_s == pytest.approx(time_s, rel=1e-9)
    assert found.energy_j == pytest.approx(energy_j, rel=1e-9)
    assert (found.method, found.frequency_mhz) == (method, 1410)


@pytest.mark.parametrize("method", ["sequential", "nanobatching"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["pipeline=gpipe"],
        ["pipeline=interleaved", "parallelism.layers_per_stage=[14,14]"],
        ["pipeline=zb-h1"],
        ["pipeline=zb-h1", "recomputation=none", "microbatch_size=2"],
        ["parallelism=cp2tp4", "model=qwen3-1.7b"],
        ["parallelism.dp=2", "parallelism.tp=4", "microbatch_size=2"],
        ["parallelism.pp=1", "parallelism.tp=8", "microbatch_size=2"],
    ],
    ids="-".join,
)
def test_every_schedule_is_the_sum_of_its_instructions(overrides, method):
    workload = resolved(*overrides)
    clock, parallelism, block_w = 1200, workload.parallelism, workload.gpu.blocking_power_w
    graphs = extract(workload.model, parallelism, workload.microbatch_size, workload.sequence_length)
    shapes = chunk_shapes(parallelism.split, workload.chunks)
    times_s, busy_j = [], 0.0
    instructions = instructions_of(cut(workload, "pipeline"))
    for stage, chunk, direction in (i.key.kind for i in instructions):
        halves = method == "nanobatching" and direction is not Direction.WEIGHT_GRADIENT
        program = instruction_program(
            graphs,
            shapes[stage, chunk],
            direction,
            Execution.NANOBATCHING if halves else Execution.SEQUENTIAL,
            recomputation=workload.recomputation,
            default_sm_count=workload.testbed.default_collective_sm_count,
            software=workload.software,
        )
        alone = run_program(workload.gpu, program, clock)
        times_s.append(float(alone.time_s))
        busy_j += float(sustained_j(workload.gpu, alone.energy_j, alone.time_s))
    time_s = makespan(build_dag(instructions, transfers_s(cut(workload, "pipeline"))), times_s)
    waiting_j = block_w * (parallelism.pp * time_s - sum(times_s))
    found = predict(workload, method, clock)
    assert found.time_s == pytest.approx(time_s, rel=1e-12)
    assert found.energy_j == pytest.approx((busy_j + waiting_j) * parallelism.gpus_per_stage, rel=1e-12)
    check_sums(found)


def check_sums(found):
    """Stages and components are all of the iteration."""
    for stage in found.stages:
        assert stage.forward_s + stage.backward_s + stage.update_s + stage.bubble_s == pytest.approx(found.time_s)
        assert stage.bubble_s > -1e-9
    for parts in (found.stages, found.components):
        assert sum(part.energy_j for part in parts) == pytest.approx(found.energy_j)
    assert sum(component.time_s for component in found.components) == pytest.approx(found.time_s)
    assert all(component.time_s > -1e-9 and component.energy_j > -1e-6 for component in found.components)


def test_mfu_is_that_of_the_models_arithmetic(default):
    width, shared, hidden, inner = 24 * 128, 8 * 128, 3072, 8192
    block = 2 * hidden * (width + 2 * shared) + 2 * width * hidden + 3 * 2 * hidden * inner
    attention = 2 * 2 * width * 4096 / 2  # a token attends to half of the sequence on average
    forward = 28 * (block + attention) + 2 * hidden * 128256
    found = predict(default)
    assert found.mfu == pytest.approx(3 * forward * TOKENS / (found.time_s * 16 * 312e12))
    assert found.tokens_per_s == pytest.approx(TOKENS / found.time_s)
    assert found.joules_per_token == pytest.approx(found.energy_j / TOKENS)


def test_replicas_double_tokens_and_energy_and_keep_mfu():
    one, two = (predict(resolved(f"parallelism.dp={dp}", "parallelism.sharding=none")) for dp in (1, 2))
    assert two.time_s == one.time_s
    assert two.mfu == pytest.approx(one.mfu)
    assert two.tokens_per_s == pytest.approx(2 * one.tokens_per_s)
    assert two.energy_j == pytest.approx(2 * one.energy_j)


@pytest.mark.parametrize("method", ["sequential", "nanobatching"])
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["parallelism.dp=2", "parallelism.tp=4", "microbatch_size=2", "parallelism.sharding=optimizer"],
        ["pipeline=interleaved", "parallelism.layers_per_stage=[14,14]", "parallelism.dp=2", "microbatch_size=4"],
        ["pipeline=zb-h1", "parallelism.dp=2", "microbatch_size=4"],
        ["parallelism=cp2tp4", "model=qwen3-1.7b"],
    ],
    ids="-".join,
)
def test_the_update_adds_its_instructions_and_their_parts(overrides, method):
    without, found = (predict(resolved(*overrides, update=update), method, 1200) for update in (False, True))
    check_sums(found)
    assert 0 < found.time_s - without.time_s <= sum(stage.update_s for stage in found.stages)
    added = {c.name for c in found.components} - {c.name for c in without.components}
    workload = resolved(*overrides)
    reduces = workload.parallelism.dp * workload.parallelism.cp > 1
    assert added == {
        "gradient norm",
        "optimizer step",
        *(["gradient reduction"] if reduces else []),
        *(["embedding exchange"] if workload.parallelism.pp > 1 else []),
        *(["weight gathering"] if workload.parallelism.sharding is Sharding.OPTIMIZER else []),
    }


def test_less_of_a_reduction_is_hidden_where_weight_gradients_wait():
    degrees = ("parallelism.dp=2", "microbatch_size=4")
    sooner, later = (predict(resolved(*degrees, p, update=True)) for p in ("pipeline=1f1b", "pipeline=zb-h1"))
    assert sooner.stages[1].update_s < later.stages[1].update_s


def test_nanobatching_hides_collectives_that_are_exposed(default):
    sequential, overlapped = (predict(default, method).collectives for method in ("sequential", "nanobatching"))
    assert overlapped.exposed_s < 0.6 * sequential.exposed_s
    assert overlapped.hidden_s > sequential.hidden_s > 0
    for found in (sequential, overlapped):
        assert found.exposed_s + found.hidden_s == pytest.approx(found.alone_s)


def test_without_collectives_none_are_exposed():
    found = predict(resolved("parallelism.tp=1", "parallelism.pp=4", "microbatch_size=1"))
    assert (found.collectives.alone_s, found.collectives.exposed_s) == (0, 0)
    assert "collectives" not in {component.name for component in found.components}
    check_sums(found)


def test_memory_and_uncertainty_are_those_of_workload_and_gpu(default):
    found = predict(default)
    assert found.memory == estimate_memory(default)
    assert found.uncertainty == default.gpu.uncertainty
    faster = dataclasses.replace(default, gpu=dataclasses.replace(default.gpu, hbm_gb_per_s=2000.0))
    assert predict(faster).uncertainty is None
    assert found.kernel_uncertainty is None, "the default GPU is fitted to iterations"


def test_a_lower_clock_is_slower_and_takes_less_power(default):
    slow, fast = predict(default, frequency_mhz=1000), predict(default)
    assert slow.time_s > fast.time_s
    assert slow.energy_j / slow.time_s < fast.energy_j / fast.time_s


@pytest.mark.parametrize(
    ("overrides", "arguments", "message"),
    [
        ([], {"method": "kareus"}, "must be one of sequential, nanobatching"),
        ([], {"frequency_mhz": 100}, "frequency_mhz=100: must be a whole number from 900 to 1410 MHz"),
        ([], {"frequency_mhz": 900.5}, "frequency_mhz=900.5: must be a whole number"),
        ([], {"frequency_mhz": 1411}, "frequency_mhz=1411"),
        (["microbatch_size=7"], {"method": "nanobatching"}, "of an odd size"),
    ],
)
def test_what_cannot_be_predicted_is_refused(overrides, arguments, message):
    with pytest.raises(ConfigError, match=message):
        predict(resolved(*overrides), **arguments)


def test_nanobatching_slows_small_microbatches_with_cp() -> None:
    """Section 6.2.1 of the paper, on Qwen 3 1.7B: halves of little work underuse the GPU."""
    small, large = (
        resolved("model=qwen3-1.7b", "parallelism.tp=4", "parallelism.cp=2", f"microbatch_size={size}")
        for size in (8, 16)
    )
    assert predict(small, "nanobatching").time_s > 1.01 * predict(small).time_s
    assert predict(large, "nanobatching").time_s < predict(large).time_s


def test_energies_are_of_chips_that_train_for_long(default):
    """The model's energies are at 50 degC; beside waiting an iteration draws 310 W, which settles to 54 degC."""
    cold = dataclasses.replace(default.gpu.coefficients, leakage_w_per_c=0.0)
    at_reference = predict(dataclasses.replace(default, gpu=dataclasses.replace(default.gpu, coefficients=cold)))
    found, busy_s = predict(default), sum(stage.forward_s + stage.backward_s for stage in at_reference.stages)
    waits_j = sum(default.gpu.blocking_power_w * stage.bubble_s for stage in at_reference.stages)
    worked_j = at_reference.energy_j / default.parallelism.gpus_per_stage - waits_j
    expected_j = waits_j + sustained_j(default.gpu, worked_j, busy_s)
    assert found.energy_j / default.parallelism.gpus_per_stage == pytest.approx(expected_j, rel=1e-9)
    assert found.energy_j > 1.01 * at_reference.energy_j


@pytest.mark.parametrize("size", [1, 8])
def test_the_only_stage_of_a_pipeline_never_waits(size):
    layout = ["parallelism.pp=1", "parallelism.tp=1", "parallelism.dp=8", "parallelism.sharding=optimizer"]
    gpu = ["gpu=h200", "recomputation=full", f"microbatch_size={size}"]
    found = predict(resolved(*gpu, *layout, update=True))
    (stage,) = found.stages
    (waiting,) = [component for component in found.components if component.name == "waiting"]
    assert 0 <= stage.bubble_s < 1e-9 * found.time_s
    assert 0 <= waiting.energy_j < 1e-9 * found.energy_j
    assert not any(str(value).startswith("-") for value in (stage.bubble_s, waiting.time_s, waiting.energy_j))
