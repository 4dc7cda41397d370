"""Predictions of `kareus predict` for other software than Kareus' own: workloads with the option `software`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.fidelity.iterations.predict import IterationPrediction, Predictor
from kareus.fidelity.iterations.workloads import IterationSubject, IterationSubjects
from kareus.workload.compose import compose
from kareus.workload.extension import feasible, part
from kareus.workload.software import GROUP, Accounting, PredictedWorkload


def predictions(
    overrides: Sequence[str], config_dir: Path
) -> Iterator[tuple[str, IterationSubject | None, IterationPrediction | str]]:
    """Yield the name of every combination, what it runs and its prediction; None and a reason if it cannot run.

    Raises:
        ConfigError: an override cannot be used.
    """
    predictor = Predictor()
    for composition in compose(overrides, config_dir, PredictedWorkload, GROUP):
        extension = part(composition, GROUP)
        name, software = f"{extension.workload_name}, {extension.name}", extension.record
        if software.accounting is Accounting.SHARE:
            raise ConfigError(f"software={software.name}: is what is predicted without it; leave it out.")
        try:
            workload = feasible(extension.workload, software.attention_kernel)
            of_gpu = tuple(text for text in composition.overrides if text.startswith("gpu."))
            gpu = IterationSubjects(of_gpu, config_dir).gpu(composition.options["gpu"], software.accounting)
            subject = IterationSubject(replace(workload, gpu=gpu), software, in_fp8=False)
            found = predictor.predict(subject)
        except RefusedWorkloadError as error:
            yield name, None, str(error)
        else:
            yield name, subject, found


def lines_of(name: str, subject: IterationSubject, found: IterationPrediction) -> Iterator[str]:
    """Yield a prediction for people."""
    gpus = subject.workload.parallelism.gpus
    yield f"{name}: at the highest clock within the power limit [GPU model of {subject.workload.gpu.name}]"
    energy_kj, mfu_pct = found.energy_j / 1e3, 100 * found.mfu
    yield f"iteration    {found.time_s:.3f} s, {energy_kj:.2f} kJ on {gpus} GPUs; MFU {mfu_pct:.1f} %"
    yield (
        f"parts        forward {found.forward_s:.3f} s, backward {found.backward_s:.3f} s, exposed communication "
        f"{found.exposed_communication_s:.3f} s, host {found.host_s:.3f} s, bubbles {found.bubbles_s:.3f} s, update "
        f"{found.update_s:.3f} s"
    )
