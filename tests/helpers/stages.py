"""Where the stages of a pipeline on CPUs lie."""

import torch

from kareus.launch.process_groups import ProcessGroups
from kareus.runtime.chunk_stage import StagePlace


def stage_on_cpu(stage: int, stages: int, groups: ProcessGroups) -> StagePlace:
    """Return the place of a stage whose messages go over `groups`, of gloo."""
    return StagePlace(
        stage=stage,
        stages=stages,
        group=groups.pipeline,
        backward_group=groups.pipeline_backward,
        device=torch.device("cpu"),
        tensor=groups.mesh.tp,
    )
