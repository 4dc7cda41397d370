"""From a row with a measured iteration to the workload that it ran and the software that ran it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.fidelity.iterations.rows import MeasuredIteration
from kareus.gpu_model.gpu import Gpu
from kareus.graph.recomputation import Recomputation
from kareus.model.config import ActivationKind, Model, NormKind, Parallelism, PositionKind, Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.software import Accounting, Software, TensorOverlap, read_software
from kareus.workload.split import balanced_split, head_flops

OF_FAMILY = {
    "vtrain-single": "vtrain",
    "vtrain": "megatron-deepspeed-2022",
    "selective-recompute": "megatron-2022",
    "megatron": "megatron-2022",
    "dgxc": "nemo",
    "nemo": "nemo",
    "llm-foundry": "llm-foundry",
    "torchtitan": "torchtitan",
}
"""Software by the beginning of a family's name; of other families columns tell."""
WITHOUT_RECOMPUTATION = ("vtrain-single",)
"""Beginnings of families whose times have no second forward, whatever their column `recompute` says.

vTrain repeats forwards, if it does, on all stages but the last (`src/predictor.py`, `use_checkpoint`); in these rows a
block takes as long on every stage. And with a second forward, products would run at 96 % of the peak of tensor cores.
"""
ATTENTION_LIBRARY = "vllm"
"""Kernel library whose attention is that of training: FlashAttention."""
NIC_GB_PER_S = 25.0
"""Least bandwidth of nodes in the measured clusters for each GPU: 200 Gbit/s (DGX A100; RoCE of LLM Foundry)."""
SHARDING = {
    "none": Sharding.NONE,
    "optimizer": Sharding.OPTIMIZER,
    "grad-op": Sharding.GRADIENTS,
    "fsdp": Sharding.FULL,
}
TIED_POSITIONS = ("learned", "alibi")
"""Position encodings of GPT and MPT, which share the embedding's weights with the head."""


@dataclass(frozen=True, slots=True)
class IterationSubject:
    """What a row ran."""

    workload: Workload
    software: Software
    in_fp8: bool
    """Whether the products of its blocks take operands of 8 bits."""


class IterationSubjects:
    """Workloads of rows; GPUs and profiles are composed once each."""

    def __init__(self, overrides: tuple[str, ...], config_dir: Path, profiles: Mapping[str, Software] | None = None):
        """Prepare reading the configuration.

        Args:
            overrides: Hydra overrides of every workload, such as numbers of GPUs.
            config_dir: Hydra groups.
            profiles: software by option, instead of what the configuration has.
        """
        self._overrides, self._config_dir = overrides, config_dir
        self._software = dict(profiles or {})
        self._bases: dict[tuple[str, Accounting], Workload] = {}

    def of(self, row: MeasuredIteration) -> IterationSubject:
        """Return the workload and the software of a row.

        Raises:
            ConfigError: no such GPU, or sizes that no workload has.
            RefusedWorkloadError: the layout cannot be represented.
        """
        software = self._profile(row)
        base = self._measured(row.gpu, software.accounting)
        model = _model(row, software)
        workload = replace(
            base,
            model=model,
            parallelism=_parallelism(row, model, base),
            pipeline=replace(
                base.pipeline,
                schedule=PipelineSchedule.INTERLEAVED if row.chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
                chunks=row.chunks,
            ),
            microbatch_size=row.microbatch_size,
            num_microbatches=row.num_microbatches,
            sequence_length=row.seq_len,
            recomputation=_recomputation(row),
        )
        _check(row, workload)
        return IterationSubject(workload, software, in_fp8=row.precision == "fp8")

    def gpu(self, option: str, accounting: Accounting) -> Gpu:
        """Return the GPU of an option as software that is accounted for like this is predicted on."""
        return self._base(option, accounting).gpu

    def _profile(self, row: MeasuredIteration) -> Software:
        """Software of a row: its profile, with what the row itself tells."""
        option = software_of(row)
        if option not in self._software:
            self._software[option] = read_software(option, self._config_dir)
        return replace(
            self._software[option],
            fused_attention=row.attention == "flash",
            tensor_overlap=TensorOverlap(row.tp_overlap),
        )

    def _base(self, gpu: str, accounting: Accounting) -> Workload:
        if (gpu, accounting) not in self._bases:
            base = self._composed(gpu)
            if accounting is not Accounting.SHARE:
                base = replace(base, gpu=base.gpu.with_library(ATTENTION_LIBRARY))
            self._bases[gpu, accounting] = base
        return self._bases[gpu, accounting]

    def _measured(self, gpu: str, accounting: Accounting) -> Workload:
        """The same in the measured clusters, unless an override says what nodes are connected by."""
        base = self._base(gpu, accounting)
        if any(text.split("=")[0] == "gpu.node_gb_per_s" for text in self._overrides):
            return base
        node_gb_per_s = max(base.gpu.node_gb_per_s, NIC_GB_PER_S * base.gpu.gpus_per_node)
        return replace(base, gpu=replace(base.gpu, node_gb_per_s=node_gb_per_s))

    def _composed(self, gpu: str) -> Workload:
        compositions = compose([f"gpu={gpu}", *self._overrides], self._config_dir)
        if len(compositions) > 1:
            raise ConfigError(f"{' '.join(self._overrides)}: a sweep; measured iterations take one value of each key.")
        return compositions[0].workload


def software_of(row: MeasuredIteration) -> str:
    """Return the option of the group `software` that runs a row."""
    option = next((known for beginning, known in OF_FAMILY.items() if row.family.startswith(beginning)), None)
    if option is None and row.attention == "unfused":
        return "megatron-2022"
    if option is None and row.sharding in ("fsdp", "grad-op"):
        option = "torchtitan" if row.compiled or row.position == "rope" else "llm-foundry"
    if option == "torchtitan" and not row.compiled:
        return "torchtitan-eager"
    return option or "nemo"


def _model(row: MeasuredIteration, software: Software) -> Model:
    return Model(
        name=row.model.split(" ")[0],
        hidden_size=row.hidden,
        intermediate_size=row.ffn,
        num_layers=row.layers,
        num_attention_heads=row.heads,
        num_key_value_heads=row.kv_heads,
        head_dim=row.hidden // row.heads,
        vocab_size=_vocabulary(row, software),
        tie_embeddings=row.position in TIED_POSITIONS,
        qk_norm=False,
        qkv_bias=False,
        norm_epsilon=1e-5,
        rotary_base=10_000.0,
        rotary_scaling=None,
        layers_per_stage={},
        norm=NormKind(row.norm),
        activation=ActivationKind(row.mlp),
        positions=PositionKind(row.position),
        biases=row.norm == "layernorm" and row.position == "learned",
        max_positions=row.seq_len if row.position == "learned" else None,
    )


def _vocabulary(row: MeasuredIteration, software: Software) -> int:
    if not software.vocabulary_multiple:
        return row.vocab // row.tp * row.tp
    multiple = row.tp * software.vocabulary_multiple
    return -(-row.vocab // multiple) * multiple


def _recomputation(row: MeasuredIteration) -> Recomputation:
    return Recomputation.NONE if row.family.startswith(WITHOUT_RECOMPUTATION) else Recomputation(row.recompute)


def _parallelism(row: MeasuredIteration, model: Model, base: Workload) -> Parallelism:
    return Parallelism(
        dp=row.dp,
        pp=row.pp,
        tp=row.tp,
        cp=row.cp,
        layers_per_stage=layers_of(row, model),
        sharding=_sharding(row),
        sequence_parallel=row.sequence_parallel and row.tp > 1,
    )


def _sharding(row: MeasuredIteration) -> Sharding:
    """What replicas share out, as far as it costs collectives in every microbatch.

    With a pipeline, FSDP keeps gathered weights from the first microbatch to the last, and reduces gradients in the
    last one (TorchTitan: `fsdp_reshard_after_forward`, `default`): its collectives are those of a sharded optimizer.
    """
    sharding = SHARDING[row.sharding]
    return Sharding.OPTIMIZER if row.pp > 1 and sharding in (Sharding.GRADIENTS, Sharding.FULL) else sharding


def layers_of(row: MeasuredIteration, model: Model) -> tuple[int, ...]:
    """Return the blocks on each stage.

    Stages are equal where layers divide by stages and chunks. Where they do so with two more, embedding and head take
    the place of a block each (Megatron Core: account_for_embedding_in_pipeline_split).

    Raises:
        RefusedWorkloadError: neither, and stages are cut in chunks.
    """
    pieces = row.pp * row.chunks
    if row.layers % pieces == 0:
        return (row.layers // row.pp,) * row.pp
    if (row.layers + 2) % pieces == 0 and row.pp > 1:
        whole = (row.layers + 2) // row.pp
        return (whole - 1, *[whole] * (row.pp - 2), whole - 1)
    if row.chunks > 1 or row.pp > row.layers:
        raise RefusedWorkloadError(
            f"layers={row.layers}: {row.pp} stages of {row.chunks} chunks cannot share them, with or without places "
            "for embedding and head."
        )
    block = 8 * row.hidden * row.hidden + 6 * row.hidden * row.ffn
    return balanced_split(row.layers, row.pp, head_flops(model) / (3 * block))


def _check(row: MeasuredIteration, workload: Workload) -> None:
    model, tp = workload.model, row.tp
    if row.precision == "fp8" and workload.gpu.fp8_speedup == 1:
        raise RefusedWorkloadError(
            f"precision=fp8: {workload.gpu.name} has no fp8 tensor cores (gpu.fp8_speedup is 1); use bf16."
        )
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size"):
        if getattr(model, name) % tp:
            raise RefusedWorkloadError(f"tp={tp}: must divide {name} ({getattr(model, name)}).")
    if row.hidden % row.heads or model.head_dim % 2:
        raise RefusedWorkloadError(f"heads={row.heads}: must divide hidden ({row.hidden}) in even heads.")
    parts = (2 * row.cp if row.cp > 1 else 1) * workload.parallelism.token_shards
    if row.seq_len % parts:
        raise RefusedWorkloadError(f"seq_len={row.seq_len}: must be a multiple of {parts}, the parts of a sequence.")
    if tp > workload.gpu.gpus_per_node:
        raise RefusedWorkloadError(f"tp={tp}: must fit a node of {workload.gpu.gpus_per_node} GPUs.")
    if row.chunks > 1 and row.num_microbatches % row.pp:
        raise RefusedWorkloadError(f"num_microbatches={row.num_microbatches}: must be a multiple of pp={row.pp}.")
