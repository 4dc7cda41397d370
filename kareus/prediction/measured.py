"""Workloads that the rows of a file with measured iterations ran, which `kareus.predict` predicts as any other."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.parameters import all_used_matrices
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.lines import read_lines
from kareus.prediction.rows import FITTING, MeasuredIteration, read_iterations
from kareus.software.record import Dispatcher, Software, TensorOverlap, driven
from kareus.workload.combinations import check_combinations, check_format
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.divisibility import check_divisibility
from kareus.workload.memory import MemoryFit, estimate_memory, fit_of
from kareus.workload.split import balanced_split, even_split, filled_split, head_flops

OF_FAMILY = {
    "vtrain-single": "vtrain",
    "vtrain": "megatron-deepspeed-2022",
    "selective-recompute": "megatron-2022",
    "megatron": "megatron-2022",
    "dgxc": "megatron-core",
    "nemo": "megatron-core",
    "bridge": "megatron-core",
    "mlperf": "megatron-core",
    "mcore": "megatron-core",
    "modelzoo": "megatron-core",
    "llm-foundry": "llm-foundry",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
}
"""Software by the beginning of a family's name; of other families columns tell."""
WITHOUT_RECOMPUTATION = ("vtrain-single",)
"""Beginnings of families whose times have no second forward, whatever their column `recompute` says.

vTrain repeats forwards, if it does, on all stages but the last (`src/predictor.py`, `use_checkpoint`); in these rows a
block takes as long on every stage. And with a second forward, products would run at 96 % of the peak of tensor cores.
"""
NODE_GB_PER_S = {("llm-foundry", "a100-sxm4-40gb"): 200.0}
"""Bandwidth of nodes, by family and GPU, of clusters that are connected otherwise than the GPU's file has it: RoCE of
200 Gbit/s for each GPU (LLM Foundry, scripts/train/benchmarking)."""
SHARDING = {
    "none": Sharding.NONE,
    "optimizer": Sharding.OPTIMIZER,
    "grad-op": Sharding.GRADIENTS,
    "fsdp": Sharding.FULL,
}
LEAST_FIRST = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
"""What rows may have recomputed that say `fitting`, the least first."""
TIED_POSITIONS = ("learned", "alibi")
"""Position encodings of GPT and MPT, which share the embedding's weights with the head."""


def measured_iterations(
    path: Path, overrides: Sequence[str], config_dir: Path
) -> Iterator[tuple[Workload, MeasuredIteration]]:
    """Yield what every row of a file with measured iterations ran, and the row.

    Args:
        path: CSV, or .csv.gz.
        overrides: Hydra overrides of every workload, such as numbers of GPUs.
        config_dir: Hydra groups.

    Raises:
        ArtifactError: the file cannot be read, or a value of a row cannot be used.
        ConfigError: an override cannot be used, or a row names no GPU that there is.
        RefusedWorkloadError: a row's layout does not divide over its GPUs.
    """
    workloads = MeasuredWorkloads(tuple(overrides), config_dir)
    _, lines = read_lines(path)
    for row in read_iterations(lines, path):
        yield workloads.of(row), row


class MeasuredWorkloads:
    """Workloads of rows; what a GPU and a software have in common is composed once."""

    def __init__(self, overrides: tuple[str, ...], config_dir: Path):
        """Prepare reading the configuration.

        Args:
            overrides: Hydra overrides of every workload, such as numbers of GPUs.
            config_dir: Hydra groups.
        """
        self._overrides, self._config_dir = overrides, config_dir
        self._bases: dict[tuple[str, str, str], Workload] = {}

    def of(self, row: MeasuredIteration) -> Workload:
        """Return the workload of a row.

        Raises:
            ConfigError: no such GPU, or sizes that no workload has.
            RefusedWorkloadError: the layout cannot be represented.
        """
        base = self._measured(row)
        software = replace(
            base.software, fused_attention=row.attention == "flash", tensor_overlap=_overlap(row, base.software)
        )
        if row.architecture:
            hidden = 1.0 if row.hides_exchanges else 0.0  # overlap_moe_expert_parallel_comm
            software = replace(software, dispatcher=Dispatcher(row.dispatcher), hidden_exchange=hidden)
        model = _with_experts(row, base.model, software) if row.architecture else _model(row, software)
        workload = replace(
            base,
            software=software,
            gpu=driven(base.gpu, software, row.gpus, row.pp),
            model=model,
            parallelism=_parallelism(row, model, software),
            pipeline=replace(
                base.pipeline,
                schedule=PipelineSchedule.INTERLEAVED if row.chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
                chunks=row.chunks,
            ),
            iteration=replace(base.iteration, include_update=True),
            microbatch_size=row.microbatch_size,
            num_microbatches=row.num_microbatches,
            sequence_length=row.seq_len,
            precision=Precision.BF16 if row.precision == "fp16" else Precision(row.precision),
            recomputation=_recomputation(row),
        )
        _check(row, workload)
        return _fitting(workload) if row.recompute == FITTING else workload

    def _measured(self, row: MeasuredIteration) -> Workload:
        """The configuration of a row's cluster, unless an override says what nodes are connected by."""
        base = self._base(row.gpu, software_of(row), row.architecture)
        family = next((name for name, gpu in NODE_GB_PER_S if row.family.startswith(name) and gpu == row.gpu), None)
        if family is None or any(text.split("=")[0] == "gpu.node_gb_per_s" for text in self._overrides):
            return base
        return replace(base, gpu=replace(base.gpu, node_gb_per_s=NODE_GB_PER_S[family, row.gpu]))

    def _base(self, gpu: str, software: str, architecture: str) -> Workload:
        key = gpu, software, architecture
        if key not in self._bases:
            model = [f"model={architecture}"] if architecture else []
            compositions = compose([f"gpu={gpu}", f"software={software}", *model, *self._overrides], self._config_dir)
            if len(compositions) > 1:
                raise ConfigError(
                    f"{' '.join(self._overrides)}: a sweep; measured iterations take one value of each key."
                )
            self._bases[key] = compositions[0].workload
        return self._bases[key]


def software_of(row: MeasuredIteration) -> str:
    """Return the option of the group `software` that runs a row."""
    option = next((software for beginning, software in OF_FAMILY.items() if row.family.startswith(beginning)), None)
    if option is None and row.attention == "unfused":
        return "megatron-2022"
    if option is None and row.sharding in ("fsdp", "grad-op"):
        option = "torchtitan" if row.compiled or row.position == "rope" else "llm-foundry"
    if option == "torchtitan" and not row.compiled:
        return "torchtitan-eager"
    return option or "megatron-core"


def _overlap(row: MeasuredIteration, software: Software) -> TensorOverlap:
    """What the row's collectives of tensor parallelism run beside: a column tells whether userbuffers were on."""
    if software.tensor_overlap is TensorOverlap.NOTHING:
        return TensorOverlap.NOTHING
    return TensorOverlap.USERBUFFERS if row.tp_overlap == "userbuffers" else TensorOverlap.NONE


def _model(row: MeasuredIteration, software: Software) -> Model:
    return Model(
        name=row.model.split(" ")[0],
        hidden_size=row.hidden,
        intermediate_size=row.ffn,
        num_layers=row.layers,
        num_attention_heads=row.heads,
        num_key_value_heads=row.kv_heads,
        head_dim=row.hidden // row.heads,
        vocab_size=software.padded(row.vocab, row.tp),
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


def _with_experts(row: MeasuredIteration, model: Model, software: Software) -> Model:
    """Return a mixture of experts with the blocks and the vocabulary of a row.

    Raises:
        RefusedWorkloadError: the row has other sizes than the model of that name.
    """
    sizes = {"hidden": model.hidden_size, "heads": model.num_attention_heads, "kv_heads": model.num_key_value_heads}
    for column, size in sizes.items():
        if getattr(row, column) != size:
            raise RefusedWorkloadError(
                f"{column}={getattr(row, column)}: {model.name} has {size}; give the row another name of its model."
            )
    if model.dense_layers and row.layers != model.num_layers:
        raise RefusedWorkloadError(f"layers={row.layers}: {model.name} has {model.num_layers} blocks of two kinds.")
    rows = software.padded(row.vocab, row.tp)
    return replace(model, num_layers=row.layers, vocab_size=rows, windowed_layers=_up_to(model, row.layers))


def _up_to(model: Model, layers: int) -> tuple[int, ...] | None:
    windowed = model.windowed_layers
    return None if windowed is None else tuple(layer for layer in windowed if layer < layers)


def _recomputation(row: MeasuredIteration) -> Recomputation:
    unknown = row.recompute == FITTING or row.family.startswith(WITHOUT_RECOMPUTATION)
    return Recomputation.NONE if unknown else Recomputation(row.recompute)


def _fitting(workload: Workload) -> Workload:
    """Return the workload with the least recomputation that its GPU's memory allows, or with all where none does."""
    for recomputation in LEAST_FIRST:
        tried = replace(workload, recomputation=recomputation)
        if fit_of(tried, estimate_memory(tried)) is not MemoryFit.REFUSED:
            break
    return tried


def _parallelism(row: MeasuredIteration, model: Model, software: Software) -> Parallelism:
    return Parallelism(
        dp=row.dp,
        pp=row.pp,
        tp=row.tp,
        cp=row.cp,
        layers_per_stage=layers_of(row, model, fills=software.fills_stages),
        sharding=_sharding(row),
        sequence_parallel=row.sequence_parallel and row.tp > 1,
        ep=row.ep,
        etp=row.etp,
    )


def _sharding(row: MeasuredIteration) -> Sharding:
    """What replicas share out, as far as it costs collectives in every microbatch.

    With a pipeline, FSDP keeps gathered weights from the first microbatch to the last, and reduces gradients in the
    last one (TorchTitan: `fsdp_reshard_after_forward`, `default`): its collectives are those of a sharded optimizer.
    """
    sharding = SHARDING[row.sharding]
    return Sharding.OPTIMIZER if row.pp > 1 and sharding in (Sharding.GRADIENTS, Sharding.FULL) else sharding


def layers_of(row: MeasuredIteration, model: Model, *, fills: bool = False) -> tuple[int, ...]:
    """Return the blocks on each stage.

    Software that fills stages has their split by work. Else stages are equal where layers divide by stages and chunks.
    Where they do so with two more, embedding and head take the place of a block each (Megatron Core:
    account_for_embedding_in_pipeline_split).

    Raises:
        RefusedWorkloadError: neither, and stages are cut in chunks.
    """
    block = 8 * row.hidden * row.hidden + 6 * row.hidden * row.ffn
    if row.architecture:
        block = 2 * all_used_matrices(model) // model.num_layers
    head_blocks = head_flops(model) / (3 * block)
    if fills and row.chunks == 1 and row.pp <= row.layers:
        return filled_split(row.layers, row.pp, head_blocks)
    if even := even_split(row.layers, row.pp, row.chunks):
        return even
    if row.chunks > 1 or row.pp > row.layers:
        raise RefusedWorkloadError(
            f"layers={row.layers}: {row.pp} stages of {row.chunks} chunks cannot share them, with or without places "
            "for embedding and head."
        )
    return balanced_split(row.layers, row.pp, head_blocks)


def _check(row: MeasuredIteration, workload: Workload) -> None:
    model, tp = workload.model, row.tp
    if row.architecture:
        check_divisibility(workload)
        check_combinations(workload)
    check_format(workload.precision, workload.gpu)
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size"):
        if getattr(model, name) % tp:
            raise RefusedWorkloadError(f"tp={tp}: must divide {name} ({getattr(model, name)}).")
    if (not row.architecture and row.hidden % row.heads) or model.head_dim % 2:
        raise RefusedWorkloadError(f"heads={row.heads}: must divide hidden ({row.hidden}) in even heads.")
    parts = (2 * row.cp if row.cp > 1 else 1) * workload.parallelism.token_shards
    if row.seq_len % parts:
        raise RefusedWorkloadError(f"seq_len={row.seq_len}: must be a multiple of {parts}, the parts of a sequence.")
    if row.chunks > 1 and row.num_microbatches % row.pp:
        raise RefusedWorkloadError(f"num_microbatches={row.num_microbatches}: must be a multiple of pp={row.pp}.")
