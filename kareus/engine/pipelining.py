"""Which of the pipelines that can be planned can be run; known without torch, so that a refusal comes at once."""

from kareus.errors import EngineError
from kareus.workload.config import PipelineConfig

_RUNNABLE = "1f1b, gpipe or interleaved"


def check_runnable(pipeline: PipelineConfig) -> None:
    """Check that there is code to run a pipeline.

    Raises:
        EngineError: there is none for backwards that are split.
    """
    if pipeline.schedule.splits_backward:
        raise EngineError(f"pipeline={pipeline.schedule}: can be planned, not run; plan with pipeline={_RUNNABLE}.")
