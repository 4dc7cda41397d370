"""What a prediction says of the options of a training: that they are formulas, and what no single iteration shows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kareus.graph.records import Scope
from kareus.model.config import Model
from kareus.model.packed_documents import attention_spread
from kareus.model.parameters import ALONE, trained_parameters
from kareus.model.training_options import PLAIN, TrainingOptions
from kareus.prediction.workload_prediction import predict
from kareus.workload.config import Workload
from kareus.workload.model_flops import model_flops, tokens_per_iteration

MOST_BATCHES = 6
"""Batches of a ramp that are predicted; between them times and energies are on straight lines, as they are but for the
first few microbatches of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RampTotals:
    """What a training takes while its batch grows."""

    sequences: int
    iterations: float
    time_s: float
    energy_j: float
    whole_time_s: float
    """Of the same sequences in whole batches."""
    whole_energy_j: float


def training_lines(workload: Workload) -> Iterator[str]:
    """Yield a line for each thing that the options of a workload's training add; none for the usual ones."""
    options = workload.training
    if options.trains_adapters:
        trained = trained_of(workload.model, options)
        yield f"adapters     {trained:,} parameters are trained, all others are frozen"
    if options.trains_adapters or options.packs:
        gflops = model_flops(workload) / tokens_per_iteration(workload) / 1e9
        yield f"so trained   {gflops:,.4g} GFLOPs a token, of which MFU is"
    if options.packs:
        tokens = workload.microbatch_size * workload.sequence_length
        spread = attention_spread(options, workload.sequence_length, tokens)
        yield (
            f"packing      attention of a microbatch varies by {100 * spread:.0f} % (standard deviation) with its "
            "documents; not in the times"
        )
    if options.batch_ramp:
        ramp = ramp_totals(workload)
        yield (
            f"ramp         {ramp.sequences:,} sequences in {ramp.iterations:,.0f} iterations: {ramp.time_s:,.0f} s, "
            f"{ramp.energy_j / 1e3:,.0f} kJ"
        )
        yield (
            f"             the same in whole batches: {ramp.whole_time_s:,.0f} s, {ramp.whole_energy_j / 1e3:,.0f} kJ; "
            "other lines are of these"
        )


def trained_of(model: Model, options: TrainingOptions) -> int:
    """Return how many parameters all adapters of a model have."""
    return model.num_layers * trained_parameters(model, ALONE, options)[Scope.BLOCK]


def ramp_totals(workload: Workload) -> RampTotals:
    """Return what the sequences take over which the batch grows.

    As many sequences go by at each batch; the last batch before the whole one is a step below it (Megatron-LM,
    `megatron/core/num_microbatches_calculator.py`, `RampupBatchsizeNumMicroBatchesCalculator`).
    """
    first, step, sequences = workload.training.batch_ramp
    each = workload.parallelism.dp * workload.microbatch_size
    plain = replace(workload, training=replace(workload.training, batch_ramp=PLAIN.batch_ramp))
    whole = predict(plain)
    batches = np.arange(first, each * workload.num_microbatches, step)
    per_sequence_s = whole.time_s / (each * workload.num_microbatches)
    per_sequence_j = whole.energy_j / (each * workload.num_microbatches)
    if not len(batches):
        batches = np.array([first])
    counts = np.unique(np.linspace(0, len(batches) - 1, min(MOST_BATCHES, len(batches))).round().astype(int))
    predictions = [predict(replace(plain, num_microbatches=int(batches[n]) // each)) for n in counts]
    times_s = np.interp(batches, batches[counts], [prediction.time_s for prediction in predictions])
    energies_j = np.interp(batches, batches[counts], [prediction.energy_j for prediction in predictions])
    iterations = sequences / len(batches) / batches
    return RampTotals(
        sequences=sequences,
        iterations=float(iterations.sum()),
        time_s=float((iterations * times_s).sum()),
        energy_j=float((iterations * energies_j).sum()),
        whole_time_s=sequences * per_sequence_s,
        whole_energy_j=sequences * per_sequence_j,
    )
