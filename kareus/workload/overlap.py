"""The reason why nothing of a workload can overlap, in one line for commands, summaries and pages."""

from kareus.workload.config import Workload

NO_HALVES = "Nothing overlaps: an odd microbatch has no equal halves, one of sharded gradients runs whole."
EXPERTS = "Nothing overlaps: blocks with experts run whole, by the software's own execution."
NO_COLLECTIVES = "Nothing overlaps: without tensor or context parallelism a block has no collectives."


def nothing_to_overlap(workload: Workload) -> str | None:
    """Return why nothing overlaps, or None where something can."""
    if workload.model.experts is not None:
        return EXPERTS
    if not workload.parallelism.halves(workload.microbatch_size):
        return NO_HALVES
    has_collectives = workload.parallelism.tp > 1 or workload.parallelism.cp > 1
    return None if has_collectives else NO_COLLECTIVES
