"""Models from Hugging Face: the `config.json` of an architecture, without the transformers library.

What a key means is in the table `kareus.workload.architectures`, by `model_type`. A key that is left out has the
default of its type. Keys that change an architecture and are none of the type's have to have a value that changes
nothing; other keys that are not read are listed for the user.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kareus.artifacts.files import read_bytes
from kareus.artifacts.names import shortened
from kareus.artifacts.records import closest, suggest, unique_keys
from kareus.errors import ConfigError
from kareus.model.config import Model, PositionKind, RotaryScaling
from kareus.model.features import AngleScaling, AngleStretch
from kareus.workload.architectures import ARCHITECTURES, GATED, LLAMA_KEYS, PLAIN, Architecture
from kareus.workload.expert_architectures import WITH_EXPERTS
from kareus.workload.huggingface_values import boolean, check_values, integer, listed, number

CAUSAL = ("ForCausalLM", "LMHeadModel", "ChatGLMModel", "ChatGLMForConditionalGeneration")
"""Ends of names of models that predict the next token."""
KNOWN: Mapping[str, Architecture] = {**ARCHITECTURES, **WITH_EXPERTS}
"""All types that are read."""
MOST_MODEL_NAME = 64
"""Characters of a model's name; a hash of the model is added to it, and to that the rest of a workload's name."""
MOST_BYTES = 10_000_000
"""Largest size of a file in bytes; those on Hugging Face have thousands."""
COMMON_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
"""Of Llama's class, and of most."""
SENSES = ("vision_config", "audio_config")
"""Keys of what is beside the language model."""
SIZES = ("hidden_size", "num_layers", "num_attention_heads")
"""Fields whose keys transformers also takes under the names of most types."""
TEXT = "text_config"
"""Key of the language model of a model with pictures or sounds."""
CLASS_SIZES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"intermediate_size": 11008, "vocab_size": 32000},
    "mistral": {"intermediate_size": 14336, "vocab_size": 32000},
    "qwen2": {"intermediate_size": 22016, "vocab_size": 151936},
    "qwen3": {"intermediate_size": 22016, "vocab_size": 151936},
}
"""Sizes of the classes of transformers, which files of models with pictures leave out of `text_config`."""
SIZES_OF_ALL: Mapping[str, Any] = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
"""Those that are the same in all of these."""
SAME_BLOCK: Mapping[str, str] = {
    **dict.fromkeys(("aquila", "skywork", "xverse"), "llama"),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"), "qwen2"),
    "ministral3": "mistral",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "stablelm_epoch": "stablelm",
}
"""Types whose blocks are those of another: forks of Llama, and the language models of models with pictures."""
OTHER_BLOCK: Mapping[str, tuple[str, str]] = {
    "apertus": ("an activation with weights (xielu)", "arcee"),
    "biogpt": ("an embedding that is scaled beside positions", "gpt2"),
    "bitnet": ("norms inside attention and the MLP", "llama"),
    "deepseek_v32": ("sparse attention (index_topk)", "deepseek_v3"),
    "diffllama": ("differential attention", "llama"),
    "glm_moe_dsa": ("sparse attention (index_topk)", "deepseek_v3"),
    "jetmoe": ("experts of attention", "granitemoe"),
    "lfm2": ("convolutions in the place of attention", "llama"),
    "minimax": ("linear attention", "minimax_m2"),
    "minimax_m1": ("linear attention", "minimax_m2"),
    "mllama_text_model": ("blocks that attend to pictures (cross_attention_layers)", "llama"),
    "nemotron-nas": ("blocks of different sizes (block_configs)", "llama"),
    "openai-gpt": ("norms after the residual addition", "gpt2"),
    "persimmon": ("norms with offsets of queries and keys", "stablelm"),
    "recurrent_gemma": ("blocks without attention", "gemma2"),
    "solar": ("additions past several blocks (bskcn)", "mistral"),
    "xglm": ("positions of fixed waves", "gpt2"),
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"), ("blocks without attention", "llama")),
}
"""Types that nothing here has: why, and the type that is nearest."""
ROTARY_BASES = ("rope_theta", "rotary_emb_base")
ROTARY_SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct")
"""Names of one thing."""
ROTARY_NEWER, ROTARY_OLDER = "rope_parameters", "rope_scaling"
BY_WINDOW = ("full_attention", "sliding_attention")
"""Values of `layer_types`, and keys of rotary embeddings that differ between blocks."""
STRETCHES: Mapping[str, AngleStretch] = {
    **{str(stretch): stretch for stretch in AngleStretch},
    "su": AngleStretch.LONGROPE,
    "ntk": AngleStretch.DYNAMIC,
}
"""Ways of stretching rotary embeddings by what files call them."""
FURTHER = ("num_nextn_predict_layers", "num_mtp_layers")
"""Blocks beside the others that predict tokens after the next, of types with experts."""
QUANTISED = "quantization_config"
DROPOUTS = (
    "activation_dropout",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "dropout",
    "emb_pdrop",
    "embd_pdrop",
    "embed_dropout",
    "embedding_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_dropout",
    "resid_pdrop",
    "residual_dropout",
)
"""Shares of values that training drops; Kareus drops none, and says so."""
HARMLESS = re.compile(
    r"""_.*|.*_token_id|.*dtype|architectures|model_type|transformers(_version|\.js_config)|use_cache|id2label|label2id
    |initializer_range|init_.*|pretraining_tp|torchscript|return_dict.*|output_.*|problem_type|task_specific_params
    |chunk_size_feed_forward|tokenizer_.*|finetuning_task|pruned_heads|max_length|min_length|do_sample|temperature|top_.*
    |summary_.*|classifier_dropout|use_bfloat16|attn_implementation|auto_map|max_position_embeddings|max_seq_len
    |seq_length|n_ctx|n_positions|num_labels|name|is_decoder|emb_init.*|learned_pos_emb|attn_config|.*_in_fp32|reorder_and_upcast_attn
    |original_max_position_embeddings|router_.*|norm_topk_prob|routed_scaling_factor|scoring_func|aux_loss_alpha|seq_aux|topk_method
    |ep_size|rope_interleave|swiglu_alpha|swiglu_limit|initial_context_length|experts_per_token|for_llm_compressor|input_jitter_noise
    |qk_head_dim|onnx|model_max_length|prefix|gradient_checkpointing|.*_fusion|is_llama_config|rope_interleaved|use_flash_attn|embedding_fraction|cache_implementation""",
    re.VERBOSE,
)
"""Keys that change nothing of what is planned: types of numbers, tokens, first values, scores of routers, making
text."""
NO: tuple[Any, ...] = (False,)
NONE: tuple[Any, ...] = (0, 0.0, False)
ONE: tuple[Any, ...] = (1, 1.0)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys that say how many experts there are, by architecture."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # experts, and heads that predict more than the next token
    **dict.fromkeys(("num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"), NONE),
    **dict.fromkeys(("shared_expert_intermediate_size", "num_nextn_predict_layers", "mtp_num_hidden_layers"), NONE),
    # other attention
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "attention_chunk_size", "num_kv_shared_layers"), NONE),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"), NONE),
    **dict.fromkeys(("alibi", "parallel_attn", "use_parallel_residual", "attn_temperature_tuning"), NO),
    **dict.fromkeys(("no_rope_layers", "no_rope_layer_interval"), ([], 0)),
    **dict.fromkeys(ROTARY_SHARES, ONE),
    # scales and biases of other types
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), ONE),
    **dict.fromkeys(("attention_bias", "mlp_bias", "lm_head_bias", "use_bias", "layer_norm_bias"), NO),
    # another model around the blocks, blocks that differ, weights of another kind
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "use_qk_norm", "qk_layernorm"), NO),
    **dict.fromkeys(("block_configs", "mlp_only_layers", "cross_attention_layers"), ([],)),
    **dict.fromkeys(("hybrid_override_pattern", "layers_block_type"), ([], "")),
    **dict.fromkeys(("quantization_config", "compression_config", "vision_config", "audio_config"), ({},)),
}
"""Values other than null that change nothing, for each key that changes the architecture, where a type lacks the key.
The keys are those of other architectures of transformers in a file of, say, the type Llama."""
SHORT = 20
"""Characters of a value that a message quotes."""
FEATURES: Mapping[str, tuple[str, ...]] = {
    "experts": EXPERTS,
    "latent attention": ("kv_lora_rank",),
    "blocks without attention": ("hybrid_override_pattern", "mamba_num_heads", "mamba_d_state", "ssm_state_size"),
    "linear attention": ("linear_num_value_heads", "linear_num_key_heads"),
    "an encoder beside the decoder": ("is_encoder_decoder",),
    "inputs of each block": ("hidden_size_per_layer_input",),
}
"""What no model of Kareus has, or only those of types whose rows say so, and the keys by which it is recognised."""


class ReadModel(NamedTuple):
    """A model that was read from a file."""

    model: Model
    notes: tuple[str, ...]
    """What was left out of the file, in one line each."""


class _File(Mapping[str, Any]):
    """The keys of a file over the defaults of its type; notes which keys are read."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.given, self.defaults = given, defaults
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.given[key] if key in self.given else self.defaults[key]

    def __contains__(self, key: object) -> bool:
        return key in self.given or key in self.defaults

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.given, *self.defaults)))

    def __len__(self) -> int:
        return len(self.given.keys() | self.defaults.keys())


def read_model(path: Path) -> Model:
    """Read the architecture from a Hugging Face `config.json`, or from the folder that holds it.

    Raises:
        ConfigError: the file is missing or corrupt, or the architecture is none that Kareus can build.
    """
    return read_architecture(path).model


def read_architecture(path: Path) -> ReadModel:
    """Read a model and what of its file was left out; otherwise as `read_model`."""
    file = path / "config.json" if path.is_dir() else path
    content = _load(file)
    try:
        return _read(_name(file, content), content)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _read(name: str, content: Mapping[str, Any]) -> ReadModel:
    content, notes = _of_language(content)
    kind = str(content.get("model_type"))
    like = SAME_BLOCK.get(kind, kind)
    if like not in KNOWN or _features(content, KNOWN[like]):
        raise ConfigError(_refusal(kind, content))
    row = KNOWN[like]
    content = _renamed(content, row)
    config = _File(content, {**COMMON_DEFAULTS, **row.defaults})
    model = _model(name, kind, config, row)
    _check_fixed(config, row)
    passed = config.read | row.defaults.keys() | {QUANTISED} | ({*FURTHER} if like in WITH_EXPERTS else set())
    check_values({key: value for key, value in content.items() if key not in passed}, NEUTRAL)
    return ReadModel(model, (*notes, *_left_out(config, row)))


def _of_language(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the keys of the language model of a file, and what is said of the rest."""
    kind, seen = content["model_type"], [key for key in SENSES if content.get(key)]
    if kind not in KNOWN and isinstance(content.get(TEXT), Mapping):
        inner = content[TEXT]
        of_text = inner.get("model_type")
        sizes = CLASS_SIZES.get(SAME_BLOCK.get(str(of_text), of_text), {})
        usual = {**SIZES_OF_ALL, **sizes} if sizes else {}
        return {**usual, **inner}, [f"{kind}: its language model alone, of the key {TEXT}"]
    if kind in SAME_BLOCK and seen:
        rest = {key: value for key, value in content.items() if key not in seen}
        return rest, [f"{kind}: its language model alone, without {', '.join(seen)}"]
    _check_class(content)
    return content, []


def _renamed(content: Mapping[str, Any], row: Architecture) -> Mapping[str, Any]:
    """Return the keys of a file by the names of its type, where it has those of most types, as transformers reads."""
    of_sizes = {key: LLAMA_KEYS[size] for size in SIZES if (key := row.keys.get(size)) is not None}
    others = {**of_sizes, **row.other}
    names = {key: other for key, other in others.items() if content.get(key) is None and content.get(other) is not None}
    rest = {key: value for key, value in content.items() if key not in names.values()}
    return {**rest, **{key: content[other] for key, other in names.items()}}


def _model(name: str, kind: str, config: _File, row: Architecture) -> Model:
    """Build the record out of the rules of a type and of the keys that it shares with others."""
    fields = {field: rule(config) if callable(rule) else rule for field, rule in row.model.items()}
    keys = {field: key for field, key in {**LLAMA_KEYS, **row.keys}.items() if key and field not in fields}
    for field in ("hidden_size", "num_layers", "num_attention_heads", "vocab_size", "max_positions"):
        if field in keys:
            fields[field] = integer(config, keys[field])
    heads = fields["num_attention_heads"]
    if "num_key_value_heads" in keys:
        shared = keys["num_key_value_heads"]
        fields["num_key_value_heads"] = heads if config.get(shared) is None else integer(config, shared)
    if "intermediate_size" in keys:
        inner = keys["intermediate_size"]
        is_wide = config.get(inner) is None and not row.gated
        fields["intermediate_size"] = 4 * fields["hidden_size"] if is_wide else integer(config, inner)
    if "norm_epsilon" in keys:
        fields["norm_epsilon"] = number(config, keys["norm_epsilon"])
    if "activation" in keys:
        fields["activation"] = _activation(config, keys["activation"], row)
    rotates = fields.get("positions", PositionKind.ROPE) is PositionKind.ROPE
    fields["head_dim"] = _head_dim(config, fields, keys.get("head_dim"), rotates=rotates)
    fields["tie_embeddings"] = boolean(config, keys["tie_embeddings"])
    fields = {"qk_norm": False, "qkv_bias": False, "rotary_base": 10_000.0, "rotary_scaling": None} | fields
    if rotates:
        fields |= _rotation(config, row, fields)
    if "window_tokens" not in fields:
        fields |= _window(config, row, fields["num_layers"])
    if fields.get("window_tokens") is None:
        fields.pop("window_rotary_base", None)
    fields = {field: value for field, value in fields.items() if not _is_usual(field, value, fields)}
    checkpoint = None if kind in ("llama", "mistral", "qwen2", "qwen3", "gpt2", "mpt") else kind
    mtp_layers = _mtp_layers(config) if kind in WITH_EXPERTS else 0
    return Model(name=name, layers_per_stage={}, checkpoint=checkpoint, mtp_layers=mtp_layers, **fields)


def _mtp_layers(config: _File) -> int:
    further = next((key for key in FURTHER if config.given.get(key) not in (None, 0)), None)
    return 0 if further is None else integer(config, further)


def _is_usual(field: str, value: Any, fields: Mapping[str, Any]) -> bool:
    """Whether null means this value of a field, so that equal models are equal."""
    if field in ("norm_bias", "projection_bias", "mlp_bias"):
        return bool(value) is bool(fields.get("biases", False))
    return field == "attention_scale" and value is not None and math.isclose(value, fields["head_dim"] ** -0.5)


def _activation(config: Mapping[str, Any], key: str, row: Architecture) -> Any:
    named, said = (GATED if row.gated else PLAIN), str(config.get(key))
    if said not in named:
        raise ConfigError(f"{key}={said}: not supported; expected {', '.join(named)}.")
    return named[said]


def _head_dim(config: Mapping[str, Any], fields: Mapping[str, Any], key: str | None, *, rotates: bool) -> int:
    hidden_size, heads = fields["hidden_size"], fields["num_attention_heads"]
    if "head_dim" in fields:
        dim = int(fields["head_dim"])
    elif key is not None and config.get(key) is not None:
        dim = integer(config, key)
    elif hidden_size % heads:
        raise ConfigError(
            f"hidden_size={hidden_size}: must be a multiple of num_attention_heads ({heads}); else give head_dim."
        )
    else:
        dim = hidden_size // heads
    if dim % 2:
        why = "for rotary position embeddings turn pairs" if rotates else "as attention's kernels want"
        raise ConfigError(f"head_dim={dim}: must be even, {why}.")
    return dim


def _rotation(config: _File, row: Architecture, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of rotary embeddings: of one mapping, or of one for each kind of block."""
    newer, older = (_keys(config, key) for key in (ROTARY_NEWER, ROTARY_OLDER))
    rotary = dict(newer or older)
    windowed: Mapping[str, Any] = {}
    if any(isinstance(rotary.get(kind), Mapping) for kind in BY_WINDOW):
        windowed = _keys(rotary, BY_WINDOW[1])
        rotary = dict(_keys(rotary, BY_WINDOW[0]) or windowed)
    outer = {key: config[key] for key in (*ROTARY_BASES, *ROTARY_SHARES) if config.get(key) is not None}
    rotary = {**outer, **rotary}
    rotation: dict[str, Any] = {
        "rotary_base": number(rotary, next((key for key in ROTARY_BASES if key in rotary), ROTARY_BASES[0]), 10_000.0),
        "rotary_scaling": _stretching(rotary, config),
    }
    share = next((key for key in ROTARY_SHARES if rotary.get(key) is not None), None)
    if share is not None and "rotary_share" not in fields:
        rotation["rotary_share"] = number(rotary, share)
        if rotation["rotary_share"] != 1 and not any(key in row.defaults for key in ROTARY_SHARES):
            raise ConfigError(
                f"{share}={rotary[share]!r}: changes the architecture; heads of this type rotate as a whole."
            )
    local = windowed.get("rope_theta", config.get("rope_local_base_freq"))
    if local is not None and local != rotation["rotary_base"]:
        rotation["window_rotary_base"] = float(local)
    return rotation


def _stretching(rotary: Mapping[str, Any], config: _File) -> RotaryScaling | AngleScaling | None:
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind in ("default", "mrope", None):  # the latter: of pictures, whose parts of a head turn by place
        return None
    if kind == "llama3":
        return RotaryScaling(
            factor=number(rotary, "factor"),
            low_frequency_factor=number(rotary, "low_freq_factor"),
            high_frequency_factor=number(rotary, "high_freq_factor"),
            original_sequence_length=integer(rotary, "original_max_position_embeddings"),
        )
    if kind not in STRETCHES:
        raise ConfigError(f"rope_type {kind!r}: not known; {suggest(str(kind), ['default', 'llama3', *STRETCHES])}.")
    stretch = STRETCHES[kind]
    if stretch is AngleStretch.YARN:
        return _yarn(rotary, config)
    needed = stretch is AngleStretch.LINEAR
    return AngleScaling(stretch=stretch, stretch_factor=number(rotary, "factor", None if needed else 1.0))


def _yarn(rotary: Mapping[str, Any], config: _File) -> AngleScaling:
    """Return YaRN as transformers has it (`modeling_rope_utils.py`); scores of latent attention grow as well."""
    rotary = {key: value for key, value in rotary.items() if value or key == "truncate"}  # 0 is what is not given
    lengths = "original_max_position_embeddings", "max_position_embeddings"
    places = (rotary, lengths[0]), (config, lengths[0]), (config, lengths[1])
    before = next((integer(place, key) for place, key in places if place.get(key)), None)
    if "factor" not in rotary and before is not None and config.get(lengths[1]):
        rotary["factor"] = integer(config, lengths[1]) / before
    factor = number(rotary, "factor", 1.0)

    def growth(of: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * of * math.log(factor) + 1

    turning, scoring = (number(rotary, key) if key in rotary else 0.0 for key in ("mscale", "mscale_all_dim"))
    usual = growth(turning) / growth(scoring) if turning and scoring else growth(1)
    return AngleScaling(
        stretch=AngleStretch.YARN,
        stretch_factor=factor,
        original_sequence_length=before,
        fast_turns=number(rotary, "beta_fast", 32.0),
        slow_turns=number(rotary, "beta_slow", 1.0),
        whole_bounds=boolean(rotary, "truncate", default=True),
        turned_scale=number(rotary, "attention_factor", usual),
        score_scale=growth(scoring) ** 2 if config.get("kv_lora_rank") and scoring else 1.0,
    )


def _window(config: _File, row: Architecture, layers: int) -> dict[str, Any]:
    """Return the fields of a window, whose size one key has, and whose blocks another one or the type has."""
    kinds = listed(config, "layer_types") if "layer_types" in config.given else []
    others = [kind for kind in kinds if kind not in BY_WINDOW]
    if others:
        raise ConfigError(f"layer_types: {others[0]!r} is not supported; expected {' or '.join(BY_WINDOW)}.")
    if kinds and len(kinds) != layers:
        raise ConfigError(f"layer_types: has {len(kinds)} entries; expected one for each of num_hidden_layers.")
    if row.window is None or ("use_sliding_window" in row.defaults and not boolean(config, "use_sliding_window")):
        return {}
    window = config.get("sliding_window")
    if window is not None and (type(window) is not int or window < 0):
        raise ConfigError(f"sliding_window={window!r}: expected a whole number or null.")
    windowed = tuple(n for n, kind in enumerate(kinds) if kind == BY_WINDOW[1]) if kinds else row.window(config)
    if not window or not windowed:
        return {}
    return {"window_tokens": window, "windowed_layers": None if len(windowed) == layers else windowed}


def _check_fixed(config: _File, row: Architecture) -> None:
    """Check the keys that have to have a value, some of them in a mapping below another key."""
    for path, allowed in row.fixed.items():
        parent, _, key = path.rpartition(".")
        check_values(_keys(config, parent) if parent else config, {key: allowed})
    projected, hidden = config.get("word_embed_proj_dim"), config.get("hidden_size")
    if projected not in (None, hidden):
        raise ConfigError(
            f"word_embed_proj_dim={projected}: embeddings that are narrower than the blocks are not supported; "
            f"expected hidden_size ({hidden})."
        )


def _check_class(content: Mapping[str, Any]) -> None:
    """Refuse models that do something else than predict the next token."""
    for name in listed(content, "architectures"):
        if not str(name).endswith(CAUSAL):
            raise ConfigError(f"architectures: {name!r} is not supported; it must end in {CAUSAL[0]}.")


def _left_out(config: _File, row: Architecture) -> Iterator[str]:
    """Say what of a file was not read, in one line for each reason."""
    dropped = [f"{key}={config[key]}" for key in DROPOUTS if config.get(key) not in (None, 0)]
    if dropped:
        yield f"planned and trained without dropout: {', '.join(dropped)}"
    if bound := config.given.get("clip_qkv") or _keys(config.given, "attn_config").get("clip_qkv"):
        yield f"planned and trained without a bound of queries, keys and values: clip_qkv={bound}"
    if quantised := config.given.get(QUANTISED):
        method = _keys(config.given, QUANTISED).get("quant_method", quantised)
        yield f"planned with weights of 16 bits, not as published: {method}"
    seen = {
        *config.read,
        *row.unused,
        *config.defaults,
        *DROPOUTS,
        *NEUTRAL,
        *FURTHER,
        QUANTISED,
        "clip_qkv",
        *ROTARY_BASES,
        ROTARY_NEWER,
        ROTARY_OLDER,
        "layer_types",
    }
    said = [key for key, value in config.given.items() if value is not None and key not in seen]
    unread = sorted(key for key in said if not HARMLESS.fullmatch(key))
    if unread:
        yield f"keys that were not read: {', '.join(unread)}"


def _features(content: Mapping[str, Any], row: Architecture) -> list[str]:
    """Return what a file asks for that models of its type do not have, each with the key that says it."""
    features = []
    for feature, keys in FEATURES.items():
        if feature.replace(" ", "_") in row.model:
            continue
        key = next((key for key in keys if content.get(key) not in (None, False, 0, 1, "", [])), None)
        if key is not None:
            value = repr(content[key])
            features.append(f"{feature} ({key}={value})" if len(value) < SHORT else f"{feature} ({key})")
    return features


def _refusal(kind: Any, content: Mapping[str, Any]) -> str:
    """Say what a model has that Kareus does not, and the nearest thing that works."""
    features = _features(content, KNOWN.get(kind, Architecture()))
    what = f"{', '.join(features)} not supported" if features else "its block is in no table"
    if kind in OTHER_BLOCK:
        why, like = OTHER_BLOCK[kind]
        return (
            f"model_type {kind!r}: {why} not supported; the nearest to plan without a job: its sizes with model_type "
            f"{like!r}; with a job: profile it in place (docs/howto/inplace.md)."
        )
    inner, used = content.get("moe_intermediate_size") or content.get("intermediate_size"), _experts_of_token(content)
    nearest = "its dense relative in config/model (docs/howto/model.md)"
    if used and type(inner) is int:
        nearest = f"the dense model of what a token uses, intermediate_size={used * inner} ({used} experts of {inner})"
    elif not features:
        close = closest(str(kind), KNOWN)
        either = f"model_type {close!r} or 'llama'" if close not in (None, "llama") else "model_type 'llama'"
        nearest = f"{either}, if its block is that one (docs/howto/model.md has all types)"
    return (
        f"model_type {kind!r}: {what}; the nearest to plan without a job: {nearest}; with a job: profile it in place "
        "(docs/howto/inplace.md)."
    )


def _experts_of_token(content: Mapping[str, Any]) -> int:
    """Return the experts that a token uses, shared ones among them; 0 where no key says it."""
    routed = content.get("num_experts_per_tok") or content.get("experts_per_token") or 0
    shared = content.get("n_shared_experts") or 0
    return routed + shared if type(routed) is type(shared) is int and routed else 0


def _keys(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping that a key has; an empty one for null."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}={value!r}: expected keys and values.")
    return value


def _load(file: Path) -> Mapping[str, Any]:
    if file.exists() and not file.is_dir() and not (file.is_file() and file.stat().st_size <= MOST_BYTES):
        raise ConfigError(f"{file}: no configuration of a model (not a file of at most {MOST_BYTES:,} bytes).")
    try:
        config = json.loads(read_bytes(file).decode(), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: no such file; 'model' takes an option of config/model, or the path of a Hugging Face config.json "
            "on this machine."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"{file}: cannot be read ({reason}).") from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file}: not valid JSON (line {error.lineno}, {error.msg}); download it from Hugging Face again."
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}; keep one of them.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or as many brackets
        raise ConfigError(
            f"{file}: no configuration of a model (numbers too long, or lists in lists too deep); download it from "
            "Hugging Face again."
        ) from error
    if not isinstance(config, Mapping) or "model_type" not in config:
        raise ConfigError(f"{file}: has no 'model_type'; expected the config.json of a Hugging Face model.")
    inner = config.get(TEXT)
    for kind in (config["model_type"], *([inner.get("model_type", "")] if isinstance(inner, Mapping) else [])):
        if not isinstance(kind, str):
            raise ConfigError(f"{file}: model_type={kind!r}: expected a name, such as 'llama'.")
    return config


def _name(file: Path, config: Mapping[str, Any]) -> str:
    """Return the name of the model: that in the file, else its repository's, else its folder's, else its file's."""
    said, place = Path(str(config.get("_name_or_path") or "")), file.resolve()
    names = (_repository(said), said.name, _repository(place))
    name = next(filter(None, names), place.parent.name if place.name == "config.json" else place.stem)
    return shortened(re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-."), MOST_MODEL_NAME) or "model"


def _repository(path: Path) -> str:
    """Return the name of the repository whose copy in the cache of Hugging Face has a path; empty for other paths.

    Example:
        >>> _repository(Path("hub/models--meta-llama--Llama-3.1-8B/snapshots/d04e592b/config.json"))
        'Llama-3.1-8B'
    """
    return next((part.split("--")[-1] for part in path.parts if part.startswith("models--")), "")
