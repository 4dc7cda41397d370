"""Low-rank adapters beside the frozen weights of a block (LoRA; Hu et al., ICLR 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass

from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import FUSED_PRODUCTS, RENAMED_PRODUCTS, TrainingOptions

OPERATORS: Mapping[str, str] = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "o_proj": "projection",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "down_proj": "down",
}
"""Operators of the graph of a block that these products are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter of a block on one GPU: a product of rank x inputs, and one of outputs x rank."""

    operator: str
    """Name of the operator of the graph that it is beside."""
    inputs: int
    outputs: int
    rank: int

    @property
    def parameters(self) -> int:
        """Its parameters on one GPU."""
        return self.rank * (self.inputs + self.outputs)


def adapters(model: Model, parallelism: Parallelism, options: TrainingOptions) -> tuple[Adapter, ...]:
    """Return the adapters of a block, in the order of `LINEAR`; none where all weights are trained.

    Tensor parallelism cuts what it cuts of the product itself: outputs of those before attention and activation, inputs
    of those after (Megatron-Bridge, `megatron.bridge.peft.lora`). A model without a gate has no `gate_proj`.
    """
    if not options.trains_adapters:
        return ()
    tp, hidden = parallelism.tp, model.hidden_size
    width = model.intermediate_size // tp
    outputs = {
        "q_proj": model.query_width // tp,
        "k_proj": model.key_value_width // tp,
        "v_proj": model.key_value_width // tp,
        "o_proj": hidden,
        "gate_proj": width if model.activation.gated else 0,
        "up_proj": width,
        "down_proj": hidden,
    }
    inputs = {"o_proj": model.attended_width // tp, "down_proj": width}
    layers = []
    for target in dict.fromkeys(options.lora_targets):
        name = RENAMED_PRODUCTS.get(target, target)
        parts = FUSED_PRODUCTS.get(name, (name,))
        made = sum(outputs[part] for part in parts)
        if made:
            operator, entering = OPERATORS[parts[0]], inputs.get(name, hidden)
            layers.append(Adapter(operator=operator, inputs=entering, outputs=made, rank=options.lora_rank))
    return tuple(layers)
