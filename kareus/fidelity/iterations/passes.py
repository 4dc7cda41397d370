"""What a pass of a microbatch through a stage costs on one GPU, as a software runs it: its steps, the power limit.

A pass is evaluated over clocks, and held to the limit as a whole. What differs between frameworks beyond the steps that
they launch (slower attention, less fused streaming operators) is added to it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from kareus.arrays import Array
from kareus.errors import RefusedWorkloadError
from kareus.fidelity.iterations.overlaps import ATTENDING, overlapped, placed
from kareus.gpu_model.energy import Switching, idle_power_w
from kareus.gpu_model.gpu import MOST_W, Gpu
from kareus.gpu_model.laws import hbm_bytes_per_s
from kareus.gpu_model.model import KnownSteps, Tally, run_tally
from kareus.gpu_model.power_limit import LEAST_CLOCK_MHZ
from kareus.gpu_model.thermal import at_temperature
from kareus.graph.program import Step
from kareus.graph.records import Batch, BlockGraph, Direction, Operator, OperatorKind, PlacedCollective
from kareus.model.precision import FP32_BYTES
from kareus.profile.programs import Execution, StageShape, instruction_program, weights_of
from kareus.workload.config import Workload
from kareus.workload.software import Accounting, Software

HOPPER_SM_COUNT = 132
"""SMs of the smallest of the GPUs since Hopper; the A100 has 108."""
OLD_ATTENTION = 1.6
"""Time of FlashAttention 2 over that of FlashAttention 3 on an H100, forward and backward (Shah et al. 2024: 1.5 to 2.0
times forward, 1.5 to 1.75 times backward)."""
CLOCK_GRID = np.linspace(0.4, 1.0, 13)
"""Clocks at which passes are evaluated, as shares of the maximum, ascending; `clock_grid` goes on to the lowest."""
LOW_CLOCKS = 6
"""Clocks below these, at about the same distances."""
ODD_PRODUCT = 3.0
"""Time of a product of 16-bit values, where rows of a matrix have odd lengths, over that with even lengths.

Such rows begin at odd multiples of two bytes, where asynchronous copies cannot load (`cp.async` moves 4, 8 or 16 bytes,
PTX ISA), so that a slower kernel takes the place of cuBLAS' best: heads with such vocabularies take three times as long
("Scaling LLM Post-Training at Netflix", Netflix Technology Blog, 2026). The number of rows may be odd: measured GEMMs
of 1,025 to 4,353 rows (`kernel_gemm.csv.gz`) take what the laws of even ones say.
"""
AMBIENT_C = 30.0
"""Air before a GPU in a data centre (ASHRAE A2 allows 10 to 35)."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of a pass of a microbatch through a stage, or through a chunk of it, on one GPU."""

    gpu_s: float
    exposed_s: float
    """Time of it that collectives add."""
    energy_j: float
    launches: int
    """Kernels that the host launches for it, collectives among them."""
    collectives: int
    """Collectives among them."""
    collectives_s: float
    """Time that they take alone."""
    odd_products_s: float
    """Time of products with rows of odd lengths, if their kernels were those of even ones."""
    streaming_s: float
    """Time in which operators that HBM bounds move their bytes."""
    streaming_j: float
    """Energy of that."""
    attention_s: float
    """Time of fused attention."""


def charged(gpu: Gpu) -> Gpu:
    """Return a GPU that has been training for minutes, without what is charged apart.

    Overheads of whole instructions and the host are charged apart. Kernels of operators that HBM bounds are those of
    the graph: what a software does not fuse is in its `traffic` and its time of the host. A warm chip leaks more, which
    counts where the power limit holds it back: `static_power_w` is that at the temperature to which the limit heats the
    chip.
    """
    c = gpu.coefficients
    warm_c = AMBIENT_C + c.thermal_resistance_c_per_w * gpu.power_limit_w
    none = replace(c, isolation_overhead=0.0, instruction_overhead_s=0.0, host_launch_s=0.0, streaming_kernels=1.0)
    return at_temperature(replace(gpu, coefficients=none), max(warm_c, c.reference_temperature_c))


def pass_cost(gpu: Gpu, steps: Sequence[Step], known: KnownSteps) -> PassCost:
    """Cost of a pass, held to the power limit as a whole.

    The limit acts on power over tens of milliseconds (`limiter_s`), in which many kernels run: products may draw more
    than the limit, since what HBM bounds draws less.
    """
    grid = clock_grid(gpu)
    clocks = gpu.maximum_clock_mhz * grid
    free = replace(gpu, power_limit_w=float(MOST_W))

    def cost(parts: Counter[Step]) -> Array:
        """Seconds and joules at each clock, shape (2, clocks)."""
        ran = run_tally(free, Tally(Counter(), parts, whole_instruction=False), clocks, known)
        return np.array([ran.time_s, ran.energy_j])

    whole = cost(Counter(steps))
    alone = cost(Counter(Step(operators=step.operators) for step in steps if step.operators))
    operators = [o for step in steps for o in step.operators]
    attention = cost(Counter(Step(operators=(o,)) for o in operators if o.kind in ATTENDING))
    odd = cost(Counter(Step(operators=(o,)) for o in operators if o.kind is OperatorKind.GEMM and _is_odd(o)))
    together = cost(Counter(replace(step, operators=(), launch=0) for step in steps if step.collective is not None))
    limited = _limited_clock(grid, whole[1] / whole[0], gpu.throttling_power_w)
    gpu_s, alone_s, attention_s, odd_products_s, collectives_s, energy_j = (
        float(np.interp(limited, grid, row))
        for row in (whole[0], alone[0], attention[0], odd[0], together[0], whole[1])
    )
    collectives = sum(step.collective is not None for step in steps)
    streaming = [o for o in operators if o.kind is OperatorKind.MEMORY]
    streamed_bytes = sum(o.bytes_read + o.bytes_written for o in streaming)
    streaming_s = streamed_bytes / float(hbm_bytes_per_s(gpu, np.array(float(gpu.sm_count))))
    c, clock = gpu.coefficients, np.array(limited * gpu.maximum_clock_mhz)
    moved = Switching(streamed_bytes * c.hbm_core_j_per_byte, streamed_bytes * c.hbm_j_per_byte)
    return PassCost(
        attention_s=attention_s,
        gpu_s=gpu_s,
        exposed_s=gpu_s - alone_s,
        energy_j=energy_j,
        launches=sum(o.launches for o in operators) + collectives,
        collectives=collectives,
        collectives_s=collectives_s,
        odd_products_s=odd_products_s,
        streaming_s=streaming_s,
        streaming_j=float(moved.busy_j(gpu, clock, np.array(streaming_s), c.stalled_clock_share)),
    )


def of_software(cost: PassCost, software: Software, gpu: Gpu) -> PassCost:
    """Return the cost of a pass with the kernels of a software.

    Attention and collectives may be slower, operators that HBM bounds less fused, and collectives not hidden at all.

    Raises:
        RefusedWorkloadError: as `_held`.
    """
    attention = software.attention_slowdown
    if gpu.sm_count >= HOPPER_SM_COUNT and not software.hopper_attention:
        attention *= OLD_ATTENTION
    idle_w = float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz))))
    hidden = software.accounting is not Accounting.TRACES
    exposed_s = software.collective_slowdown * (cost.exposed_s if hidden else cost.collectives_s)
    more = software.traffic - 1
    waiting_s = (attention - 1) * cost.attention_s + (ODD_PRODUCT - 1) * cost.odd_products_s
    waiting_s += exposed_s - cost.exposed_s
    own = replace(
        cost,
        gpu_s=cost.gpu_s + more * cost.streaming_s + waiting_s,
        exposed_s=exposed_s,
        energy_j=cost.energy_j + more * cost.streaming_j + idle_w * waiting_s,
    )
    return _held(own, gpu)


def total(parts: Sequence[PassCost]) -> PassCost:
    """Return the cost of parts of a pass together."""
    sums = {field.name: sum(getattr(part, field.name) for part in parts) for field in fields(PassCost)}
    return PassCost(**sums)


def _is_odd(product: Operator) -> bool:
    """Whether rows of an operand or of the output have an odd length; tokens are rows and never the length of one."""
    rows, columns, inner = product.shape
    lengths = (rows, columns) if product.is_weight_gradient else (columns, inner)
    return any(length % 2 for length in lengths)


def _held(cost: PassCost, gpu: Gpu) -> PassCost:
    """Return the cost of a pass whose mean power is within the limit, also where no clock holds it.

    The GPU then waits at its lowest clock for as long as it takes, so that mean power is the limit.

    Raises:
        RefusedWorkloadError: the limit is less than what the GPU draws waiting.
    """
    limit_w = gpu.throttling_power_w
    if cost.energy_j <= limit_w * cost.gpu_s:
        return cost
    waiting_w = float(idle_power_w(gpu, gpu.maximum_clock_mhz * clock_grid(gpu)[:1])[0])
    if limit_w <= waiting_w:
        raise RefusedWorkloadError(
            f"gpu.power_limit_w={gpu.power_limit_w:g}: {gpu.name} draws {waiting_w:.0f} W waiting at its lowest clock, "
            "before it computes; give more."
        )
    waiting_s = (cost.energy_j - limit_w * cost.gpu_s) / (limit_w - waiting_w)
    return replace(cost, gpu_s=cost.gpu_s + waiting_s, energy_j=cost.energy_j + waiting_w * waiting_s)


def steps_of_pass(
    workload: Workload, software: Software, graph: BlockGraph, shape: StageShape, direction: Direction
) -> list[Step]:
    """Steps of a pass as the software runs them."""
    parallelism, sm_count = workload.parallelism, workload.default_collective_sm_count
    sharing = replace(parallelism, dp=parallelism.dp * parallelism.cp, cp=1)  # ranks of context parallelism share, too
    weights = weights_of(replace(workload, parallelism=sharing), 0, shape, sm_count)
    if weights is not None:
        reduce, outer = (_scaled(whole, software) for whole in (weights.reduce, weights.outer_reduce))
        weights = replace(weights, reduce=reduce or weights.reduce, outer_reduce=outer)
    program = instruction_program(
        {Batch.MICROBATCH: graph},
        shape,
        direction,
        Execution.SEQUENTIAL,
        recomputation=workload.recomputation,
        default_sm_count=sm_count,
        weights=weights,
    )
    nodes = -(-parallelism.tp * parallelism.cp // workload.gpu.gpus_per_node)
    return placed(overlapped(program.steps, software), nodes)


def _scaled(whole: PlacedCollective | None, software: Software) -> PlacedCollective | None:
    """Return a reduction with as many bytes for each gradient as the software sums."""
    if whole is None:
        return None
    return replace(whole, message_bytes=whole.message_bytes * software.gradient_bytes // FP32_BYTES)


def clock_grid(gpu: Gpu) -> Array:
    """Return the clocks at which passes are evaluated, from a GPU's lowest, as shares of the maximum, ascending."""
    lowest = min(LEAST_CLOCK_MHZ / gpu.maximum_clock_mhz, CLOCK_GRID[0])
    low = np.linspace(lowest, CLOCK_GRID[0], LOW_CLOCKS, endpoint=False) if lowest < CLOCK_GRID[0] else CLOCK_GRID[:0]
    return np.concatenate([low, CLOCK_GRID])


def _limited_clock(grid: Array, power_w: Array, limit_w: float) -> float:
    """Return the highest clock, as a share of the maximum, at which power is within a limit; the lowest if none is."""
    if power_w[-1] <= limit_w:
        return float(grid[-1])
    return float(np.interp(limit_w, power_w, grid))
