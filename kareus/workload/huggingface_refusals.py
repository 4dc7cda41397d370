"""Keys of a Hugging Face `config.json` that Kareus does not follow: refused, or left out with a word."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kareus.artifacts.records import closest
from kareus.errors import ConfigError, described_in
from kareus.workload.architectures import Architecture
from kareus.workload.expert_architectures import ALL_ARCHITECTURES
from kareus.workload.huggingface_rotation import ROTARY_BASES, ROTARY_NEWER, ROTARY_OLDER, ROTARY_SHARES
from kareus.workload.huggingface_values import ModelFile, check_values, listed, mapping

CAUSAL = ("ForCausalLM", "LMHeadModel", "ChatGLMModel", "ChatGLMForConditionalGeneration")
"""Ends of names of models that predict the next token."""
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


def check_fixed(config: ModelFile, row: Architecture) -> None:
    """Check the keys that have to have a value, some of them in a mapping below another key."""
    for path, allowed in row.fixed.items():
        parent, _, key = path.rpartition(".")
        check_values(mapping(config, parent) if parent else config, {key: allowed})
    projected, hidden = config.get("word_embed_proj_dim"), config.get("hidden_size")
    if projected not in (None, hidden):
        raise ConfigError(
            f"word_embed_proj_dim={projected}: embeddings that are narrower than the blocks are not supported; "
            f"expected hidden_size ({hidden})."
        )


def check_class(content: Mapping[str, Any]) -> None:
    """Refuse models that do something else than predict the next token."""
    for name in listed(content, "architectures"):
        if not str(name).endswith(CAUSAL):
            raise ConfigError(f"architectures: {name!r} is not supported; it must end in {CAUSAL[0]}.")


def left_out(config: ModelFile, row: Architecture) -> Iterator[str]:
    """Say what of a file was not read, in one line for each reason."""
    dropped = [f"{key}={config[key]}" for key in DROPOUTS if config.get(key) not in (None, 0)]
    if dropped:
        yield f"planned and trained without dropout: {', '.join(dropped)}"
    if bound := config.given.get("clip_qkv") or mapping(config.given, "attn_config").get("clip_qkv"):
        yield f"planned and trained without a bound of queries, keys and values: clip_qkv={bound}"
    if quantised := config.given.get(QUANTISED):
        method = mapping(config.given, QUANTISED).get("quant_method", quantised)
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


def missing_features(content: Mapping[str, Any], row: Architecture) -> list[str]:
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


def refusal(kind: Any, content: Mapping[str, Any]) -> str:
    """Say what a model has that Kareus does not, and the nearest thing that works."""
    features = missing_features(content, ALL_ARCHITECTURES.get(kind, Architecture()))
    what = f"{', '.join(features)} not supported" if features else "its block is in no table"
    if kind in OTHER_BLOCK:
        why, like = OTHER_BLOCK[kind]
        return (
            f"model_type {kind!r}: {why} not supported; the nearest to plan without a job: its sizes with model_type "
            f"{like!r}; with a job: profile it in place ({described_in('howto/inplace.md')})."
        )
    inner, used = content.get("moe_intermediate_size") or content.get("intermediate_size"), _experts_of_token(content)
    nearest = f"its dense relative in config/model ({described_in('howto/model.md')})"
    if used and type(inner) is int:
        nearest = f"the dense model of what a token uses, intermediate_size={used * inner} ({used} experts of {inner})"
    elif not features:
        close = closest(str(kind), ALL_ARCHITECTURES)
        either = f"model_type {close!r} or 'llama'" if close not in (None, "llama") else "model_type 'llama'"
        nearest = f"{either}, if its block is that one ({described_in('howto/model.md')} has all types)"
    return (
        f"model_type {kind!r}: {what}; the nearest to plan without a job: {nearest}; with a job: profile it in place "
        f"({described_in('howto/inplace.md')})."
    )


def _experts_of_token(content: Mapping[str, Any]) -> int:
    """Return the experts that a token uses, shared ones among them; 0 where no key says it."""
    routed = content.get("num_experts_per_tok") or content.get("experts_per_token") or 0
    shared = content.get("n_shared_experts") or 0
    return routed + shared if type(routed) is type(shared) is int and routed else 0
