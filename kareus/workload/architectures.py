"""Meanings of a Hugging Face `config.json` by its `model_type`: a table, each row what differs from Llama.

A row has the keys under which a type writes a field of `kareus.model.config.Model`, the defaults of its class in
transformers (which leaves new fields out of older files; of types without a class there, those of the code that the
model brings along), the fields that are the same in all models of the type or follow from several keys, and the keys
that have to have a certain value. Rules that follow from several keys are in `architecture_rules.py`;
`kareus.workload.huggingface` reads files by the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kareus.model.config import ActivationKind, NormKind, PositionKind
from kareus.model.features import Branches, NormPlacement, QkNormScope
from kareus.workload.architecture_rules import (
    Config,
    Rule,
    alibi_if,
    all_but_every,
    every_block,
    falcon_branches,
    falcon_heads,
    flag,
    four_times,
    gpt_neo_local,
    layers_of,
    over,
    own_heads,
    parallel_if,
    past,
    real,
    rotates_if,
    unrotated,
    unwindowed,
)
from kareus.workload.huggingface_values import boolean, integer, number

LLAMA_KEYS: Mapping[str, str] = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "tie_embeddings": "tie_word_embeddings",
    "norm_epsilon": "rms_norm_eps",
    "activation": "hidden_act",
}
"""Fields of a model and the keys that have them; a row replaces some, null where no key has the field."""
GPT2_KEYS: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_layers": "n_layer",
    "num_attention_heads": "n_head",
    "norm_epsilon": "layer_norm_epsilon",
    "activation": "activation_function",
    "max_positions": "n_positions",
}
GATED_ACTIVATIONS: Mapping[str, ActivationKind] = {
    "silu": ActivationKind.SWIGLU,
    "swish": ActivationKind.SWIGLU,
    "gelu": ActivationKind.GEGLU,
    "gelu_new": ActivationKind.GEGLU_TANH,
    "gelu_pytorch_tanh": ActivationKind.GEGLU_TANH,
}
"""What transformers calls activations, in an MLP with a gate."""
PLAIN_ACTIVATIONS: Mapping[str, ActivationKind] = {
    "gelu_new": ActivationKind.GELU_TANH,
    "gelu": ActivationKind.GELU,
    "relu2": ActivationKind.SQUARED_RELU,
    "gelu_pytorch_tanh": ActivationKind.GELU_TANH,
    "gelu_fast": ActivationKind.GELU_TANH,
    "relu": ActivationKind.RELU,
}
"""Likewise without a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How files of one `model_type` are read."""

    keys: Mapping[str, str | None] = field(default_factory=dict)
    """Keys that differ from `LLAMA_KEYS`."""
    defaults: Config = field(default_factory=dict)
    """Values of keys that a file leaves out."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model, each a value or a `Rule`."""
    gated: bool = True
    """Whether the MLP has a gate."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys, and the values with which the model can be read."""
    unused: tuple[str, ...] = ()
    """Keys that models of the type have and that say nothing of them."""
    other: Mapping[str, str] = field(default_factory=dict)
    """Further names of keys in files, by key."""
    window: Rule | None = None
    """Numbers of the blocks to which `sliding_window` applies where no `layer_types` say it; None: no such key."""


_WITH_BIASES = {"norm": NormKind.LAYERNORM, "biases": True}
ATTENTION_BIASES: Mapping[str, Any] = {
    "qkv_bias": flag("attention_bias"),
    "projection_bias": flag("attention_bias"),
}
_LLAMA_BIASES: Mapping[str, Any] = {
    **ATTENTION_BIASES,
    "mlp_bias": flag("mlp_bias"),
}
_GEMMA: Mapping[str, Any] = {
    "embedding_scale": lambda config: integer(config, "hidden_size") ** 0.5,
    **ATTENTION_BIASES,
}
_GEMMA2: Mapping[str, Any] = {
    **_GEMMA,
    "attention_scale": lambda config: number(config, "query_pre_attn_scalar") ** -0.5,
    "attention_softcap": real("attn_logit_softcapping"),
    "logit_softcap": real("final_logit_softcapping"),
}
_GEMMA2_DEFAULTS: Config = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_SOFTCAPS = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
_GPT2_DEFAULTS: Config = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "tie_word_embeddings": True,
}
_GPT2_FIXED: Mapping[str, tuple[Any, ...]] = {
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}
_NOT_BIDIRECTIONAL: Mapping[str, tuple[Any, ...]] = {"use_bidirectional_attention": (False,)}
_COHERE: Mapping[str, Any] = {
    "norm": NormKind.LAYERNORM,
    "branches": Branches.PARALLEL_ONE_NORM,
    "logit_scale": lambda config: number(config, "logit_scale"),
    **ATTENTION_BIASES,
}
_COHERE_DEFAULTS: Config = {
    "logit_scale": 0.0625,
    "layer_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
_GPTJ = {
    "norm": NormKind.LAYERNORM,
    "branches": Branches.PARALLEL_ONE_NORM,
    "num_key_value_heads": own_heads("n_head"),
    "norm_bias": True,
    "mlp_bias": True,
    "head_bias": True,
    "rotary_share": lambda config: (
        integer(config, "rotary_dim") * integer(config, "n_head") / integer(config, "n_embd")
    ),
}
_GPTJ_ROW = Architecture(
    keys={key: value for key, value in GPT2_KEYS.items() if key != "max_positions"},
    defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "rotary_dim": 64},
    model=_GPTJ,
    gated=False,
)
_GLM: Mapping[str, Any] = {"qkv_bias": flag("attention_bias")}
_GLM_DEFAULTS: Config = {
    "attention_bias": True,
    "head_dim": 128,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
}
_LN = {"norm_epsilon": "layer_norm_eps"}
QWEN_WINDOW: Config = {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096}
HUNYUAN: Mapping[str, Any] = {
    "qk_norm": True,
    **ATTENTION_BIASES,
}
HUNYUAN_FIXED: Mapping[str, tuple[Any, ...]] = {"use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)}
MINICPM: Mapping[str, Any] = {
    "embedding_scale": real("scale_emb"),
    "residual_scale": lambda config: number(config, "scale_depth") / layers_of(config) ** 0.5,
    "logit_scale": lambda config: number(config, "dim_model_base") / integer(config, "hidden_size"),
}
GRANITE_DEFAULTS: Config = dict.fromkeys(
    ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"), 1.0
)
GRANITE_SCALES: Mapping[str, Any] = {
    "embedding_scale": real("embedding_multiplier"),
    "logit_scale": over("logits_scaling"),
    "residual_scale": real("residual_multiplier"),
    "attention_scale": real("attention_multiplier"),
}
_INTERNLM = Architecture(
    model={"qkv_bias": flag("bias"), "projection_bias": flag("bias")},
    defaults={"bias": False, "rms_norm_eps": 1e-6},
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(model=_LLAMA_BIASES),
    "mistral": Architecture(
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
        window=every_block,
    ),
    "qwen2": Architecture(
        model={"qkv_bias": True},
        defaults={**QWEN_WINDOW, "num_key_value_heads": 32},
        window=past("max_window_layers"),
    ),
    "qwen3": Architecture(
        model={"qk_norm": True, **ATTENTION_BIASES},
        defaults={**QWEN_WINDOW, "head_dim": 128, "num_key_value_heads": 32},
        window=past("max_window_layers"),
    ),
    "gpt2": Architecture(
        keys=GPT2_KEYS,
        defaults={**_GPT2_DEFAULTS, "activation_function": "gelu_new"},
        model={**_WITH_BIASES, "positions": PositionKind.LEARNED, "num_key_value_heads": own_heads("n_head")},
        gated=False,
        fixed=_GPT2_FIXED,
    ),
    "mpt": Architecture(
        keys={
            "hidden_size": "d_model",
            "intermediate_size": None,
            "num_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "norm_epsilon": "layer_norm_epsilon",
            "activation": None,
        },
        defaults={
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 24,
            "expansion_ratio": 4,
            "vocab_size": 50368,
            "layer_norm_epsilon": 1e-5,
            "no_bias": True,
            "tie_word_embeddings": True,
        },
        model={
            "norm": NormKind.LAYERNORM,
            "activation": ActivationKind.GELU,
            "positions": PositionKind.ALIBI,
            "intermediate_size": four_times("d_model"),
            "num_key_value_heads": own_heads("n_heads"),
        },
        gated=False,
        fixed={
            "no_bias": (True,),
            "expansion_ratio": (4,),
            "norm_type": ("low_precision_layernorm", "layernorm"),
            "logit_scale": (),
            "attn_config.attn_type": ("multihead_attention",),
            "attn_config.prefix_lm": (False,),
            "attn_config.qk_ln": (False,),
            "attn_config.attn_uses_sequence_id": (False,),
            "attn_config.alibi": (True,),
            "attn_config.alibi_bias_max": (8,),
            "attn_config.clip_qkv": (),
            "attn_config.softmax_scale": (),
        },
    ),
    "gemma": Architecture(
        keys={"activation": None},
        defaults={"head_dim": 256, "hidden_activation": None, "tie_word_embeddings": True},
        model={**_GEMMA, "activation": ActivationKind.GEGLU_TANH},
        fixed=_NOT_BIDIRECTIONAL,
    ),
    "gemma2": Architecture(
        keys={"activation": "hidden_activation"},
        defaults={**_GEMMA2_DEFAULTS, **_SOFTCAPS},
        model={**_GEMMA2, "norm_placement": NormPlacement.AROUND},
        fixed=_NOT_BIDIRECTIONAL,
        window=all_but_every(2, ""),
    ),
    "gemma3_text": Architecture(
        keys={"activation": "hidden_activation"},
        defaults={
            **_GEMMA2_DEFAULTS,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            # the class's sizes, which files of models with pictures leave out
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
        model={**_GEMMA2, "norm_placement": NormPlacement.AROUND, "qk_norm": True},
        fixed=_NOT_BIDIRECTIONAL,
        window=all_but_every(6),
    ),
    "vaultgemma": Architecture(
        keys={"activation": "hidden_activation"},
        defaults={**_GEMMA2_DEFAULTS, **_SOFTCAPS},
        model=_GEMMA2,
        window=all_but_every(2, ""),
    ),
    "phi": Architecture(
        keys=_LN,
        defaults={"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
        model={**_WITH_BIASES, "branches": Branches.PARALLEL_ONE_NORM, "head_bias": True},
        gated=False,
        fixed={"qk_layernorm": (False,)},
    ),
    "phi3": Architecture(defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0}, window=every_block),
    "olmo": Architecture(
        keys={"norm_epsilon": None},
        model={
            "norm": NormKind.LAYERNORM,
            "norm_weight": False,
            "norm_epsilon": 1e-5,
            **ATTENTION_BIASES,
        },
    ),
    "olmo2": Architecture(
        defaults={"rms_norm_eps": 1e-5},
        model={
            "norm_placement": NormPlacement.AFTER,
            "qk_norm": True,
            "qk_norm_scope": QkNormScope.TOKEN,
            **ATTENTION_BIASES,
        },
    ),
    "olmo3": Architecture(
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
        model={
            "norm_placement": NormPlacement.AFTER,
            "qk_norm": True,
            "qk_norm_scope": QkNormScope.TOKEN,
            **ATTENTION_BIASES,
        },
        window=all_but_every(4),
    ),
    "granite": Architecture(
        defaults=GRANITE_DEFAULTS,
        model={
            **_LLAMA_BIASES,
            **GRANITE_SCALES,
        },
    ),
    "glm": Architecture(defaults=_GLM_DEFAULTS, model=_GLM),
    "glm4": Architecture(defaults=_GLM_DEFAULTS, model={**_GLM, "norm_placement": NormPlacement.AROUND}),
    "smollm3": Architecture(
        defaults={
            "num_key_value_heads": 4,
            "rope_theta": 2_000_000.0,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        model={**_LLAMA_BIASES, "unrotated_layers": unrotated},
        unused=("max_window_layers",),
        window=unrotated,
    ),
    "starcoder2": Architecture(
        keys={"norm_epsilon": "norm_epsilon"},
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "num_key_value_heads": 2,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        model={"norm": NormKind.LAYERNORM, "biases": flag("use_bias"), "norm_bias": True},
        gated=False,
        window=every_block,
    ),
    "falcon": Architecture(
        keys={
            "num_key_value_heads": None,
            "intermediate_size": "ffn_hidden_size",
            "norm_epsilon": "layer_norm_epsilon",
            "activation": "activation",
        },
        defaults={
            "activation": "gelu",
            "layer_norm_epsilon": 1e-5,
            "multi_query": True,
            "num_kv_heads": None,
            "parallel_attn": True,
            "tie_word_embeddings": True,
        },
        model={
            "norm": NormKind.LAYERNORM,
            "biases": flag("bias"),
            "norm_bias": True,
            "branches": falcon_branches,
            "positions": alibi_if("alibi"),
            "num_key_value_heads": falcon_heads,
        },
        gated=False,
        fixed={"apply_residual_connection_post_layernorm": (False,)},
    ),
    "gpt_neox": Architecture(
        keys={**_LN, "num_key_value_heads": None},
        defaults={
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "rotary_pct": 0.25,
            "attention_bias": True,
        },
        model={
            **_WITH_BIASES,
            **ATTENTION_BIASES,
            "biases": False,
            "norm_bias": True,
            "mlp_bias": True,
            "branches": parallel_if(Branches.PARALLEL),
            "num_key_value_heads": own_heads("num_attention_heads"),
        },
        gated=False,
    ),
    "opt": Architecture(
        keys={
            "intermediate_size": "ffn_dim",
            "num_key_value_heads": None,
            "norm_epsilon": None,
            "activation": "activation_function",
            "max_positions": "max_position_embeddings",
        },
        defaults={
            "activation_function": "relu",
            "max_position_embeddings": 2048,
            "enable_bias": True,
            "dropout": 0.1,
            "tie_word_embeddings": True,
        },
        model={
            "norm": NormKind.LAYERNORM,
            "norm_epsilon": 1e-5,
            "biases": flag("enable_bias"),
            "norm_bias": True,
            "positions": PositionKind.LEARNED,
            "position_offset": 2,
            "num_key_value_heads": own_heads("num_attention_heads"),
        },
        gated=False,
        fixed={
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "layer_norm_elementwise_affine": (True,),
            "layerdrop": (0, 0.0),
        },
    ),
    "bloom": Architecture(
        keys={
            "num_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": None,
            "num_key_value_heads": None,
            "norm_epsilon": "layer_norm_epsilon",
            "activation": None,
        },
        defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        model={
            **_WITH_BIASES,
            "activation": ActivationKind.GELU_TANH,
            "positions": PositionKind.ALIBI,
            "embedding_norm": True,
            "intermediate_size": four_times("hidden_size"),
            "num_key_value_heads": own_heads("n_head"),
        },
        gated=False,
        other={"hidden_size": "n_embed"},
        fixed={"apply_residual_connection_post_layernorm": (False,), "slow_but_exact": (False,)},
    ),
    "cohere": Architecture(
        keys=_LN,
        defaults={**_COHERE_DEFAULTS, "rope_theta": 500_000.0},
        model={**_COHERE, "qk_norm": flag("use_qk_norm"), "qk_norm_scope": QkNormScope.OWN_HEAD},
    ),
    "cohere2": Architecture(
        keys={**_LN, "head_dim": None},
        defaults={**_COHERE_DEFAULTS, "head_dim": None, "sliding_window": 4096, "sliding_window_pattern": 4},
        model={**_COHERE, "unrotated_layers": unwindowed},
        window=all_but_every(4),
    ),
    "stablelm": Architecture(
        keys=_LN,
        other={"layer_norm_eps": "norm_eps"},  # of its first models, which bring code along
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
        model={
            "norm": NormKind.LAYERNORM,
            "norm_bias": True,
            "qkv_bias": flag("use_qkv_bias"),
            "qk_norm": flag("qk_layernorm"),
            "qk_norm_scope": QkNormScope.OWN_HEAD,
            "branches": parallel_if(Branches.PARALLEL_ONE_NORM),
        },
    ),
    "nemotron": Architecture(
        keys={"norm_epsilon": "norm_eps"},
        defaults={"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
        model={"norm": NormKind.LAYERNORM, "norm_bias": True, **_LLAMA_BIASES},
        gated=False,
    ),
    "arcee": Architecture(
        defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5},
        model=_LLAMA_BIASES,
        gated=False,
    ),
    "cwm": Architecture(
        defaults={"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": 8192},
        model={"mlp_bias": flag("mlp_bias")},
        window=lambda config: tuple(layer for layer in every_block(config) if layer % 4),
    ),
    "ernie4_5": Architecture(
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": True,
        },
        model={"biases": flag("use_bias")},
    ),
    "exaone4": Architecture(
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
        model={"norm_placement": NormPlacement.AFTER, "qk_norm": True, "unrotated_layers": unwindowed},
        window=all_but_every(4),
    ),
    "helium": Architecture(
        defaults={"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 100_000.0},
        model={**_LLAMA_BIASES, "projection_bias": False},
    ),
    "hunyuan_v1_dense": Architecture(defaults={"rms_norm_eps": 1e-5}, model=HUNYUAN, fixed=HUNYUAN_FIXED),
    "internlm3": Architecture(
        defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 2},
        model=_LLAMA_BIASES,
        other={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    ),
    "ministral": Architecture(defaults={"sliding_window": 4096, "num_key_value_heads": 8}, window=every_block),
    "seed_oss": Architecture(
        defaults={
            "attention_bias": True,
            "head_dim": 128,
            "num_key_value_heads": 8,
            "attention_dropout": 0.1,
            "residual_dropout": 0.1,
        },
        model={**_LLAMA_BIASES, "projection_bias": flag("attention_out_bias")},
    ),
    "gptj": _GPTJ_ROW,
    "codegen": _GPTJ_ROW,
    "gpt_bigcode": Architecture(
        keys=GPT2_KEYS,
        defaults={
            **_GPT2_DEFAULTS,
            "activation_function": "gelu_pytorch_tanh",
            "multi_query": True,
            "num_key_value_heads": None,
        },
        model={
            **_WITH_BIASES,
            "positions": PositionKind.LEARNED,
            "num_key_value_heads": lambda config: 1 if boolean(config, "multi_query") else integer(config, "n_head"),
        },
        gated=False,
        fixed={"scale_attn_weights": (True,)},
    ),
    "gpt_neo": Architecture(
        keys={
            "num_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "num_key_value_heads": None,
            "norm_epsilon": "layer_norm_epsilon",
            "activation": "activation_function",
            "max_positions": "max_position_embeddings",
        },
        defaults={
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "window_size": 256,
            "attention_types": [[["global", "local"], 12]],
            "tie_word_embeddings": True,
        },
        model={
            "norm": NormKind.LAYERNORM,
            "norm_bias": True,
            "projection_bias": True,
            "mlp_bias": True,
            "attention_scale": 1.0,
            "positions": PositionKind.LEARNED,
            "num_key_value_heads": own_heads("num_heads"),
            "window_tokens": lambda config: integer(config, "window_size"),
            "windowed_layers": gpt_neo_local,
        },
        gated=False,
    ),
    # Without a class in transformers; defaults of the code that such models bring along.
    "baichuan": Architecture(
        model={"positions": lambda config: rotates_if(config, "max_position_embeddings")},
        defaults={"rms_norm_eps": 1e-6},
    ),
    "exaone": Architecture(
        keys={
            "num_layers": "num_layers",
            "norm_epsilon": "layer_norm_epsilon",
            "activation": "activation_function",
        },
        defaults={"layer_norm_epsilon": 1e-5, "activation_function": "silu"},
    ),
    "internlm": _INTERNLM,
    "internlm2": _INTERNLM,
    "minicpm": Architecture(
        defaults={"scale_emb": 1, "dim_model_base": 1, "scale_depth": 1, "tie_word_embeddings": True},
        model={**_LLAMA_BIASES, **MINICPM},
    ),
    "chatglm": Architecture(
        keys={
            "intermediate_size": "ffn_hidden_size",
            "num_layers": "num_layers",
            "num_key_value_heads": None,
            "head_dim": "kv_channels",
            "vocab_size": "padded_vocab_size",
            "norm_epsilon": "layernorm_epsilon",
            "activation": None,
        },
        defaults={"layernorm_epsilon": 1e-5, "add_qkv_bias": True, "kv_channels": 128, "multi_query_attention": True},
        model={
            "activation": ActivationKind.SWIGLU,
            "qkv_bias": flag("add_qkv_bias"),
            "num_key_value_heads": lambda config: integer(
                config, "multi_query_group_num" if boolean(config, "multi_query_attention") else "num_attention_heads"
            ),
            "rotary_share": 0.5,
        },
        fixed={
            "add_bias_linear": (False,),
            "apply_residual_connection_post_layernorm": (False,),
            "post_layer_norm": (True,),
            "rmsnorm": (True,),
            "original_rope": (True,),
        },
        unused=("rope_ratio", "pre_seq_len", "prefix_projection", "quantization_bit", "bias_dropout_fusion"),
    ),
    "orion": Architecture(defaults={"rms_norm_eps": 1e-5}, model={"norm": NormKind.LAYERNORM, "norm_bias": True}),
    "qwen": Architecture(
        keys={"intermediate_size": None, "num_key_value_heads": None, "norm_epsilon": "layer_norm_epsilon"},
        defaults={"layer_norm_epsilon": 1e-6, "no_bias": True, "rotary_pct": 1.0},
        model={
            "qkv_bias": True,
            "intermediate_size": lambda config: integer(config, "intermediate_size") // 2,
            "num_key_value_heads": own_heads("num_attention_heads"),
        },
        fixed={"no_bias": (True,)},
    ),
    "Yi": Architecture(defaults={"rms_norm_eps": 1e-5}),
}
"""By `model_type`."""
