"""A run beside its prediction: times, memory and energy expected and achieved, and what does not fit."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from kareus.errors import ConfigError
from kareus.explain.causes import LEAST_SHARE, Cause, causes_of
from kareus.explain.log import SLOW, LoggedRun
from kareus.prediction.errors import error_words, time_percent
from kareus.prediction.workload_prediction import Prediction, predict
from kareus.workload.config import Workload
from kareus.workload.model_flops import model_flops, tokens_per_iteration

WIDTH = 100
MOST_CAUSES = 5
NO_CAUSE = f"nothing that is tried makes up {100 * LEAST_SHARE:g} % of it; a trace of one step shows what stands still"
MUCH_SLOW_PERCENT = 3.0
"""What slow steps add to a run, from which on they are told of first."""
FLOPS_APART = 0.15
"""By how much a trainer's count of FLOPs may differ from ours: it may count the embedding, or attention in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A run beside its prediction."""

    workload: str
    run: LoggedRun
    expected: Prediction
    achieved_s: float
    """Median time of an iteration."""
    error_percent: float
    """Error of time that 90 % of predictions do not exceed."""
    slower_percent: float
    """What the run takes more than predicted, or less."""
    as_expected: bool
    """Whether it is within the error of predictions."""
    causes: tuple[Cause, ...]
    """What would make up the difference, of a run that is slower; the nearest first."""
    notes: tuple[str, ...]
    """What else does not fit the prediction."""


def explain(name: str, workload: Workload, logged: LoggedRun) -> Explanation:
    """Compare a run with its prediction.

    Args:
        name: of the workload.
        workload: that the run is of.
        logged: what its log says.

    Raises:
        ConfigError: the log is of another batch, or has no time of steps.
    """
    _check_batch(workload, logged)
    expected, achieved_s = predict(workload), _achieved_s(workload, logged)
    slower = achieved_s / expected.time_s - 1
    error = time_percent(workload) / 100
    return Explanation(
        workload=name,
        run=logged,
        expected=expected,
        achieved_s=achieved_s,
        error_percent=100 * error,
        slower_percent=100 * slower,
        as_expected=-error / (1 + error) <= slower <= error,
        causes=causes_of(workload, expected, achieved_s, logged.numbers) if slower > error else (),
        notes=tuple(_notes(workload, logged, expected, achieved_s)),
    )


def _check_batch(workload: Workload, logged: LoggedRun) -> None:
    sequences = tokens_per_iteration(workload) // workload.sequence_length
    said = logged.numbers.get("batch_sequences")
    tokens = logged.numbers.get("batch_tokens")
    if said is None and tokens is not None:
        said = tokens / workload.sequence_length
    # nanotron rounds to three digits
    if said is not None and abs(said / sequences - 1) > (0 if tokens is None else 0.01):
        layout = workload.parallelism
        number = said / (layout.dp * workload.microbatch_size)
        whole = f"num_microbatches={round(number)}" if number >= 1 and number == int(number) else "another layout"
        raise ConfigError(
            f"{logged.trainer}'s log has a batch of {said:g} sequences, the workload one of {sequences} (dp "
            f"{layout.dp} x microbatches {workload.num_microbatches} x microbatch_size {workload.microbatch_size}); "
            f"give {whole}."
        )


def _achieved_s(workload: Workload, logged: LoggedRun) -> float:
    """Return the median time of an iteration."""
    if logged.time_s is not None:
        return logged.time_s
    if rate := logged.numbers.get("tokens_per_s_per_gpu"):
        return tokens_per_iteration(workload) / workload.parallelism.gpus / rate
    raise ConfigError(f"{logged.trainer}'s log has neither times of steps nor tokens per second; log one of them.")


def _notes(workload: Workload, logged: LoggedRun, expected: Prediction, achieved_s: float) -> Iterator[str]:
    """Yield what else does not fit: uneven steps, another count of FLOPs, more memory."""
    if logged.slow_percent >= MUCH_SLOW_PERCENT:
        yield (
            f"{len(logged.delays_s)} of {len(logged.times_s)} steps took more than {SLOW:g} times the median and make "
            f"the run {logged.slow_percent:.0f} % longer: checkpoints, evaluation, the data loader, garbage collection"
        )
    if tflops := logged.numbers.get("tflops_per_gpu"):
        theirs = tflops * 1e12 * achieved_s * workload.parallelism.gpus
        ratio = theirs / model_flops(workload)
        if abs(ratio - 1) > FLOPS_APART:
            yield (
                f"the log counts {theirs:.3g} FLOPs an iteration and the workload has {model_flops(workload):.3g} "
                f"({ratio:.2f} times): check model, sequence length, batch and number of GPUs"
            )
    allocated_gib = logged.numbers.get("allocated_gib")
    limit = 1.1 * expected.memory.allocated_gib
    if allocated_gib is not None and allocated_gib > limit:
        yield (
            f"{allocated_gib:.1f} GiB are allocated where {expected.memory.allocated_gib:.1f} are expected: what is "
            "kept (recomputation, fp32 copies, unsharded states) may differ from the workload"
        )


def explanation_lines(place: str, workload: Workload, explained: Explanation) -> Iterator[str]:
    """Yield an explanation for people."""
    logged, expected = explained.run, explained.expected
    yield (
        f"{place}: {logged.trainer}, steps {logged.first_step} to {logged.last_step}"
        + (f"; {logged.left_out} at the beginning left out" if logged.left_out else "")
    )
    yield (
        f"workload {explained.workload}, {workload.software.name} in {workload.precision} [GPU model of "
        f"{workload.gpu.name}]"
    )
    yield from textwrap.wrap(error_words(workload), WIDTH)
    yield ""
    yield f"{'':<28}{'expected':>12}{'achieved':>12}"
    for words, ours, theirs in _rows(workload, explained):
        yield f"{words:<28}{ours:>12}{theirs:>12}"
    yield ""
    yield from textwrap.wrap(_verdict(explained), WIDTH)
    for note in explained.notes:
        yield from textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    if not explained.causes:
        return
    missing_s = explained.achieved_s - expected.time_s
    yield ""
    yield f"what would make up the missing {missing_s:.3f} s, each alone, by the GPU model; the likeliest first:"
    for cause in explained.causes[:MOST_CAUSES]:
        share = f"{cause.explained_percent:>4.0f} %  "
        doubts = f"; against it: {'; '.join(cause.doubts)}" if cause.doubts else ""
        margin = " " * len(share)
        yield from textwrap.wrap(
            f"{cause.what} ({cause.time_s:.3f} s{doubts})", WIDTH, initial_indent=share, subsequent_indent=margin
        )
        yield from textwrap.wrap(cause.look_at, WIDTH, initial_indent=margin, subsequent_indent=margin)


def _rows(workload: Workload, explained: Explanation) -> Iterator[tuple[str, str, str]]:
    """Yield what is compared, expected and achieved, as texts."""
    expected, numbers, achieved_s = explained.expected, explained.run.numbers, explained.achieved_s
    gpus, tokens = workload.parallelism.gpus, tokens_per_iteration(workload)
    flops = model_flops(workload) / gpus / 1e12
    yield "time of an iteration, s", f"{expected.time_s:.3f}", f"{achieved_s:.3f}"
    yield "tokens/s of a GPU", f"{tokens / gpus / expected.time_s:,.0f}", f"{tokens / gpus / achieved_s:,.0f}"
    yield "model TFLOP/s of a GPU", f"{flops / expected.time_s:.0f}", f"{flops / achieved_s:.0f}"
    if "tflops_per_gpu" in numbers:
        yield "TFLOP/s as the log counts", "", f"{numbers['tflops_per_gpu']:.0f}"
    if "allocated_gib" in numbers:
        yield "allocated memory, GiB", f"{expected.memory.allocated_gib:.1f}", f"{numbers['allocated_gib']:.1f}"
    if "reserved_gib" in numbers:
        yield "reserved memory, GiB", f"{expected.memory.total_gib:.1f}", f"{numbers['reserved_gib']:.1f}"
    if "energy_j_per_gpu" in numbers:
        yield (
            "energy of an iteration, kJ",
            f"{expected.energy_j / 1e3:.1f}",
            f"{numbers['energy_j_per_gpu'] * gpus / 1e3:.1f}",
        )
    if "power_w_per_gpu" in numbers:
        power_w = expected.energy_j / gpus / expected.time_s
        yield "power of a GPU, W", f"{power_w:.0f}", f"{numbers['power_w_per_gpu']:.0f}"


def _verdict(explained: Explanation) -> str:
    slower, within = explained.slower_percent, f"the {explained.error_percent:.1f} % that predictions may be off"
    if explained.as_expected:
        return f"as expected: {slower:+z.1f} % of time, within {within}"
    if slower > 0:
        nothing = "" if explained.causes else f"; {NO_CAUSE}"
        return f"slower than expected: {slower:+z.1f} % of time, more than {within}{nothing}"
    return (
        f"faster than expected: {slower:+z.1f} % of time, more than {within}; check that the workload is the one that "
        "ran (layers, sequence length, precision), or calibrate the software: kareus calibrate --trainer"
    )
