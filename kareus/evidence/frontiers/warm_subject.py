"""Workloads on chips that have trained for minutes.

Profiles are measured just after a cooldown, and so are the planned frontiers that are made of them. Measured iterations
follow one another for long: their chips are warmer, leak more, and meet the power limit at less work.
"""

import numpy as np

from kareus.evidence.frontiers.plans import instruction_behaviours
from kareus.evidence.frontiers.subject import Subject
from kareus.gpu_model.thermal import RepeatedWork, at_temperature
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.solver.dag import build_dag, makespan
from kareus.profile.programs import Execution


def in_training(subject: Subject) -> Subject:
    """Return a workload on GPUs of the temperature to which its sequential iterations heat them, the mean of all.

    One temperature serves all methods: chips are warmer in profiles, too, where they draw more power, and of that the
    fitted coefficients know. Where the temperature of the air is not known, GPUs stay as they are.
    """
    gpu, ambient_c = subject.workload.gpu, subject.workload.ambient_c
    if ambient_c is None:
        return subject
    return subject.on(at_temperature(gpu, _sequential_work(subject).settled_c(ambient_c, gpu.coefficients)))


def _sequential_work(subject: Subject) -> RepeatedWork:
    """What a GPU does in a sequential iteration at the maximum clock, the mean of all stages, without messages."""
    workload = subject.workload
    gpu, stages = workload.gpu, workload.parallelism.pp
    behaviours = instruction_behaviours(subject, np.array([gpu.maximum_clock_mhz], dtype=np.float64))
    instructions = pipeline_instructions(workload.pipeline.schedule, stages, workload.num_microbatches)
    own = [behaviours[i.key.kind, Execution.SEQUENTIAL] for i in instructions]
    times_s = [float(behaviour.time_s[0]) for behaviour in own]
    busy_s = sum(times_s) / stages
    period_s = makespan(build_dag(instructions, (0.0,) * (stages - 1)), times_s)
    return RepeatedWork(
        period_s=period_s,
        busy_s=busy_s,
        busy_j=sum(float(behaviour.energy_j[0]) for behaviour in own) / stages,
        busy_degree_s=gpu.coefficients.reference_temperature_c * busy_s,
        waiting_j=gpu.blocking_power_w * (period_s - busy_s),
    )
