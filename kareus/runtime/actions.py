"""The order of a pipeline in the words of PyTorch's runtime, with the messages between its stages.

All stages follow one line of events: an instruction, and at its end the message that it leaves, which its sender sends
and its receiver begins to receive there. Whatever is first in that line and has not happened waits for nothing but
what was before it, so that a pipeline cannot lock up, also where sending waits for the receiver and everything between
two ranks goes one after the other (NCCL). The line follows the planned times, so that no message is held up by one that
is planned to be ready later.
"""

from collections.abc import Sequence

from torch.distributed.pipelining.schedules import _Action, _ComputationType

from kareus.graph.instruction import place_in_line
from kareus.graph.records import UPDATING, Direction
from kareus.pipeline.instructions import Instruction, instructions_in, instructions_of
from kareus.pipeline.solver.dag import build_dag, earliest_starts
from kareus.plans.document import Plan
from kareus.workload.config import Workload
from kareus.workload.slices import cut

Actions = dict[int, list[_Action | None]]
"""By stage, what its rank does, in order."""

COMPUTATIONS = {
    Direction.FORWARD: _ComputationType.FORWARD,
    Direction.BACKWARD: _ComputationType.FULL_BACKWARD,
    Direction.INPUT_GRADIENT: _ComputationType.BACKWARD_INPUT,
    Direction.WEIGHT_GRADIENT: _ComputationType.BACKWARD_WEIGHT,
}
"""What PyTorch calls the passes."""

_NOMINAL_S = {
    Direction.FORWARD: 1.0,
    Direction.BACKWARD: 2.0,
    Direction.INPUT_GRADIENT: 1.0,
    Direction.WEIGHT_GRADIENT: 1.0,
    **dict.fromkeys(UPDATING, 1.0),
}
"""Where nothing is planned: a backward has twice the matrix products of a forward."""


def actions_of(workload: Workload, plan: Plan | None) -> Actions:
    """What the ranks of a pipeline do in one iteration: as planned, or as the workload's schedule has it."""
    folded = workload.parallelism.folded
    if plan is None:
        instructions = instructions_of(cut(workload, "pipeline"))
        return actions_in(instructions, [_NOMINAL_S[i.key.direction] for i in instructions], folded=folded)
    instructions = instructions_in([key for key, _ in plan.keyed], folded=folded)
    return actions_in(instructions, [i.time_s for _, i in plan.keyed], folded=folded)


def actions_in(instructions: Sequence[Instruction], times_s: Sequence[float], *, folded: bool = False) -> Actions:
    """What the ranks of a pipeline do, messages and all; what stays on a rank is no message.

    Args:
        instructions: of one iteration, as `instructions_in` numbers them.
        times_s: roughly what each takes, in seconds.
        folded: whether microbatches pass the stages there and back, as of `place_in_line`.
    """
    stages = 1 + max(i.key.stage for i in instructions)
    last = stages * (1 + max(i.key.chunk for i in instructions)) - 1
    dag = build_dag(instructions, [0.0] * stages)
    starts_s = earliest_starts(dag, times_s)
    actions: Actions = {stage: [] for stage in range(stages)}
    for number in sorted(dag.order, key=lambda n: starts_s[n] + times_s[n]):  # stable: ties keep the order of `dag`
        key = instructions[number].key
        if key.direction in UPDATING:  # PyTorch's runtime ends with the last backward
            continue
        place = place_in_line(key.stage, key.chunk, stages, folded=folded)
        actions[key.stage].append(_Action(place, COMPUTATIONS[key.direction], key.microbatch))
        if key.direction is Direction.FORWARD and place < last:
            send, receive, to = _ComputationType.SEND_F, _ComputationType.RECV_F, place + 1
        elif key.direction in (Direction.BACKWARD, Direction.INPUT_GRADIENT) and place > 0:
            send, receive, to = _ComputationType.SEND_B, _ComputationType.RECV_B, place - 1
        else:
            continue
        receiver = stages - 1 - to % stages if folded and to // stages % 2 else to % stages
        if receiver != key.stage:
            actions[key.stage].append(_Action(place, send, key.microbatch))
            actions[receiver].append(_Action(to, receive, key.microbatch))
    return actions
