"""Absolute times of measured sequential iterations, from published TFLOP/s of a GPU, and how far predictions are off.

The paper's tables of reductions say how much less time methods take, and beside that how many TFLOP/s a GPU reaches
(`data/published_throughput.csv`). Its FLOPs are four forwards of all blocks (one recomputes), attention's masked half
included, and three of the head: so its 99.0 TFLOP/s of Qwen 3 1.7B are its 5.60 s. The column of its large table is
that of `kareus`: as that of Megatron-LM it would make measured iterations faster than the plans of their own profiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from kareus.evidence import FOLDER
from kareus.evidence.frontiers.reference import PLANNED_METHODS, Scenario, scenario_of
from kareus.evidence.frontiers.subject import Subject, Subjects
from kareus.model.config import Model
from kareus.model.parameters import all_used_matrices
from kareus.prediction.lines import Line, read_lines
from kareus.prediction.workload_prediction import predict
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration

PUBLISHED = FOLDER / "published_throughput.csv"
BLOCK_FORWARDS, HEAD_FORWARDS = 4, 3
"""Forwards whose FLOPs an iteration has, as the paper counts: a backward is two, and blocks are recomputed."""
MOST_TFLOPS = 1e7
"""Largest TFLOP/s of a GPU that a row may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedThroughput:
    """TFLOP/s of a GPU that a method reached on a workload."""

    scenario: Scenario
    method: str
    tflops_per_gpu: float
    time_reduction_pct: float
    """Time that the method saves of sequential execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTime:
    """Measured and predicted time of a sequential iteration at the maximum clock."""

    workload: str
    given_time_s: float
    predicted_time_s: float

    @property
    def error_pct(self) -> float:
        """Predicted less given."""
        return 100 * (self.predicted_time_s / self.given_time_s - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialScore:
    """Errors of absolute times."""

    sequential_time_mape_pct: float
    sequential_times: tuple[SequentialTime, ...]


def score_sequential(subjects: Subjects, path: Path = PUBLISHED) -> SequentialScore | None:
    """Score the workloads whose throughput is published; None if it is of none of them."""
    throughputs = [row for row in read_throughput(path) if row.scenario in subjects]
    if not throughputs:
        return None
    times = tuple(_sequential_time(row, subjects[row.scenario]) for row in throughputs)
    return SequentialScore(
        sequential_time_mape_pct=fmean(abs(time.error_pct) for time in times), sequential_times=times
    )


def read_throughput(path: Path) -> Sequence[PublishedThroughput]:
    """Read published throughputs; errors as of `read_lines`."""
    _, lines = read_lines(path)
    return [_throughput(line) for line in lines]


def counted_flops(workload: Workload) -> float:
    """Return the FLOPs of an iteration as the paper counts them."""
    model = workload.model
    attention = model.num_layers * _attention_products(model, workload.sequence_length)
    blocks = all_used_matrices(model) + attention
    head = model.vocab_size * model.hidden_size
    return 2.0 * tokens_per_iteration(workload) * (BLOCK_FORWARDS * blocks + HEAD_FORWARDS * head)


def _attention_products(model: Model, sequence_length: int) -> int:
    """Products of attention for each token, masked ones included."""
    return 2 * model.query_width * sequence_length


def _throughput(line: Line) -> PublishedThroughput:
    return PublishedThroughput(
        scenario=scenario_of(line),
        method=line.choice("method", PLANNED_METHODS),
        tflops_per_gpu=line.positive("tflops_per_gpu", float, 1e-3, MOST_TFLOPS),
        time_reduction_pct=line.percent("time_reduction_pct"),
    )


def _sequential_time(row: PublishedThroughput, subject: Subject) -> SequentialTime:
    """Predict an iteration with messages and the update of the weights."""
    workload = subject.workload
    gpus = workload.parallelism.gpus
    method_s = counted_flops(workload) / (row.tflops_per_gpu * 1e12 * gpus)
    updated = replace(workload, iteration=replace(workload.iteration, include_update=True))
    return SequentialTime(
        workload=row.scenario.label,
        given_time_s=method_s / (1 - row.time_reduction_pct / 100),
        predicted_time_s=predict(updated).time_s,
    )
