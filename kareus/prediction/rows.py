"""Rows of files with measured training iterations: model, layout, batch, software and time of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kareus.graph.number_formats import Precision
from kareus.prediction.lines import Line, LineValueError, Refusal, check_filled, usable

LEAST_S, MOST_S = 1e-6, 1e6
"""Times of one iteration."""
MOST_SIZE = 2**31
COLUMNS = ("family", "dp", "pp", "tp", "iteration_time_s")
"""Columns that tell such a file from others, beside one of the batch."""
BATCHES = ("num_microbatches", "global_batch_size")
FITTING = "fitting"
"""Recomputation of rows that do not say theirs: the least with which the run fits its GPU."""
CHOICES = {
    "mlp": ("swiglu", "gelu", "squared-relu"),
    "norm": ("rmsnorm", "layernorm"),
    "position": ("rope", "learned", "alibi"),
    "attention": ("flash", "unfused"),
    "sharding": ("none", "optimizer", "grad-op", "fsdp"),
    "recompute": ("none", "selective", "full", FITTING),
    "tp_overlap": ("none", "userbuffers"),
    "precision": ("fp16", *map(str, Precision)),
    "dispatcher": ("alltoall", "flex"),
}
"""Allowed texts by column."""
SIZES = (
    "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "dp", "pp", "tp", "cp", "chunks", "microbatch_size",
    "num_microbatches", "seq_len", "ep", "etp",
)  # fmt: skip
SWITCHES = ("sequence_parallel", "compiled", "hides_exchanges")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIteration:
    """A measured iteration; its fields have the names of the file's columns.

    Example:
        >>> import kareus
        >>> ((workload, row),) = kareus.measured_iterations("iterations.csv")
        >>> row.gpus == workload.parallelism.gpus, row.iteration_time_s > 0
        (True, True)
    """

    line: int
    """Line of the file."""
    family: str
    """Where the row comes from; errors are listed by it."""
    gpu: str
    """Option of the configuration group `gpu`."""
    model: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    mlp: str
    norm: str
    position: str
    attention: str
    dp: int
    pp: int
    tp: int
    cp: int
    chunks: int
    """Virtual stages of each stage of the pipeline; 1 where it does not interleave."""
    sequence_parallel: bool
    sharding: str
    microbatch_size: int
    num_microbatches: int
    seq_len: int
    precision: str
    recompute: str
    tp_overlap: str
    compiled: bool
    iteration_time_s: float
    architecture: str = ""
    """Option of the group `model` whose blocks it has, of a mixture of experts; nothing where sizes say it all."""
    ep: int = 1
    etp: int = 1
    dispatcher: str = "alltoall"
    hides_exchanges: bool = False
    """Whether exchanges of tokens run beside the passes of other microbatches."""

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.dp * self.pp * self.tp * self.cp


def has_iterations(header: Sequence[str]) -> bool:
    """Whether a file with these columns has measured iterations."""
    return set(COLUMNS) <= set(header) and not set(BATCHES).isdisjoint(header)


def read_iterations(lines: Sequence[Line], path: Path) -> list[MeasuredIteration]:
    """Return the rows of a file.

    Raises:
        ArtifactError: a value that cannot be used, with its line and column; or no rows.
    """
    check_filled(lines, path)
    return [_row(line) for line in lines]


def read_usable_iterations(lines: Sequence[Line], path: Path) -> tuple[list[MeasuredIteration], tuple[Refusal, ...]]:
    """Return the rows of a file whose values can be used, and why the others cannot.

    Raises:
        ArtifactError: a column is missing, or no row can be used.
    """
    return usable(lines, path, _row)


ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "llama": {"mlp": "swiglu", "norm": "rmsnorm", "position": "rope"},
    "nemotron": {"mlp": "squared-relu", "norm": "layernorm", "position": "rope"},
    "mpt": {"mlp": "gelu", "norm": "layernorm", "position": "alibi"},
}
"""Columns of blocks, by the beginning of a model's name, of files that do not have them."""
EXPERTS: Mapping[str, str] = {
    "gpt oss 120b": "gpt-oss-120b",
    "grok1": "grok-1",
    "llama4-maverick": "llama4-maverick",
    "qwen3_235b": "qwen3-235b-a22b",
}
"""Options of the group `model`, by the beginning of the name of a mixture of experts, which columns do not describe."""
WHOLE_EXPERTS = ("modelzoo",)
"""Beginnings of families whose expert tensor parallelism is 1 where no column says it; elsewhere it is that of the
rest of the model, as Megatron Core takes it (`expert_tensor_parallel_size`)."""
USUAL: Mapping[str, str] = {
    "attention": "flash",
    "cp": "1",
    "chunks": "1",
    "compiled": "false",
    "dispatcher": "alltoall",
    "ep": "1",
    "hides_exchanges": "false",
    "precision": "bf16",
    "recompute": "none",
    "sequence_parallel": "false",
    "tp_overlap": "none",
}
"""What a cell means that is missing or empty."""
WORDS: Mapping[str, Mapping[str, str]] = {
    "sharding": {"ddp+dist-optimizer": "optimizer", "full_shard": "fsdp", "fsdp": "fsdp", "shard_grad_op": "grad-op"},
    "precision": {"amp_fp8": "fp8", "fp8-cs": "fp8-current"},
    "sequence_parallel": {"yes": "true", "no": "false"},
    "recompute": {"norm, act": "none", "none found in recipe": "none"},
}
"""Words of published tables for the texts of columns."""
OF_FAMILY: Mapping[str, Mapping[str, str]] = {
    "bridge": {"sequence_parallel": "true", "tp_overlap": "userbuffers", "recompute": FITTING},
}
"""Columns that tables of a family leave out because all its recipes set them, by the beginning of its name:
Megatron-Bridge's share tokens over tensor parallelism and overlap it, and recompute where memory is short."""
SCALED_NOW = "bridge"
"""Beginning of families whose "FP8" is current scaling: Megatron-Bridge's performance pages say so."""
NUMBER = re.compile(r"(\d+)\s*\(.*\)")
"""A number with a remark in brackets."""


def _completed(line: Line) -> Line:
    """Return a line of a published table in the columns of this module.

    Tables of NVIDIA and LLM Foundry give the global batch, words of their own, and remarks in brackets; what a block is
    made of follows from the model's name.
    """
    cells = {name: "" if text is None or text == "n/a" else text.strip() for name, text in line.cells.items()}
    name = cells.get("model", "").lower()
    architecture = next((sizes for start, sizes in ARCHITECTURES.items() if name.startswith(start)), {})
    family = next((v for start, v in OF_FAMILY.items() if cells.get("family", "").startswith(start)), {})
    for column, text in {**USUAL, **architecture, **family}.items():
        cells[column] = cells.get(column) or text
    if "userbuffers" in cells.get("overlap_note", "").lower():
        cells["tp_overlap"] = "userbuffers"
    cells = _with_experts(cells, name)
    for column, words in WORDS.items():
        if column in cells:
            cells[column] = words.get(cells[column].lower(), cells[column])
    for column in ("precision", "recompute"):
        cells[column] = cells[column].partition(" ")[0].lower()
    cells["precision"] = _recipe(cells)
    for column in SIZES:
        if remark := NUMBER.fullmatch(cells.get(column, "")):
            cells[column] = remark[1]
    completed = replace(line, cells=cells)
    if not cells.get("num_microbatches") and cells.get("global_batch_size"):
        batch, replicas, size = (
            completed.positive(column, int, 1, MOST_SIZE) for column in ("global_batch_size", "dp", "microbatch_size")
        )
        if batch % (replicas * size):
            raise LineValueError(
                f"{line.path}: line {line.number}: global_batch_size={batch}: must be a multiple of dp x "
                f"microbatch_size ({replicas * size})."
            )
        cells["num_microbatches"] = str(batch // (replicas * size))
    return completed


def _with_experts(cells: dict[str, str], model: str) -> dict[str, str]:
    """Return the cells of a mixture of experts by the name of its model, and what notes say of its exchanges."""
    architecture = next((option for start, option in EXPERTS.items() if model.startswith(start)), "")
    whole = not architecture or cells.get("family", "").startswith(WHOLE_EXPERTS)
    completed = {"architecture": architecture, "etp": "1" if whole else cells.get("tp", "1"), **cells}
    if not architecture:
        return completed
    note = cells.get("overlap_note", "").lower()
    if "deepep" in note:
        completed["dispatcher"] = "flex"
    if "ep overlap" in note:
        completed["hides_exchanges"] = "true"
    return {**ARCHITECTURES["llama"], **completed, "ffn": "1"}  # which the architecture says, too


def _recipe(cells: Mapping[str, str]) -> str:
    """Precision of a row: which recipe a family means by "FP8"."""
    scaled_now = cells.get("family", "").startswith(SCALED_NOW) and cells["precision"] == Precision.FP8
    return str(Precision.FP8_CURRENT) if scaled_now else cells["precision"]


def _row(line: Line) -> MeasuredIteration:
    line = _completed(line)
    values: dict[str, Any] = {
        "line": line.number,
        "iteration_time_s": line.positive("iteration_time_s", float, LEAST_S, MOST_S),
    }
    values |= {name: line.text(name) for name in ("family", "gpu", "model")}
    values |= {name: line.positive(name, int, 1, MOST_SIZE) for name in SIZES}
    values |= {name: line.choice(name, allowed) for name, allowed in CHOICES.items()}
    values |= {name: line.switch(name) for name in SWITCHES}
    values["architecture"] = line.cells["architecture"] or ""
    return MeasuredIteration(**values)
