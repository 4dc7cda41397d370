import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.builders import CONFIG, config_json, read_model
from hydra.core.config_store import ConfigStore

from kareus.artifacts.records import from_plain
from kareus.errors import ConfigError
from kareus.model.features import AngleScaling
from kareus.workload.architectures import GATED_ACTIVATIONS
from kareus.workload.compose import compose
from kareus.workload.huggingface_export import huggingface_config

# Architecture fields of the files on Hugging Face; those that Kareus does not read are there to be ignored.
LLAMA_3_2_3B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 24,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN3_1_7B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL = {  # version 0.3 of Mistral 7B: no window, no head_dim, untied by default
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "vocab_size": 32768,
}


@pytest.mark.parametrize(("option", "config"), [("llama3.2-3b", LLAMA_3_2_3B), ("qwen3-1.7b", QWEN3_1_7B)])
def test_what_is_published_equals_our_option(option: str, config: dict[str, Any], tmp_path: Path) -> None:
    ours = compose([f"model={option}"], CONFIG)[0].workload.model
    theirs = read_model(config_json(tmp_path, config))
    assert dataclasses.replace(theirs, name=ours.name, layers_per_stage=ours.layers_per_stage) == ours


def test_rotary_embeddings_of_either_format_are_read(tmp_path: Path) -> None:
    scaling = {**LLAMA_3_2_3B["rope_scaling"], "rope_theta": 500000.0}
    older = {k: v for k, v in LLAMA_3_2_3B.items() if k not in ("rope_scaling", "rope_theta")}
    newer = read_model(config_json(tmp_path / "newer", {**older, "rope_parameters": scaling}))
    assert newer == dataclasses.replace(read_model(config_json(tmp_path / "older", LLAMA_3_2_3B)), name=newer.name)
    assert newer.rotary_scaling is not None
    assert newer.rotary_scaling.factor == 32


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        ({"rope_type": "yarm"}, "rope_type 'yarm': not known; perhaps you meant yarn"),
        ({"rope_type": "linear"}, "factor=None: expected a number greater than 0"),
        ({"rope_type": "llama3", "factor": "much"}, "factor='much': expected a number greater than 0"),
        ([1], r"rope_parameters=\[1\]: expected keys and values"),
    ],
)
def test_rotary_embeddings_that_cannot_be_computed_are_refused(rotary: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_model(config_json(tmp_path, {**MISTRAL, "rope_parameters": rotary}))


def test_fields_left_out_have_the_defaults_of_their_class(tmp_path: Path) -> None:
    mistral = read_model(config_json(tmp_path, MISTRAL))
    assert (mistral.head_dim, mistral.tie_embeddings, mistral.qk_norm, mistral.qkv_bias) == (128, False, False, False)
    qwen2 = read_model(
        config_json(tmp_path, MISTRAL | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4})
    )
    assert qwen2.qkv_bias
    without = {key: value for key, value in LLAMA_3_2_3B.items() if key != "num_key_value_heads"}
    assert read_model(config_json(tmp_path, without)).num_key_value_heads == 24
    narrow = {key: value for key, value in QWEN3_1_7B.items() if key != "head_dim"} | {"hidden_size": 1024}
    assert read_model(config_json(tmp_path, narrow)).head_dim == 128


GPT_NEO = {"model_type": "gpt_neo", "num_layers": 24, "num_heads": 32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "other_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
            "model_type 'other_moe': experts (num_experts=128) not supported; the nearest to plan without a job: the "
            "dense model of what a token uses, intermediate_size=6144 (8 experts of 768); with a job: profile it in "
            "place (docs/howto/inplace.md in Kareus' repository).",
        ),
        (
            {"num_local_experts": 8},
            "model_type 'mistral': experts (num_local_experts=8) not supported; the nearest to plan without a job: its "
            "dense relative in config/model (docs/howto/model.md in Kareus' repository); with a job: profile it in "
            "place (docs/howto/inplace.md in Kareus' repository).",
        ),
        (
            {"hidden_act": "quick_gelu"},
            f"hidden_act=quick_gelu: not supported; expected {', '.join(GATED_ACTIVATIONS)}.",
        ),
        (
            {"mlp_bias": True},
            "mlp_bias=True: changes the architecture and is not supported; expected false or null.",
        ),
        (
            {"attention_bias": True},
            "attention_bias=True: changes the architecture and is not supported; expected false or null.",
        ),
        (
            {"num_hidden_layers": None},
            "'num_hidden_layers' is missing; expected the config.json of a Hugging Face model.",
        ),
        ({"vocab_size": "32k"}, "vocab_size='32k': expected a whole number greater than 0."),
        (
            {"hidden_size": 4100},
            "hidden_size=4100: must be a multiple of num_attention_heads (32); else give head_dim.",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: expected a whole number greater than 0."),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5: must divide num_attention_heads (32)."),
        ({"num_attention_heads": 0}, "num_attention_heads=0: expected a whole number greater than 0."),
        ({"layer_types": 5}, "layer_types=5: expected a list."),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            "layer_types: 'linear_attention' is not supported; expected full_attention or sliding_attention.",
        ),
        (
            {"layer_types": ["full_attention"]},
            "layer_types: has 1 entries; expected one for each of num_hidden_layers.",
        ),
        ({"rope_scaling": []}, "rope_scaling=[]: expected keys and values."),
        ({"rope_scaling": -0.0}, "rope_scaling=-0.0: expected keys and values."),
        ({"rope_scaling": [1]}, "rope_scaling=[1]: expected keys and values."),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn': expected keys and values."),
        (
            {"rope_parameters": {"full_attention": 5, "sliding_attention": {}}},
            "full_attention=5: expected keys and values.",
        ),
        (
            {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor=0.5: changes the architecture; heads of this type rotate as a whole.",
        ),
        ({"head_dim": 81}, "head_dim=81: must be even, for rotary position embeddings turn pairs."),
        ({"rope_theta": 10**400}, f"rope_theta={10**400!r}: expected a number greater than 0."),
        ({"sliding_window": "4096"}, "sliding_window='4096': expected a whole number or null."),
        (
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor=0.5: changes the architecture; heads of this type rotate as a whole.",
        ),
        ({"model_type": ["llama"]}, "model_type=['llama']: expected a name, such as 'llama'."),
        ({"text_config": {"model_type": {}}}, "model_type={}: expected a name, such as 'llama'."),
        (
            {"model_type": "internlm4"},
            "model_type 'internlm4': its block is in no table; the nearest to plan without a job: model_type "
            "'internlm' or 'llama', if its block is that one (docs/howto/model.md in Kareus' repository has all "
            "types); with a job: profile it in place (docs/howto/inplace.md in Kareus' repository).",
        ),
        (
            {"model_type": "rwkv"},
            "model_type 'rwkv': blocks without attention not supported; the nearest to plan without a job: its sizes "
            "with model_type 'llama'; with a job: profile it in place (docs/howto/inplace.md in Kareus' repository).",
        ),
        (
            {"num_experts_per_tok": 2},
            "num_experts_per_tok=2: changes the architecture and is not supported; expected 0 or 0.0 or false or null.",
        ),
        (
            {"alibi": True},
            "alibi=True: changes the architecture and is not supported; expected false or null.",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures: 'LlamaForSequenceClassification' is not supported; it must end in ForCausalLM.",
        ),
        ({"layer_types": "sliding_attention"}, "layer_types='sliding_attention': expected a list."),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false': expected true or false, without quotes."),
        (
            {"model_type": "llama", "attention_bias": "false"},
            "attention_bias='false': expected true or false, without quotes.",
        ),
        ({"model_type": "llama", "mlp_bias": 1}, "mlp_bias=1: expected true or false, without quotes."),
        (
            {"model_type": "qwen2", "use_sliding_window": "no"},
            "use_sliding_window='no': expected true or false, without quotes.",
        ),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers=1099511627776: must be from 1 to 10,000 (blocks)."),
        (GPT_NEO | {"attention_types": 5}, "attention_types=5: expected a list."),
        (
            GPT_NEO | {"attention_types": [[["local"], 10**9]]},
            "attention_types: [['local'], 1000000000]: expected [[KIND, ...], TIMES].",
        ),
    ],
)
def test_an_architecture_that_cannot_be_built_gets_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = config_json(tmp_path, MISTRAL | change)
    with pytest.raises(ConfigError) as raised:
        read_model(path)
    assert str(raised.value) == f"{path}: {message}"


HARMLESS = {  # what real files of Llama 2 and 3, Mistral and Qwen 2 and 3 say besides
    "torch_dtype": "bfloat16",
    "dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "pad_token_id": None,
    "use_cache": True,
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "attention_dropout": 0.0,
    "max_window_layers": 28,
    "_attn_implementation_autoset": True,
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
    "is_encoder_decoder": False,
    "quantization_config": None,
    "unsloth_fixed": True,
}


@pytest.mark.parametrize("config", [LLAMA_3_2_3B, QWEN3_1_7B, MISTRAL])
def test_what_changes_no_architecture_is_read_over(config: dict[str, Any], tmp_path: Path) -> None:
    kept = {key: value for key, value in HARMLESS.items() if key not in config}
    layers = {"layer_types": ["full_attention"] * config["num_hidden_layers"]}
    assert read_model(config_json(tmp_path, config | kept | layers)) == read_model(config_json(tmp_path, config))


def test_what_is_no_file_of_a_reasonable_size_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "config.json"
    with large.open("wb") as file:
        file.truncate(20_000_000)
    for path in (large, Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"no configuration of a model \(not a file of at most 10,000,000 bytes"):
            read_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": ', "not valid JSON (line 1, Expecting value); download it from Hugging Face again."),
        (b"[]", "has no 'model_type'; expected the config.json of a Hugging Face model."),
        (b"{}", "has no 'model_type'; expected the config.json of a Hugging Face model."),
        (b"\xff\xfe\x00", "cannot be read (not a text file)."),
        (
            b'{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}',
            "not valid JSON (the key 'hidden_size' is there twice); keep one of them.",
        ),
        (
            b"[" * 100_000,
            "no configuration of a model (numbers too long, or lists in lists too deep); download it from Hugging Face "
            "again.",
        ),
        (
            b'{"hidden_size": ' + b"9" * 5000 + b"}",
            "no configuration of a model (numbers too long, or lists in lists too deep); download it from Hugging Face "
            "again.",
        ),
    ],
)
def test_a_corrupt_file_is_answered_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_model(path)
    assert str(raised.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "google/flan-t5-xl",
            "google/flan-t5-xl: no such file; 'model' takes an option of config/model, or the path of a Hugging Face "
            "config.json on this machine.",
        ),
        (
            "meta-llama/Llama-3.2-3B",
            "model=meta-llama/Llama-3.2-3B: no such file; perhaps you meant llama3.2-3b; else give the path of a "
            "config.json on this machine.",
        ),
    ],
)
def test_a_hugging_face_name_asks_for_an_option_or_a_local_file(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose([f"model={name}"], CONFIG)
    assert str(raised.value).replace("'", "") == said.replace("'", "")


def test_a_folder_named_like_an_option_is_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "llama3.2-3b-mine"
    config_json(folder, MISTRAL)
    (composition,) = compose([f"model={folder}"], CONFIG)
    assert composition.workload.model.name == "llama3.2-3b-mine"


def test_the_model_is_named_by_origin_then_folder_then_file(tmp_path: Path) -> None:
    folder = tmp_path / "My Llama_3"
    assert read_model(config_json(folder, MISTRAL)).name == "my-llama-3"
    assert (
        read_model(config_json(folder, MISTRAL | {"_name_or_path": "mistralai/Mistral-7B-v0.3"})).name
        == "mistral-7b-v0.3"
    )
    other = folder / "seven.json"
    other.write_text(json.dumps(MISTRAL))
    assert read_model(other).name == "seven"
    assert read_model(config_json(folder, MISTRAL | {"_name_or_path": "./"})).name == "my-llama-3"


def test_a_model_in_the_cache_of_hugging_face_is_named_by_its_repository(tmp_path: Path) -> None:
    """There a snapshot's files are links to blobs; both have hashes for names."""
    snapshot = tmp_path / "models--meta-llama--Llama-3.1-8B/snapshots/d04e592b/config.json"
    blob = config_json(tmp_path / "models--meta-llama--Llama-3.1-8B/blobs", MISTRAL).rename(
        tmp_path / "models--meta-llama--Llama-3.1-8B/blobs/0bb6fd75"
    )
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(blob)
    for path in (snapshot, snapshot.parent):
        assert read_model(path).name == "llama-3.1-8b"
    copied = config_json(tmp_path / "run", MISTRAL | {"_name_or_path": str(snapshot.parent)})
    assert read_model(copied).name == "llama-3.1-8b"


def test_files_and_options_sweep_together_and_take_overrides(tmp_path: Path) -> None:
    file = config_json(tmp_path / "tiny", MISTRAL)
    overrides = [f"model=qwen3-1.7b,{file},{file.parent}", "model.num_layers=4"]
    compositions = compose(overrides, CONFIG)
    assert [c.workload.model.name for c in compositions] == ["qwen3-1.7b", "tiny", "tiny"]
    assert {c.workload.model.num_layers for c in compositions} == {4}
    assert compositions[1].workload.model.layers_per_stage == {}  # nothing is left of the default model
    assert compositions[1].changes == {"model.num_layers": 4}


def test_a_file_leaves_no_option_behind(tmp_path: Path) -> None:
    before = set(ConfigStore.instance().repo.get("model", {}))
    compose([f"model={config_json(tmp_path, MISTRAL)}"], CONFIG)
    assert set(ConfigStore.instance().repo["model"]) == before


@pytest.mark.parametrize("name", ["llama3.2-3b", "qwen3-1.7b", "llama3.3-70b"])
def test_what_is_written_of_a_model_is_read_as_the_same_model(name, tmp_path):
    (composition,) = compose([f"model={name}"], CONFIG)
    model = dataclasses.replace(composition.workload.model, layers_per_stage={})
    for written in (model, dataclasses.replace(model, qk_norm=False, qkv_bias=True, rotary_scaling=None)):
        folder = tmp_path / name / str(written.qkv_bias)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(huggingface_config(written, 4096, "bfloat16")))
        assert dataclasses.replace(read_model(folder), name=name) == written


@pytest.mark.parametrize(
    "angles",
    [
        {"stretch": "dynamic", "stretch_factor": 2.0},
        {"stretch": "longrope", "stretch_factor": 2.0},
        {"stretch": "yarn", "stretch_factor": 4.0},
        {"stretch": "yarn", "stretch_factor": 4.0, "original_sequence_length": 4096, "score_scale": 1.5},
    ],
)
def test_angles_that_the_record_does_not_say_are_not_written(angles):
    (composition,) = compose(["model=qwen3-1.7b"], CONFIG)
    scaling = from_plain(AngleScaling, angles)
    with pytest.raises(ConfigError, match="is written of such angles; keep the one"):
        huggingface_config(dataclasses.replace(composition.workload.model, rotary_scaling=scaling), 4096, "bfloat16")


def test_a_model_that_transformers_lacks_cannot_be_written():
    (composition,) = compose(["model=qwen3-1.7b"], CONFIG)
    model = dataclasses.replace(composition.workload.model, qkv_bias=True)
    with pytest.raises(ConfigError, match="qk_norm=true and qkv_bias=true: no architecture of transformers has both"):
        huggingface_config(model, 4096, "bfloat16")
