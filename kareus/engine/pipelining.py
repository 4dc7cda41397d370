"""Which of the pipelines that can be planned can be run; known without torch, so that a refusal comes at once."""

from kareus.errors import EngineError
from kareus.workload.config import PipelineConfig, PipelineSchedule

RUNNABLE = (PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, PipelineSchedule.GPIPE)


def check_runnable(pipeline: PipelineConfig, num_microbatches: int, stages: int) -> None:
    """Check that there is code to run a pipeline.

    Raises:
        EngineError: there is none for its schedule, or PyTorch's needs more microbatches.
    """
    if pipeline.schedule not in RUNNABLE:
        raise EngineError(
            f"pipeline={pipeline.schedule}: can be planned, not run; plan with pipeline={' or '.join(RUNNABLE)}."
        )
    if num_microbatches < stages and pipeline.schedule is PipelineSchedule.ONE_FORWARD_ONE_BACKWARD:
        raise EngineError(
            f"num_microbatches={num_microbatches}: PyTorch's 1F1B needs as many as stages ({stages}); plan with more."
        )
