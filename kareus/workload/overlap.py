"""The reason why nothing of a workload can overlap, in one line for commands, summaries and pages."""

from kareus.workload.config import Workload

NO_HALVES = "Nothing overlaps: an odd microbatch has no equal halves, one of sharded gradients runs whole."
NO_COLLECTIVES = "Nothing overlaps: without tensor, context or expert parallelism a block has no collectives."


def nothing_to_overlap(workload: Workload) -> str | None:
    """Return why nothing overlaps, or None where something can."""
    if not workload.parallelism.halves(workload.microbatch_size):
        return NO_HALVES
    layout = workload.parallelism
    return None if max(layout.tp, layout.cp, layout.ep, layout.etp) > 1 else NO_COLLECTIVES
