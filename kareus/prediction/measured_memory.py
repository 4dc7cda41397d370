"""Rows of files with the memory of trainings: measured iterations, and what those have not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kareus.errors import ConfigError
from kareus.gpu_model.gpu import Gpu
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.lines import Line, LineValueError, Refusal
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.memory_formats import GIB, GPT_VOCABULARY, TOKENIZERS, VOCABULARIES, Format, MeasuredRank
from kareus.prediction.memory_terms import ToldByTerms, told_by_terms
from kareus.prediction.rows import MOST_SIZE, MeasuredIteration
from kareus.software.record import LossKernels, driven
from kareus.workload.config import Workload
from kareus.workload.memory import MemoryEstimate, estimate_memory, stage_memory

MODEL_SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")
REAL = 1_024
"""Hidden size of models whose errors count: of smaller ones constants are more than tensors."""
UNFUSED = ("unfused", "local")
PADDED = "make-vocab-size-divisible-by"
MOST_REPLICAS = 1_024
NOTHING = ("", "false", "0")
"""Texts of a switch that is off."""
USUAL_DROPOUT = 0.1
"""Of Megatron-LM (megatron/training/arguments.py: --attention-dropout, --hidden-dropout)."""
LOSSES = {True: LossKernels.COMPILED, False: LossKernels.SEPARATE}
"""Of Megatron-LM, with `--cross-entropy-loss-fusion` and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """A training whose memory was measured, or that crashed."""

    line: int
    """Line of the file."""
    name: str
    group: str
    """What errors are listed by."""
    rank: MeasuredRank
    iteration: MeasuredIteration
    """What ran; its time is not a number where the file has none."""
    head_width: int
    """Values of a query of one head."""
    tied: bool
    """Whether embedding and head share their weights."""
    attention_dropout: bool
    stream_dropout: bool
    loss_kernels: LossKernels | None
    """None: those of its software."""
    layers_per_stage: tuple[int, ...] | None
    """None: as its software splits them."""
    terms: ToldByTerms | None
    """Experts and what else sizes do not tell; None of a dense model without anything of the kind."""
    vocabulary_multiple: int | None
    """What the rows of the embedding are a multiple of for each GPU of a tensor-parallel group; None: as usual."""
    allocated_gib: float | None
    """None where it crashed."""

    @property
    def is_dense(self) -> bool:
        """Whether its model has neither experts nor latent attention."""
        return self.terms is None or (self.terms.model.experts is None and self.terms.model.latent_attention is None)

    @property
    def counts(self) -> bool:
        """Whether it ran a model that is large enough for its error to count."""
        return self.allocated_gib is not None and self.iteration.hidden >= REAL


def memory_row(line: Line, kind: Format) -> MeasuredMemory:
    """Return the row of a line.

    Raises:
        LineValueError: a value cannot be used, or the row is of a kind that no workload represents.
    """
    cells = {name: (text or "").strip() for name, text in line.cells.items()}
    _check_kind(line, cells, kind)
    sizes: dict[str, Any] = _sizes(line, cells, kind)
    terms = None if kind.models else told_by_terms(cells, sizes, _chunks(cells, sizes))
    if terms is not None:
        sizes |= _folded(terms, sizes)
    unfused = cells.get("attention-backend") in UNFUSED or cells.get("transformer-impl") == "local"
    iteration = MeasuredIteration(
        line=line.number,
        family=cells.get("family") or kind.family,
        gpu=_gpu(line, cells, kind),
        model=cells.get("group") or cells[kind.name],
        mlp="swiglu" if _on(cells, "swiglu") or kind.models else "gelu",
        norm="rmsnorm" if cells.get("normalization") == "RMSNorm" or kind.models else "layernorm",
        position="rope" if cells.get("position-embedding-type") == "rope" or kind.models else "learned",
        attention="unfused" if unfused else "flash",
        sequence_parallel=sizes["tp"] > 1 and (_on(cells, "sequence-parallel") or bool(kind.models)),
        sharding="optimizer" if _on(cells, "use-distributed-optimizer") or cells.get("zero") == "1" else "none",
        precision="fp16" if _on(cells, "fp16") else "bf16",
        recompute=(cells.get("recompute-granularity") or "none") if terms is None else terms.recomputation,
        tp_overlap="none",
        compiled=False,
        iteration_time_s=_number(cells.get("iteration_time_s", ""), math.nan),
        **{name: size for name, size in sizes.items() if name != "batch"},
        num_microbatches=_microbatches(line, sizes),
        chunks=_chunks(cells, sizes) if terms is None or terms.layers_per_stage is None else 1,
    )
    return MeasuredMemory(
        line=line.number,
        name=" ".join(filter(None, (cells[kind.name], cells.get("platform")))),
        group=cells.get("group") or cells[kind.name],
        rank=kind.rank,
        iteration=iteration,
        head_width=int(_number(cells.get("kv-channels", ""), iteration.hidden // iteration.heads)),
        terms=terms,
        vocabulary_multiple=multiple if (multiple := int(_number(cells.get(PADDED, ""), 0))) else None,
        tied=not (_on(cells, "untie-embeddings-and-output-weights") or kind.models),
        attention_dropout=_number(cells.get("attention-dropout", ""), USUAL_DROPOUT) > 0 and not kind.models,
        stream_dropout=_number(cells.get("hidden-dropout", ""), USUAL_DROPOUT) > 0 and not kind.models,
        loss_kernels=None if kind.models else LOSSES[_on(cells, "cross-entropy-loss-fusion")],
        layers_per_stage=_uneven(line, cells, sizes),
        allocated_gib=_allocated(line, cells, kind),
    )


def workload_of(row: MeasuredMemory, workloads: MeasuredWorkloads) -> Workload:
    """Return what a row ran.

    Raises:
        ConfigError: no such GPU or software, or sizes that no workload has.
        RefusedWorkloadError: the layout cannot be represented.
    """
    if row.terms is None or row.terms.states_bytes is None:
        return _workload(row, workloads)
    each, dp = row.iteration.num_microbatches * row.iteration.dp, row.iteration.dp
    turns = row.iteration.pp if row.iteration.chunks > 1 else 1
    counts = [dp * 2**n for n in range(MOST_REPLICAS.bit_length()) if each % (turns * dp * 2**n) == 0]
    iterations = [replace(row.iteration, dp=count, num_microbatches=each // count) for count in counts or [dp]]
    possible = [_workload(replace(row, iteration=iteration), workloads) for iteration in iterations]
    left = [abs(estimate_of(row, workload).states_gib * GIB - row.terms.states_bytes) for workload in possible]
    return possible[left.index(min(left))]


def _workload(row: MeasuredMemory, workloads: MeasuredWorkloads) -> Workload:
    plain, terms, tp = workloads.of(row.iteration), row.terms, row.iteration.tp
    software = replace(
        plain.software,
        attention_dropout=row.attention_dropout,
        stream_dropout=row.stream_dropout,
        loss_kernels=row.loss_kernels or plain.software.loss_kernels,
    )
    gpu: Gpu = driven(plain.gpu, software, row.iteration.gpus, row.iteration.pp)
    layers = row.layers_per_stage or plain.parallelism.layers_per_stage
    model = replace(plain.model, tie_embeddings=row.tied, head_dim=row.head_width)
    if terms is None:
        parallelism = replace(plain.parallelism, layers_per_stage=layers)
        return replace(plain, software=software, gpu=gpu, model=model, parallelism=parallelism)
    padding = replace(software, vocabulary_multiple=row.vocabulary_multiple or software.vocabulary_multiple)
    schedule = PipelineSchedule.INTERLEAVED if terms.chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    return replace(
        plain,
        software=replace(padding, dispatcher=terms.dispatcher),
        gpu=gpu,
        model=replace(terms.model, vocab_size=padding.padded(terms.model.vocab_size, tp)),
        parallelism=replace(plain.parallelism, layers_per_stage=terms.layers_per_stage or layers),
        pipeline=replace(plain.pipeline, schedule=schedule, chunks=terms.chunks),
        training=replace(plain.training, recompute_modules=terms.recompute_modules),
    )


def estimate_of(row: MeasuredMemory, workload: Workload) -> MemoryEstimate:
    """Return the estimated memory of the GPU that a row was measured on: the fullest, or one of the last stage."""
    if row.rank is MeasuredRank.FULLEST:
        return estimate_memory(workload)
    return stage_memory(workload, workload.parallelism.pp - 1)


def memory_data(
    lines: Sequence[Line], kind: Format, overrides: Sequence[str], config_dir: Path
) -> tuple[list[tuple[MeasuredMemory, Workload]], list[Refusal]]:
    """Return the rows of a file with what they ran, and why the others cannot be represented."""
    workloads = MeasuredWorkloads(tuple(overrides), config_dir)
    data, refused = [], []
    for line in lines:
        try:
            row = memory_row(line, kind)
            data.append((row, workload_of(row, workloads)))
        except LineValueError as error:
            refused.append(Refusal(line.number, str(error)))
        except ConfigError as error:
            refused.append(Refusal(line.number, f"{row.name}: {error}"))
    return data, refused


def with_numbers(workload: Workload, numbers: Mapping[str, float]) -> Workload:
    """Return the same training by a software with other numbers of memory."""
    values: dict[str, Any] = dict(numbers)
    return replace(workload, software=replace(workload.software, **values))


def _check_kind(line: Line, cells: dict[str, str], kind: Format) -> None:
    for column, (texts, what) in kind.refused.items():
        text = cells.get(column, "")
        if text in texts or (not texts and text.lower() not in NOTHING):
            raise LineValueError(f"{line.path}: line {line.number}: {cells.get(kind.name)}: {column}={text}: {what}.")


def _sizes(line: Line, cells: dict[str, str], kind: Format) -> dict[str, int]:
    """Sizes of model, layout and batch by name of a measured iteration's."""
    sizes = _model_sizes(line, cells, kind) if kind.models else {}
    for name, (column, usual) in kind.sizes.items():
        if usual is not None and not cells.get(column):
            sizes[name] = usual
        else:
            sizes[name] = line.positive(column, _whole, 1, MOST_SIZE)
    if not kind.models:
        sizes |= _megatron_sizes(line, cells, sizes)
    return sizes


def _model_sizes(line: Line, cells: dict[str, str], kind: Format) -> dict[str, int]:
    """Sizes of a model by its name, else by columns."""
    sizes = kind.models.get(cells["model"])
    if sizes is not None:
        return dict(sizes)
    if not set(MODEL_SIZES) <= set(cells):
        raise LineValueError(
            f"{line.path}: line {line.number}: model={cells['model']!r} is not known; allowed: "
            f"{', '.join(kind.models)}, or any with the columns {', '.join(MODEL_SIZES)}."
        )
    return {name: line.positive(name, _whole, 1, MOST_SIZE) for name in MODEL_SIZES}


def _megatron_sizes(line: Line, cells: dict[str, str], sizes: dict[str, int]) -> dict[str, int]:
    """Sizes that Megatron-LM makes of others where it is not told (megatron/training/arguments.py)."""
    hidden = sizes["hidden"]
    usual_ffn = int(4 * hidden * 2 / 3) // 64 * 64 if _on(cells, "swiglu") else 4 * hidden
    groups = sizes["heads"]
    if _on(cells, "group-query-attention"):
        groups = line.positive("num-query-groups", _whole, 1, MOST_SIZE)
    ranks = sizes["tp"] * sizes["pp"] * sizes["cp"]
    gpus = int(_number(cells.get("num_gpus", ""), ranks))
    most = max(1, sizes["batch"] // sizes["microbatch_size"])  # a test may name more GPUs than it starts
    return {
        "ffn": int(_number(cells.get("ffn-hidden-size", ""), usual_ffn)),
        "kv_heads": groups,
        "vocab": int(_number(cells.get("vocab-size", ""), _tokens(cells))),
        "dp": min(max(1, gpus // ranks), most),
    }


def _tokens(cells: Mapping[str, str]) -> int:
    """Tokens of a vocabulary by its tokenizer, or as tests of a group have them."""
    named = (cells.get("tokenizer-type", ""), cells.get("tokenizer-model", "").rpartition("/")[2])
    usual = VOCABULARIES.get(cells.get("group", ""), GPT_VOCABULARY)
    return next((TOKENIZERS[name] for name in named if name in TOKENIZERS), usual)


def _folded(terms: ToldByTerms, sizes: Mapping[str, int]) -> dict[str, int]:
    """Degrees of experts, and as many replicas as these need at least."""
    together, each = terms.ep * terms.etp, sizes["tp"] * sizes["cp"]
    return {"ep": terms.ep, "etp": terms.etp, "dp": max(sizes["dp"], -(-together // each))}


def _microbatches(line: Line, sizes: dict[str, int]) -> int:
    each = sizes["dp"] * sizes["microbatch_size"]
    if sizes["batch"] % each:
        raise LineValueError(
            f"{line.path}: line {line.number}: a batch of {sizes['batch']}: must be a multiple of the replicas times "
            f"their microbatch ({each})."
        )
    return sizes["batch"] // each


def _chunks(cells: dict[str, str], sizes: dict[str, int]) -> int:
    each = cells.get("num-layers-per-virtual-pipeline-stage", "")
    if several := cells.get("num-virtual-stages-per-pipeline-rank", ""):
        return int(float(several))
    return max(1, sizes["layers"] // sizes["pp"] // int(float(each))) if each else 1


def _uneven(line: Line, cells: dict[str, str], sizes: dict[str, int]) -> tuple[int, ...] | None:
    """Blocks on each stage where the first and the last are told to have others than the rest."""
    first, last = (cells.get(f"decoder-{end}-pipeline-num-layers", "") for end in ("first", "last"))
    if not first and not last:
        return None
    layers, stages = sizes["layers"], sizes["pp"]
    ends = [int(float(text)) for text in (first, last) if text]
    middle, rest = divmod(layers - sum(ends), max(1, stages - len(ends)))
    if rest or middle < 1:
        raise LineValueError(f"{line.path}: line {line.number}: the stages do not share {layers} layers.")
    between = [middle] * (stages - len(ends))
    return (*ends[: bool(first)], *between, *ends[bool(first) :])


def _gpu(line: Line, cells: dict[str, str], kind: Format) -> str:
    name = cells.get("gpu", "")
    if name in kind.gpus:
        return kind.gpus[name]
    if name and kind.names_options:
        return name
    raise LineValueError(
        f"{line.path}: line {line.number}: gpu={name!r} is not known; allowed: {', '.join(kind.gpus)}."
    )


def _allocated(line: Line, cells: dict[str, str], kind: Format) -> float | None:
    if cells.get("status", "ran") != "ran":
        return None
    return line.positive(kind.memory, float, 1, float("inf")) * kind.bytes_each / GIB


def _on(cells: dict[str, str], column: str) -> bool:
    return cells.get(column, "").lower() == "true"


def _number(text: str, usual: float) -> float:
    try:
        return float(text)
    except ValueError:
        return usual


def _whole(text: str) -> int:
    """Return a whole number, which tables may write as 2.0."""
    value = float(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)
