"""Readable names of workloads, such as `llama3.2-3b_pp2-tp8_mbs8_seq4096_a100`.

A name says everything in which a workload may differ from another of the same configuration folder: what is always
shown, what is shown where it is unusual, and what else was overridden. It depends on nothing but the workload, so
that it stays the same whatever else is swept, and keeps its results.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kareus.artifacts.names import shortened
from kareus.artifacts.records import content_hash
from kareus.errors import RefusedWorkloadError
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.partition.config import subject_of
from kareus.software.record import GROUP
from kareus.workload.compose import ENGINE, ComposedWorkload
from kareus.workload.config import Workload
from kareus.workload.split import blocks_words, default_split

ABBREVIATIONS = {"a100-sxm4-40gb": "a100", "h100-sxm5-80gb": "h100"}
"""Options of `gpu` that names shorten."""
USUAL_OPTIONS = {
    "testbed": "simulated",
    "protocol": "thermally_stable",
    "space": "default",
    "search": "informed",
    "pipeline": "1f1b",
}
"""Options that names leave out; fixed here, so that editing the defaults of `config.yaml` renames nothing."""
USUAL_SOFTWARE, OTHER_SOFTWARE = {"a100-sxm4-40gb": "megatron-paper"}, "megatron-core"
"""Options of `software` that names leave out, by option of `gpu`, and for all others."""
USUAL_NUM_MICROBATCHES = 8
SHOWN = {
    "microbatch_size",
    "sequence_length",
    "num_microbatches",
    "seed",
    "recomputation",
    "precision",
    "iteration.include_update",
}
"""Keys that a name shows by value, besides those of `parallelism`."""
MOST_CHARACTERS = 160
"""Longest name in characters: 255 are allowed in a part of a path, and logs add to it."""
MOST_CHANGES = 2
"""Changed values beyond which a name holds a hash of them all instead of each."""
OF_TRAINING = "training."
"""Begins the keys of a training's options, whose names say them without it."""
SHARES = ("training.offload_optimizer", "software.hidden_exchange")


def workload_name(composition: ComposedWorkload) -> str:
    """Name of a composed workload; letters, digits, `.`, `-` and `_` only."""
    workload, options = composition.workload, composition.options
    gpu = options["gpu"]
    usual = ENGINE if workload.testbed.cuda is not None else USUAL_SOFTWARE.get(gpu, OTHER_SOFTWARE)
    parts = [
        options["model"],
        degrees(workload),
        f"mbs{workload.microbatch_size}",
        f"seq{workload.sequence_length}",
        ABBREVIATIONS.get(gpu, gpu),
        *_unusual(workload),
        *([options[GROUP]] if options[GROUP] != usual else []),
        *(f"{group}-{options[group]}" for group, usual in USUAL_OPTIONS.items() if options[group] != usual),
        *changed(
            {
                key: value
                for key, value in composition.changes.items()
                if key not in SHOWN and not key.startswith("parallelism.")
            }
        ),
    ]
    return joined(parts)


def plain_name(workload: Workload) -> str:
    """Name of a workload that was not composed from options: its `workload_name` where options are the usual ones."""
    gpu = workload.gpu.name.lower()
    shape = f"mbs{workload.microbatch_size}", f"seq{workload.sequence_length}"
    usual = USUAL_SOFTWARE.get(gpu, OTHER_SOFTWARE)
    software = [workload.software.name] if workload.software.name != usual else []
    gpu = ABBREVIATIONS.get(gpu, gpu)
    return joined([workload.model.name, degrees(workload), *shape, gpu, *_unusual(workload), *software])


def name_at_limit(name: str, limit_w: float) -> str:
    """Return the name of a workload at a power limit that was chosen for it, in W."""
    return f"{name}_{limit_w:g}W"


def graph_name(workload: Workload) -> str:
    """Name of the operator graph of a workload; workloads with equal inputs of extraction share it."""
    shape = f"mbs{workload.microbatch_size}", f"seq{workload.sequence_length}"
    return joined([workload.model.name, degrees(workload), *shape, subject_of(workload)[:8]])


def joined(parts: Iterable[str]) -> str:
    """Parts of a name as one, safe in a path; what is too long for one ends in a hash of the whole."""
    name = "_".join(re.sub(r"[^A-Za-z0-9.-]", "-", part) for part in parts)
    return name if len(name) <= MOST_CHARACTERS else f"{shortened(name, MOST_CHARACTERS - 9)}-{content_hash(name)[:8]}"


def degrees(workload: Workload) -> str:
    """Degrees of parallelism, such as `pp2-cp2-tp4`; those of 1 are left out, but for pp and tp."""
    p = workload.parallelism
    shown = [("dp", p.dp, p.dp > 1), ("pp", p.pp, True), ("cp", p.cp, p.cp > 1), ("tp", p.tp, True)]
    shown += [("ep", p.ep, p.ep > 1), ("etp", p.etp, p.etp > 1)]
    return "-".join(f"{name}{degree}" for name, degree, is_shown in shown if is_shown)


def _unusual(workload: Workload) -> list[str]:
    """Return the parts of a name for keys that most workloads share, where this one differs."""
    split, sharing = workload.parallelism.layers_per_stage, workload.parallelism.sharing
    of_chunks = len(split or ()) > workload.parallelism.pp
    blocks = blocks_words(split or ()).replace("*", "x") if of_chunks else "-".join(map(str, split or ()))
    shards = "" if sharing == workload.parallelism.dp else sharing
    shown = {
        f"nmb{workload.num_microbatches}": workload.num_microbatches != USUAL_NUM_MICROBATCHES,
        f"seed{workload.seed}": workload.seed != 0,
        str(workload.precision): workload.precision is not Precision.BF16,
        "noupdate": not workload.iteration.include_update,
        f"recompute-{workload.recomputation}": workload.recomputation is not Recomputation.STAGE,
        f"shard-{workload.parallelism.sharding}{shards}": workload.parallelism.sharding is not Sharding.NONE,
        f"fsdp-{workload.parallelism.fsdp.label}": bool(workload.parallelism.fsdp.label),
        "seqpar": workload.parallelism.token_shards > 1,
        f"layers{blocks}": split is not None and split != _default_split(workload),
    }
    return [text for text, is_shown in shown.items() if is_shown]


def _default_split(workload: Workload) -> tuple[int, ...] | None:
    try:
        return default_split(workload)
    except RefusedWorkloadError:
        return None


def changed(changes: Mapping[str, Any]) -> list[str]:
    """Parts of a name for values that differ from those of the chosen options: few plain ones as they are, else a hash.

    Example:
        >>> changed({"training.cast_weights": True, "training.offload_optimizer": 0.5})
        ['cast_weights', 'offload_optimizer-0.5']
    """
    if len(changes) <= MOST_CHANGES and all(_is_plain(key, value) for key, value in changes.items()):
        return [_said(key, value) for key, value in changes.items()]
    return [content_hash(changes)[:8]]


def _is_plain(key: str, value: Any) -> bool:
    return isinstance(value, bool | int | float) or (key.startswith(OF_TRAINING) and isinstance(value, str))


def _said(key: str, value: Any) -> str:
    """A key and its value; the key alone where it is on, or all of a share."""
    said = key.removeprefix(OF_TRAINING)
    if value is True or (key in SHARES and value == 1):
        return said
    return f"no-{said}" if value is False else f"{said}-{value}".replace("+", "")
