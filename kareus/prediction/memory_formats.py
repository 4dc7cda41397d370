"""Formats of files with the memory of trainings, as tables: what their columns are called, and what they leave out.

`read_memory` reads any of them; a format is a `Format`, no code of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

GIB = 2**30


class MeasuredRank(StrEnum):
    """The GPU that a file has the memory of."""

    LAST = "last"
    """One of the last stage, which writes the log (Megatron-LM, megatron/training/global_vars.py)."""
    FULLEST = "fullest"
    """The one that takes the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of file."""

    memory: str
    """Column of the peak of allocated memory, by which the format is told."""
    bytes_each: float
    """Bytes of its unit."""
    rank: MeasuredRank
    family: str
    """As families of measured iterations; it tells the software. A column of that name says otherwise."""
    name: str
    """Column that names a row."""
    sizes: Mapping[str, tuple[str, int | None]]
    """Column and what it means if it is empty (None: it must not be), by name of a measured iteration's."""
    models: Mapping[str, Mapping[str, int]]
    """Sizes by name of the model, of files that do not have them."""
    gpus: Mapping[str, str]
    """Options of the group `gpu` by what the file calls them; of a file without such a column by the empty name."""
    names_options: bool
    """Whether its column `gpu` may also name an option of the group `gpu`, as users write such files."""
    refused: Mapping[str, tuple[Sequence[str], str]]
    """Texts of a column of rows that no workload represents (empty: any text), and what they are."""


VOCABULARIES = {"bert": 30_522}
"""Of groups of tests that do not name theirs: BERT's, without case."""
GPT_VOCABULARY = 50_257
"""Of GPT-2, Megatron-LM's usual one."""
TOKENIZERS = {"Llama2Tokenizer": 32_000, "nemotron_2_256k.model": 256_000}
"""Tokens by what a tokenizer, or its file, is called."""

MEGATRON = Format(
    memory="mem_max_allocated_bytes",
    bytes_each=1,
    rank=MeasuredRank.LAST,
    family="mcore",
    name="test",
    sizes={
        "layers": ("num-layers", None),
        "hidden": ("hidden-size", None),
        "heads": ("num-attention-heads", None),
        "seq_len": ("seq-length", None),
        "microbatch_size": ("micro-batch-size", None),
        "batch": ("global-batch-size", None),
        "tp": ("tensor-model-parallel-size", 1),
        "pp": ("pipeline-model-parallel-size", 1),
        "cp": ("context-parallel-size", 1),
    },
    models={},
    names_options=False,
    gpus={"a100": "a100-sxm4-80gb", "h100": "h100-sxm5-80gb", "gb200": "b200"},
    refused={
        "group": (("t5", "hybrid", "mimo", "multimodal-llava"), "no decoder or encoder of equal blocks alone"),
        "hybrid-layer-pattern": ((), "blocks without attention"),
        "test": (
            (
                "gpt_grpo_tp8tp4_pp1_ep8ep2_dp8_throughputtest",
                "gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_fine_grained_offloading",
            ),
            "reinforcement learning, or activations on the host of which no column says how many",
        ),
        "fp8-format": ((), "weights in fp8, whose transposes are kept too"),
        "use-megatron-fsdp": ((), "Megatron's FSDP, whose buffers nothing here was fitted to"),
        "optimizer": (("muon", "dist_muon"), "another optimizer than Adam"),
    },
)

NANOTRON_SIZES = {"vocab": 131_072, "heads": 32, "kv_heads": 32, "ffn": 8_192}
NANOTRON = Format(
    memory="gpu_memory_gb",
    bytes_each=GIB,  # states of 12 bytes a parameter follow only so
    rank=MeasuredRank.FULLEST,
    family="nanotron",
    name="model",
    sizes={
        "seq_len": ("seq_len", None),
        "microbatch_size": ("mbs", None),
        "batch": ("gbs", None),
        "dp": ("dp", None),
        "pp": ("pp", None),
        "tp": ("tp", None),
        "cp": ("cp", 1),
    },
    models={
        "1B": {**NANOTRON_SIZES, "layers": 16, "hidden": 2_048},
        "3B": {**NANOTRON_SIZES, "layers": 28, "hidden": 3_072},
    },
    names_options=True,
    gpus={"": "h100-sxm5-80gb"},
    refused={"batch_consistent": (("0",), "a batch that its own columns contradict")},
)

FORMATS = (MEGATRON, NANOTRON)


def format_of(header: Sequence[str]) -> Format | None:
    """Return the format of a file with these columns; None where no column has a memory."""
    return next((kind for kind in FORMATS if kind.memory in header), None)
