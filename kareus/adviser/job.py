"""The job whose files were given: its layout among those that are compared, what it takes, and what it lacks."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from kareus.adviser.answers import LackedOverlap, LayoutAnswer, LayoutChoice
from kareus.adviser.feasible import sort_layouts
from kareus.adviser.following import bounded_answer
from kareus.adviser.layouts import Layout, layout_of
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.question import Question
from kareus.adviser.runs import LayoutTimes, roomy
from kareus.errors import RefusedWorkloadError
from kareus.interchange.table import table_of
from kareus.interchange.writing import settings_apart
from kareus.model.parallelism import Sharding
from kareus.pareto import AS_FAST
from kareus.prediction.errors import idle_settings
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.resolve import with_split

OVERLAPS = ("reduction", "gather_beside_forward")
"""Settings of software by which collectives of gradients and weights run beside passes."""

logger = logging.getLogger(__name__)


def layout_of_job(job: Workload) -> Layout | None:
    """Return the layout of a job as `layouts_of` yields it, with its blocks where they are not the usual ones.

    None: no blocks split over its stages as it says, or it has what no layout has, such as experts' own tensor degree.
    """
    try:
        job = with_split(job)
        layout = layout_of(job)
        usual = with_split(layout.workload(job)).parallelism.layers_per_stage
    except RefusedWorkloadError:
        return None
    blocks = job.parallelism.layers_per_stage
    layout = replace(layout, layers_per_stage=None if blocks == usual else blocks)
    if with_split(layout.workload(job)).parallelism != job.parallelism:
        return None
    return replace(layout, sharding=layout.sharding if layout.dp * layout.cp > 1 else Sharding.NONE)


def job_of(question: Question, gpus: int) -> Layout | None:
    """Return the layout of the job of a question on so many GPUs; None where it has others, or another batch."""
    job = question.job
    is_asked = job is not None and (job.gpus, job.sequences) == (gpus, question.global_batch)
    return job if is_asked else None


def job_choice(
    predictor: LayoutPredictor, base: Workload, job: Layout, layouts: Sequence[LayoutAnswer]
) -> LayoutChoice | None:
    """Return the layout of a job run as Megatron-LM does: as it is among layouts, else by itself; None: it cannot run.

    What runs has fitted, so that it is not refused for its memory.
    """
    answer = next((one for one in layouts if one.candidate.layout == job), None)
    if answer is None:
        alone = sort_layouts(roomy(base), [job])
        for refusal in alone.refusals:
            logger.info("your script's layout, %s: %s", job.words, refusal.message)
            return None
        (candidate,) = alone.candidates
        gpu = replace(candidate.workload.gpu, memory_gib=base.gpu.memory_gib)
        candidate = replace(candidate, workload=replace(candidate.workload, gpu=gpu))
        sequential, _ = predictor.sequential(candidate.workload)
        answer = bounded_answer(predictor.bound(candidate.workload), candidate, sequential)
    assert answer.sequential is not None  # what follows a job predicts it
    return LayoutChoice(layout=answer, cost=answer.sequential)


def lacked_overlap(
    question: Question, base: Workload, layouts: Sequence[LayoutAnswer], chosen: LayoutAnswer
) -> LackedOverlap | None:
    """Return which overlap of collectives the job of a question lacks, where that costs time.

    It is what the trainer has settings for, and its usual ones turn on. It may cost the chosen layout nothing and be
    why that was chosen: then the fastest layout counts that shares out what the job does.
    """
    if question.job is None:
        return None
    software, table = base.software, table_of(base.software.name)
    (usual,) = compose([f"software={software.name}"], question.config_dir)
    others = {name: getattr(usual.workload.software, name) for name in OVERLAPS}
    missing = {name: value for name, value in others.items() if value != getattr(software, name)}
    if table is None or not missing:
        return None
    alike = [one for one in layouts if one.sequential and one.candidate.layout.sharding is question.job.sharding]
    asked = [chosen, *sorted(alike, key=lambda one: one.sequential.time_s if one.sequential else math.inf)[:1]]
    for layout in asked:
        workload = layout.candidate.workload
        usable = {name: value for name, value in missing.items() if name not in idle_settings(workload)}
        apart = (settings_apart(table, f"software.{name}", getattr(software, name), usable[name]) for name in usable)
        settings = tuple(dict.fromkeys(setting for _, lacked in apart for setting in lacked))
        bases = (base, replace(base, software=replace(software, **usable)))
        without_s, with_s = (LayoutTimes(side, [workload]).of({}).tolist()[0] for side in bases)
        if settings and with_s < without_s * (1 - AS_FAST):
            overlapped = replace(workload, software=bases[1].software)
            times = {"without_s": without_s, "with_s": with_s}
            return LackedOverlap(settings=settings, layout=layout, overlapped=overlapped, **times)
    return None
