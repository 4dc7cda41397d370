"""A layout for a model that does not fit in the default one where none is named: the fewest GPUs in which it fits."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.workload.config import Workload
from kareus.workload.resolve import Resolved, check_workload, resolve

MOST_GPUS = 1024
"""Largest layout that is proposed."""


def with_proposal(one: Resolved, config_dir: Path) -> Resolved:
    """Return a refused workload that names a model and no part of a layout in the smallest layout that fits.

    Any other workload is returned as it is. The default model has a layout that was chosen for it.

    Args:
        one: a combination of a sweep.
        config_dir: Hydra groups.
    """
    groups = {text.partition("=")[0].partition(".")[0] for text in one.overrides}
    if one.refusal is None or "model" not in groups or "parallelism" in groups:
        return one
    for tp, pp in _degrees(one.composed):
        own = one.composed.parallelism
        laid_out = replace(own, dp=1, cp=1, tp=tp, pp=pp, layers_per_stage=None)
        try:
            check_workload(replace(one.composed, parallelism=laid_out))
        except (RefusedWorkloadError, ConfigError):
            continue
        degrees = {"dp": 1, "cp": 1, "tp": tp, "pp": pp}
        overrides = [f"parallelism.{name}={degree}" for name, degree in degrees.items() if getattr(own, name) != degree]
        return resolve([*one.overrides, *overrides], config_dir)[0]
    return one


def _degrees(workload: Workload) -> Iterator[tuple[int, int]]:
    """Yield tensor and pipeline parallelism by rising number of GPUs, shorter pipelines first."""
    node, layers = workload.gpu.gpus_per_node, workload.model.num_layers
    groups = [tp for tp in range(1, node + 1) if node % tp == 0]
    stages = [2**n for n in range(MOST_GPUS.bit_length()) if 2**n <= layers]
    pairs = [(tp, pp) for tp in groups for pp in stages if tp * pp <= MOST_GPUS]
    yield from sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1]))
