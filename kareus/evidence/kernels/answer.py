"""The answer of `validate` to a file with measured kernels: one JSON object, or tables for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kareus.artifacts.records import to_plain
from kareus.errors import ConfigError
from kareus.evidence.kernels.counted import large_message, power_counts, time_counts
from kareus.evidence.kernels.predict import Gpus, Predicted, predict
from kareus.evidence.kernels.rows import KernelKind, Kernels
from kareus.evidence.kernels.score import Baselines, KernelErrors, baselines, errors_by, errors_of
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.trust import trust
from kareus.prediction.lines import Refusal, plain_refusals, refused_lines
from kareus.workload.compose import compose, with_engine

TITLES = {
    KernelKind.GEMM: "Matrix products (GEMM)",
    KernelKind.ATTENTION: "Attention",
    KernelKind.COLLECTIVE: "Collectives (NCCL)",
    KernelKind.EXPERTS: "Experts (grouped GEMMs)",
}


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """Kernels of a file, their predictions and errors."""

    kernels: Kernels
    """Those that are not refused."""
    predicted: Predicted
    refused: tuple[Refusal, ...]
    errors: KernelErrors
    by_gpu: Mapping[str, KernelErrors]
    by_collective: Mapping[str, KernelErrors]
    """Over large messages, all-to-alls among them; empty for other kernels."""
    baselines: Baselines
    trust: Mapping[str, str]
    """What is known of the errors of each GPU, in words, by its option."""

    @property
    def title(self) -> str:
        """What the file holds."""
        return TITLES[self.kernels.kind]

    @property
    def gpus(self) -> set[str]:
        """Options of the GPUs."""
        return {str(name) for name in self.kernels.gpu}

    @property
    def plain(self) -> dict[str, Any]:
        """The answer as plain data, numbers that are none as None."""
        return {
            **to_plain(self.errors),
            "kind": self.kernels.kind.value,
            "by_gpu": to_plain(self.by_gpu),
            **({"by_collective": to_plain(self.by_collective)} if self.by_collective else {}),
            "trivial": to_plain(self.baselines),
            "trust": to_plain(self.trust),
            "rows": list(_rows(self)),
            "refused": plain_refusals(self.refused),
        }

    @property
    def lines(self) -> list[str]:
        """Tables: errors by group and in all, baselines, and what was refused."""
        lines = ["", f"{'':<54} {'rows':>6} {'time':>8} {'median':>8} {'power':>8} {'energy':>8}"]
        lines += [_error_line(name, errors) for name, errors in self.by_gpu.items()]
        if self.by_collective:
            lines += ["", *(_error_line(name, errors) for name, errors in self.by_collective.items())]
        lines += ["", _error_line("all that count", self.errors), ""]
        lines += ["mean absolute errors; the median is that of predicted less measured time"]
        trivial = self.baselines
        what = "bandwidth" if self.kernels.kind is KernelKind.COLLECTIVE else "FLOP/s"
        lines += [f"for comparison, constant {what}: {trivial.constant_rate_time_mape_pct:.1f} % of time"]
        if trivial.roofline_time_mape_pct is not None:
            lines += [f"for comparison, constant FLOP/s and bandwidth: {trivial.roofline_time_mape_pct:.1f} % of time"]
        if trivial.constant_power_mape_pct is not None:
            lines += [f"for comparison, constant power: {trivial.constant_power_mape_pct:.1f} % of power"]
        lines += [f"{name}: {words}" for name, words in self.trust.items()]
        return [*lines, *([""] if self.refused else []), *refused_lines(self.refused)]


def answer_kernels(
    kernels: Kernels, overrides: Sequence[str], config_dir: Path, unusable: Sequence[Refusal] = ()
) -> KernelAnswer:
    """Predict and score all rows whose GPU is known.

    Args:
        kernels: rows of a file; each names its GPU.
        overrides: Hydra overrides of numbers of every GPU, such as `gpu.coefficients.l2_share=0.5`.
        config_dir: Hydra groups.
        unusable: rows of the file that were refused when it was read.

    Raises:
        ConfigError: an override cannot be used, or no row's GPU is known.
    """
    gpus, refused = _gpus(kernels, overrides, config_dir)
    refused = sorted([*refused, *unusable], key=lambda refusal: refusal.line)
    if not gpus:
        raise ConfigError(refused[0].reason)
    usable = kernels.where(np.isin(kernels.gpu, list(gpus)))
    predicted, mask = predict(usable, gpus), time_counts(usable)
    collective = usable.kind is KernelKind.COLLECTIVE
    return KernelAnswer(
        kernels=usable,
        predicted=predicted,
        refused=tuple(refused),
        errors=errors_of(usable, predicted, mask),
        by_gpu=errors_by(usable.groups, usable, predicted, mask),
        by_collective=errors_by(usable.collective, usable, predicted, large_message(usable)) if collective else {},
        baselines=baselines(usable, predicted, mask),
        trust={name: trust(gpu) for name, gpu in gpus.items()},
    )


def _gpus(kernels: Kernels, overrides: Sequence[str], config_dir: Path) -> tuple[Gpus, list[Refusal]]:
    if any(override.split("=")[0] == "gpu" for override in overrides):
        raise ConfigError("gpu: every row of measured kernels names its GPU; leave gpu=... out.")
    options = sorted(path.stem for path in (config_dir / "gpu").glob("*.yaml"))
    gpus: dict[str, Gpu] = {}
    refused = []
    for name in np.unique(kernels.gpu):
        if name in options:
            (composition,) = compose(with_engine([f"gpu={name}", *overrides]), config_dir)
            gpus[str(name)] = composition.workload.gpu
        else:
            reason = f"gpu={name}: no such option; allowed: {', '.join(options)}."
            refused += [Refusal(int(line), reason) for line in kernels.lines[kernels.gpu == name]]
    return gpus, refused


def _rows(answer: KernelAnswer) -> Iterator[dict[str, Any]]:
    """Rows as plain data, in the order of the file."""
    rows, predicted = answer.kernels, answer.predicted
    columns: dict[str, Sequence[Any]] = {
        "row": rows.lines.tolist(),
        "gpu": rows.gpu.tolist(),
        "software": rows.software.tolist(),
        "number_format": rows.number_format.tolist(),
        **({"collective": rows.collective.tolist()} if rows.kind is KernelKind.COLLECTIVE else {}),
        **({"routing": rows.routing.tolist()} if rows.kind is KernelKind.EXPERTS else {}),
        **{name: column.tolist() for name, column in rows.sizes.items()},
        "time_s": rows.time_s.tolist(),
        "predicted_time_s": predicted.time_s.tolist(),
        "power_w": _known(rows.power_w),
        "predicted_power_w": _known(predicted.power_w),
        "scored": time_counts(rows).tolist(),
        "power_scored": power_counts(rows).tolist(),
    }
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _known(values: Any) -> list[float | None]:
    return [value if value == value else None for value in values.tolist()]  # noqa: PLR0124 - NaN differs from itself


def _error_line(name: str, errors: KernelErrors) -> str:
    cells = (errors.time_mape_pct, errors.signed_median_pct, errors.power_mape_pct, errors.energy_mape_pct)
    shown = [f"{'-' if cell is None else f'{cell:z.1f}%':>8}" for cell in cells]
    return f"{name:<54} {errors.rows:>6} {' '.join(shown)}"
