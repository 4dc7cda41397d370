"""Layouts as settings of trainers, and read again: where both can say them, they are the same."""

import math
import re
from functools import cache

import pytest
from helpers.builders import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.records import leaves, to_plain
from kareus.export.layouts import MODEL_FIELDS
from kareus.interchange.reading import read_training
from kareus.interchange.table import table_of, trainer_named
from kareus.interchange.writing import LAYOUT, OF_MORE, layout_line, layout_said, no_setting, written
from kareus.pipeline.config import PipelineSchedule
from kareus.workload.resolve import resolve

ENDS = {"megatron-lm": "sh", "torchtitan": "toml", "nanotron": "yaml", "axolotl": "yaml"}
SYNTAXES = {"sh": "shell", "toml": "toml", "yaml": "yaml"}
COMPUTED = "parallelism.layers_per_stage"
"""What torchtitan and nanotron compute themselves."""
SAYS = {
    "megatron-lm": {
        "parallelism.tp": [1, 2, 4],
        "parallelism.pp": [1, 2, 4],
        "parallelism.cp": [1, 2],
        "parallelism.dp": [1, 2, 8],
        "parallelism.sequence_parallel": [True, False],
        "parallelism.sharding": ["none", "optimizer", "full"],
        "pipeline.schedule": ["1f1b", "interleaved"],
        "recomputation": ["none", "selective", "full", "stage"],
        "precision": ["bf16", "fp8", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4"],
    },
    "torchtitan": {
        "parallelism.tp": [1, 2, 4],
        "parallelism.pp": [1, 2, 4],
        "parallelism.cp": [1, 2],
        "parallelism.dp": [1, 2, 8],
        "parallelism.sequence_parallel": [True, False],
        "parallelism.sharding": ["none", "full"],
        "pipeline.schedule": ["1f1b", "gpipe", "interleaved", "zb-v", "dualpipe-v"],
        "recomputation": ["none", "selective", "full"],
        "precision": ["bf16", "fp8", "mxfp8"],
    },
    "nanotron": {
        "parallelism.tp": [1, 2, 4],
        "parallelism.pp": [1, 2, 4],
        "parallelism.cp": [1, 2],
        "parallelism.dp": [1, 2, 8],
        "parallelism.sequence_parallel": [True, False],
        "parallelism.sharding": ["none", "optimizer"],
        "pipeline.schedule": ["1f1b", "gpipe"],
        "recomputation": ["none", "full"],
    },
    "axolotl": {
        "parallelism.tp": [1, 2, 4],
        "parallelism.pp": [1],
        "parallelism.cp": [1, 2],
        "parallelism.dp": [1, 2, 8],
        "parallelism.sequence_parallel": [False],
        "parallelism.sharding": ["none", "gradients", "full"],
        "recomputation": ["none", "full"],
    },
}
"""What layouts a trainer has settings for, of what Kareus has."""


MODELS = {"llama3.1-8b": 4, "gpt2-xl": 1, "nemotron4-15b": 8, "qwen3-1.7b": 2}
"""Models that differ in norms, activations, positions, biases and heads, and tensor parallelism that fits them."""


@cache
def usual(*overrides):
    """Plain values of the default workload with overrides, by dotted key, and the GPUs of a node."""
    (one,) = resolve(["gpu=b200", "gpu.memory_gib=100000", *overrides], CONFIG)
    return {**MODEL_FIELDS, **dict(leaves(to_plain(one.workload)))}


def settings_of(trainer, workload):
    syntax = SYNTAXES[ENDS[trainer]]
    return written(trainer_named(trainer), workload, 8, syntax), syntax


def keys_unsaid(own):
    return [text.partition("=")[0] for text in own.unsaid]


@st.composite
def layouts(draw, trainer):
    """Plain values of a workload whose layout the trainer has settings for."""
    chosen = {key: draw(st.sampled_from(values), label=key) for key, values in SAYS[trainer].items()}
    pp, blocks = chosen["parallelism.pp"], draw(st.integers(2, 6), label="blocks")
    chunks = 1
    if pp == 1:
        chosen.pop("pipeline.schedule", None)
    elif chosen.get("pipeline.schedule") == "interleaved":
        chunks = draw(st.sampled_from([2, 3]), label="chunks")
    elif PipelineSchedule(chosen.get("pipeline.schedule", "1f1b")).folds:
        chunks = 2
    split = [blocks * chunks] * pp
    if pp > 1 and trainer == "megatron-lm" and draw(st.booleans(), label="ends"):
        split[0], split[-1] = split[0] + (-1 if chunks > 1 else 1), split[-1] - 1  # for embedding and head
    if pp > 2 and trainer == "megatron-lm" and draw(st.booleans(), label="uneven"):
        split[draw(st.integers(1, pp - 2), label="more")] += chunks
    if chosen["recomputation"] == "stage" and (len(set(split)) > 1 or split[0] % chunks):
        chosen["recomputation"] = "full"  # uneven stages and chunks have no setting
    if chosen.get("parallelism.sharding") == "gradients" and pp > 1:
        chosen["parallelism.sharding"] = "optimizer"
    sizes = {key: draw(st.integers(1, 64), label=key) for key in ("microbatch_size", "num_microbatches")}
    sizes["sequence_length"] = draw(st.sampled_from([1024, 4096, 131072]))
    layers = {"parallelism.layers_per_stage": split, "model.num_layers": sum(split), "pipeline.chunks": chunks}
    plain_angles = {"model.rotary_scaling": None}  # which nanotron has no setting for
    usual_values = {key: value for key, value in usual().items() if not key.startswith("model.rotary_scaling")}
    return {**usual_values, **plain_angles, "pipeline.schedule": "1f1b", **chosen, **sizes, **layers}


@pytest.mark.parametrize("trainer", SAYS)
@given(data=st.data())
def test_a_layout_is_read_as_it_was_written(trainer, data):
    workload = data.draw(layouts(trainer))
    own, syntax = settings_of(trainer, workload)
    drawn_model = [text for text in own.unsaid if text.startswith("the model, ")]  # has no name there
    assert len(drawn_model) == (trainer in ("torchtitan", "axolotl"))
    assert keys_unsaid(own) in (drawn_model, [*drawn_model, COMPUTED] if trainer == "nanotron" else [])
    said = layout_said(trainer_named(trainer), own.text, syntax, workload["model.num_layers"])
    for key in LAYOUT:
        meaningless = OF_MORE.get(key) and workload[OF_MORE[key]] == 1
        if not meaningless and key != COMPUTED:
            assert said.get(key) == workload.get(key), key
    assert math.prod(said[f"parallelism.{degree}"] for degree in ("dp", "pp", "cp", "tp")) == math.prod(
        workload[f"parallelism.{degree}"] for degree in ("dp", "pp", "cp", "tp")
    )


LLAMA_3_1 = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_sequence_length": 8192}
OF_FUNCTION = (
    ({"rotary_scaling": LLAMA_3_1}, False, True),
    ({"rotary_scaling": {**LLAMA_3_1, "low_frequency_factor": 2.0}}, True, True),
    ({"rotary_scaling": {"stretch": "linear", "stretch_factor": 4.0}}, True, True),
    ({"rotary_scaling": {"stretch": "yarn", "stretch_factor": 4.0, "original_sequence_length": 4096}}, True, True),
    ({"rotary_share": 0.5}, False, True),
    ({"rotary_base": 10000.0}, False, False),
    ({"unrotated_layers": [3, 7]}, True, True),
    ({"window_tokens": 1024}, True, False),
    ({"window_tokens": 1024, "windowed_layers": [0, 2]}, True, True),
    ({"attention_softcap": 50.0}, True, True),
    ({"attention_scale": 0.1}, True, True),
    ({"attention_sinks": True}, True, True),
    ({"logit_softcap": 30.0}, True, True),
    ({"logit_scale": 0.25}, True, True),
    ({"embedding_scale": 12.0}, True, True),
    ({"embedding_norm": True}, True, True),
    ({"residual_scale": 0.5}, True, True),
    ({"qk_norm": True}, False, True),
    ({"qk_norm": True, "qk_norm_scope": "token"}, True, True),
    ({"qkv_bias": True}, False, False),
    ({"biases": True}, False, True),
    ({"mlp_bias": True}, True, True),
    ({"head_bias": True}, True, True),
    ({"norm_epsilon": 1e-6}, False, False),
    ({"norm": "layernorm", "norm_bias": True}, False, True),
    ({"norm": "layernorm"}, True, True),
    ({"norm_placement": "around"}, True, True),
    ({"branches": "parallel"}, True, True),
    ({"tie_embeddings": True}, False, False),
    ({"activation": "gelu-tanh"}, False, True),
    ({"activation": "gelu"}, True, True),
    ({"positions": "alibi"}, True, True),
    ({"head_dim": 64}, False, True),
)
"""What changes what a model computes, and whether Megatron-LM and nanotron have no setting for it."""


@pytest.mark.parametrize(("changes", "of_megatron", "of_nanotron"), OF_FUNCTION)
def test_whatever_changes_what_a_model_computes_is_written_or_named(changes, of_megatron, of_nanotron):
    """Each by itself, over a model that both can say; a trainer that has models by name alone has none for these."""
    plain = usual("model=llama3.1-8b", "parallelism.tp=1", "parallelism.pp=1", "software=megatron-core")
    plain = {key: value for key, value in plain.items() if not key.startswith("model.rotary_scaling.")}
    workload = {**plain, "model.rotary_scaling": None} | dict(leaves({"model": changes}))
    if "rotary_scaling" in changes:
        del workload["model.rotary_scaling"]
    for trainer, is_unsaid in (("megatron-lm", of_megatron), ("nanotron", of_nanotron)):
        unsaid = [key for key in keys_unsaid(settings_of(trainer, workload)[0]) if key.startswith("model.")]
        assert bool(unsaid) is is_unsaid, unsaid
        assert {key.split(".")[1] for key in unsaid} <= changes.keys() | {"norm_bias"}
    for trainer, key in (("torchtitan", "model.flavor"), ("axolotl", "base_model")):
        own, _ = settings_of(trainer, workload)
        has_name = changes == {"rotary_scaling": LLAMA_3_1}
        assert (key.rpartition(".")[2] in own.text) is has_name
        assert (f"set {key} to" in str(own.unsaid)) is not has_name


def test_angles_of_llama_are_arguments_of_megatron_and_plain_ones_are_not():
    for model, factor in (("llama3.1-8b", "8"), ("llama3.2-3b", "32"), ("qwen3-1.7b", None)):
        own, _ = settings_of("megatron-lm", usual(f"model={model}", "parallelism.tp=1", "software=megatron-core"))
        assert ("--use-rope-scaling\n" in own.text) is (factor is not None)
        assert (f"--rope-scaling-factor {factor}\n" in own.text) is (factor is not None)


WITH_EXPERTS = {
    "mixtral-8x7b": ("software.delayed_weight_gradients=true", "software.hidden_exchange=1.0", "pipeline=interleaved"),
    "deepseek-v3": (
        *("model.mtp_layers=1", "software.dispatcher=flex", "software.dispatch_sms=24"),
        *("model.experts.bias_step=0.0025", "software.loss_kernels=transformer-engine"),
    ),
}
"""Models with experts, and what else of them is said."""


@pytest.mark.parametrize("model", [*MODELS, *WITH_EXPERTS])
def test_arguments_of_megatron_give_back_the_whole_workload(model, tmp_path):
    degrees = {"tp": MODELS.get(model, 1), "pp": 2, "dp": 2, "sharding": "optimizer"}
    degrees |= {"ep": 2, "tp": 2, "sequence_parallel": "true"} if model in WITH_EXPERTS else {}
    layout = [f"parallelism.{key}={value}" for key, value in degrees.items()]
    words = [f"model={model}", "software=megatron-core", "sequence_length=1024", "recomputation=selective", *layout]
    words += WITH_EXPERTS.get(model, ())
    own, _ = settings_of("megatron-lm", usual(*words))
    path = tmp_path / "train.sh"
    path.write_text(f"{own.text}torchrun ${{DISTRIBUTED_ARGS[@]}} pretrain_gpt.py ${{LAYOUT_ARGS[@]}}\n")
    again = usual(*read_training([path]).overrides)
    first = usual(*words)
    same = [key for key in first if key in LAYOUT or key.startswith(("model.", "software."))]
    unsaid = keys_unsaid(own)
    assert (
        {key.rpartition(".")[0] for key in unsaid} <= {"model.rotary_scaling"} if model == "deepseek-v3" else not unsaid
    )
    free = ("model.name", "model.checkpoint", "model.layers_per_stage", *unsaid)  # names and other splits
    same = [key for key in same if not key.startswith(free)]
    assert {key: again.get(key) for key in same} == {key: first[key] for key in same}


@pytest.mark.parametrize(("model", "more"), WITH_EXPERTS.items())
def test_one_line_of_arguments_says_how_tokens_are_exchanged(model, more):
    """In the words of the exported arguments: without them Megatron-LM shards experts and exchanges in its own way."""
    layout = {"tp": 2, "ep": 2, "pp": 2, "dp": 2, "sharding": "optimizer", "sequence_parallel": "true"}
    words = [f"model={model}", *(f"parallelism.{key}={value}" for key, value in layout.items()), *more]
    workload = usual("software=megatron-core", "recomputation=none", *words)
    line = layout_line(trainer_named("megatron-lm"), workload, 8)
    expected = {
        "mixtral-8x7b": ("dispatcher-type alltoall", "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"),
        "deepseek-v3": ("--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-num-sms 24"),
    }
    for said in (*expected[model], "--expert-tensor-parallel-size 1"):
        assert said in line
    exported = settings_of("megatron-lm", workload)[0].text.split()
    assert set(line.split()) <= set(exported)


def test_one_line_of_arguments_has_every_dropout_that_the_file_has():
    """Megatron-LM's are 0.1 where nothing is said."""
    workload = usual("model=llama3.1-8b", "software=megatron-core", "parallelism.tp=1")
    for said in (layout_line(trainer_named("megatron-lm"), workload, 8), settings_of("megatron-lm", workload)[0].text):
        assert {"--hidden-dropout 0", "--attention-dropout 0"} <= set(re.findall(r"--\w+-dropout 0", said))
    assert "dtype" not in layout_line(trainer_named("nanotron"), workload, 8)


@pytest.mark.parametrize(
    ("option", "trainer", "said"),
    [
        ("training.gradients=bf16", "megatron-lm", "--grad-reduce-in-bf16"),
        ("precision=fp8", "megatron-lm", "--fp8-format hybrid"),
        ("training.offload_optimizer=0.5", "megatron-lm", "--optimizer-offload-fraction 0.5"),
        ("training.recompute_blocks=1", "megatron-lm", "--recompute-num-layers 1"),
        ("training.gradients=bf16", "nanotron", "optimizer.accumulate_grad_in_fp32=false"),
        ("precision=fp8", "torchtitan", 'model.converters="float8"'),
    ],
)
def test_one_line_of_settings_has_each_option_that_the_file_has(option, trainer, said):
    """Memory and error count on them."""
    words = ("model=llama3.2-3b", "parallelism.tp=2", "parallelism.dp=2", "recomputation=full")
    lines, files = [], []
    for more in ((), (option,)):
        workload = usual(*words, *more)
        lines.append(layout_line(trainer_named(trainer), workload, 8))
        files.append({line.strip().rpartition(".")[2] for line in settings_of(trainer, workload)[0].text.splitlines()})
    assert said in lines[1]
    for added in files[1] - files[0]:
        name, _, value = re.sub("[=:]", " ", added).partition(" ")
        assert added[0] == "[" or (name.lstrip("-") in lines[1] and value.strip() in lines[1]), added


def test_one_line_of_settings_says_where_the_modules_of_stages_are():
    """torchtitan splits blocks by a rule of its own where the modules of its stages are not named."""
    uneven = ("model=llama3.2-3b", "parallelism.pp=2", "parallelism.layers_per_stage=[15,13]", "parallelism.tp=1")
    workload, key = usual(*uneven, "software=torchtitan"), "parallelism.module_fqns_per_model_part"
    assert f"\n{key.partition('.')[2]} = [" in settings_of("torchtitan", workload)[0].text
    assert layout_line(trainer_named("torchtitan"), workload, 8).endswith(f", {key}: see the exported file")
    whole = usual("model=llama3.2-3b", "parallelism.pp=1", "parallelism.tp=1", "software=torchtitan")
    assert key not in layout_line(trainer_named("torchtitan"), whole, 8)
    assert "exported file" not in layout_line(trainer_named("megatron-lm"), workload, 8)


def test_one_line_of_settings_has_the_length_of_sequences():
    """Megatron-LM has no default of it, and refuses more tokens than positions."""
    workload = usual("model=llama3.1-8b", "software=megatron-core", "sequence_length=8192")
    said = layout_line(trainer_named("megatron-lm"), workload, 8).split(" --")
    assert {"seq-length 8192", "max-position-embeddings 8192"} <= set(said)
    for trainer, setting in (("torchtitan", "training.seq_len"), ("nanotron", "tokens.sequence_length")):
        assert f"{setting}=8192" in layout_line(trainer_named(trainer), workload, 8).split(", ")


@pytest.mark.parametrize("software", ["torchtitan", "torchtitan-eager"])
def test_files_of_torchtitan_say_whether_it_compiles(software, tmp_path):
    workload = usual("parallelism.sharding=full", "parallelism.pp=1", "parallelism.dp=2", f"software={software}")
    path = tmp_path / "job.toml"
    path.write_text(settings_of("torchtitan", workload)[0].text)
    assert f"software={software}" in read_training([path]).overrides


def test_arguments_of_megatron_are_none_that_it_refuses_or_that_slow_experts_down():
    """It overlaps only with sequence parallelism, which it has from two GPUs on; products of experts are grouped."""
    words = ("model=mixtral-8x7b", "software=megatron-core", "parallelism.ep=2", "parallelism.dp=2")
    for tp, overlaps in ((1, False), (2, True)):
        layout = (f"parallelism.tp={tp}", "parallelism.sequence_parallel=true", "parallelism.sharding=optimizer")
        own, _ = settings_of("megatron-lm", usual(*words, *layout))
        assert ("--tp-comm-overlap\n" in own.text) is overlaps
        assert "--moe-grouped-gemm\n" in own.text


def test_arguments_of_megatron_move_the_bias_of_a_router_only_where_updates_do():
    words = ("model=deepseek-v3", "software=megatron-core", "parallelism.pp=2", "parallelism.tp=1")
    for step, is_said in (("0.001", True), ("0", False)):
        text = settings_of("megatron-lm", usual(*words, f"model.experts.bias_step={step}"))[0].text
        flags = ("--moe-router-enable-expert-bias\n", "--moe-router-bias-update-rate 0.001\n")
        assert [flag in text for flag in flags] == [is_said, is_said]


def test_what_a_trainer_has_no_setting_for_is_named():
    workload = usual("parallelism.pp=4", "parallelism.tp=2", "pipeline=zb-h1", "parallelism.dp=2")
    for trainer, expected in {"nanotron": "1f1b", "torchtitan": "1f1b", "megatron-lm": "1f1b"}.items():
        own, _ = settings_of(trainer, workload)
        assert f"pipeline.schedule=zb-h1 (read as {expected})" in own.unsaid


def test_what_is_nearest_is_written_where_there_is_no_setting():
    workload = {**usual("parallelism.pp=1", "parallelism.tp=2"), "recomputation": "selective"}
    own, _ = settings_of("nanotron", workload)
    assert "recompute_layer: true" in own.text  # it needs no more memory
    assert "recomputation=selective (read as full)" in own.unsaid


def test_arguments_of_megatron_have_what_it_asks_for_of_every_model():
    """Also positions that rotate, and as many as a sequence has."""
    for model, tokens, positions in (("llama3.1-8b", 2048, 2048), ("gpt2-xl", 512, 1024)):
        own, _ = settings_of("megatron-lm", usual(f"model={model}", f"sequence_length={tokens}", "parallelism.tp=1"))
        assert f"--max-position-embeddings {positions}\n" in own.text


def test_megatron_starts_with_the_settings_of_its_fsdp():
    """`validate_args` refuses Megatron-FSDP with another optimizer or format of checkpoints."""
    workload = usual("parallelism.tp=1", "parallelism.pp=1", "parallelism.dp=8", "parallelism.sharding=full")
    for said in (layout_line(trainer_named("megatron-lm"), workload, 8), settings_of("megatron-lm", workload)[0].text):
        for flag in ("--use-megatron-fsdp", "--use-distributed-optimizer", "--ckpt-format fsdp_dtensor"):
            assert flag in said


def test_what_the_fsdp_of_megatron_needs_of_variables_is_said():
    """`validate_args` refuses it where `CUDA_DEVICE_MAX_CONNECTIONS` is 1, as scripts of tensor parallelism set it."""
    layout = ("parallelism.tp=1", "parallelism.pp=1", "parallelism.dp=8")
    for sharding, said in (("full", ("CUDA_DEVICE_MAX_CONNECTIONS: unset",)), ("optimizer", ())):
        workload = usual(*layout, f"parallelism.sharding={sharding}")
        assert settings_of("megatron-lm", workload)[0].environment == said
        assert layout_line(trainer_named("megatron-lm"), workload, 8).partition("; ")[2] == "; ".join(said)


@pytest.mark.parametrize(
    ("software", "layout", "unset"),
    [
        ("megatron-core", ["pipeline=zb-h1", "parallelism.pp=2"], ("pipeline.schedule=zb-h1",)),
        ("megatron-core", ["pipeline=interleaved", "parallelism.pp=2", "parallelism.sharding=optimizer"], ()),
        ("nanotron", ["parallelism.sharding=full", "parallelism.dp=2"], ("parallelism.sharding=full",)),
        ("nanotron", ["recomputation=selective"], ("recomputation=selective",)),
        ("torchtitan-eager", ["parallelism.sharding=full", "parallelism.dp=2", "precision=fp8"], ()),
        ("llm-foundry", ["parallelism.pp=2", "parallelism.dp=2"], ("parallelism.pp=2",)),
        ("kareus", ["pipeline=zb-h1", "parallelism.pp=2"], ()),
    ],
)
def test_software_has_settings_for_what_its_trainer_can_do(software, layout, unset):
    one = ["parallelism.tp=1", "parallelism.pp=1", "recomputation=none", f"software={software}"]
    keys = {text.partition("=")[0]: text for text in [*one, *layout]}
    assert no_setting(software, usual(*keys.values()), 8) == unset


def test_a_profile_belongs_to_the_trainer_that_it_is_of():
    of = {"megatron-core": "megatron-lm", "nemo": "nemo", "torchtitan": "torchtitan", "torchtitan-eager": "torchtitan"}
    for software, trainer in of.items():
        table = table_of(software)
        assert table is not None
        assert table.name == trainer
    assert table_of("kareus") is None


def test_a_model_without_a_name_on_the_hub_is_asked_for():
    own = resolve(["gpu=h200", "model=nemotron4-15b", "gpu.memory_gib=1000"], CONFIG)[0].workload
    text = written(trainer_named("axolotl"), {**MODEL_FIELDS, **dict(leaves(to_plain(own)))}, 8, "yaml")
    assert "base_model" not in text.text
    assert any("set base_model" in line for line in text.unsaid)
    named = resolve(["gpu=h200", "model=llama3.1-8b"], CONFIG)[0].workload
    text = written(trainer_named("axolotl"), {**MODEL_FIELDS, **dict(leaves(to_plain(named)))}, 8, "yaml")
    assert "base_model: meta-llama/Llama-3.1-8B" in text.text


OPTIONS = {
    "megatron-lm": (
        ["training.gradients=bf16", "training.master_weights=remainder", "training.moments=bf16"],
        ["training.recompute_modules=[mlp]", "training.offload_optimizer=0.5", "training.offload_blocks=2"],
        ["recomputation=full", "training.recompute_blocks=3", "training.batch_ramp=[16,16,10000]"],
    ),
    "torchtitan": (["recomputation=full", "training.recompute_every=2", "training.loss_chunks=4"],),
    "axolotl": (
        ["training.lora_rank=16", "training.lora_targets=[q_proj,v_proj]", "training.frozen_weights=nf4"],
        ["training.moments=8bit"],
    ),
    "nanotron": (["training.gradients=bf16"],),
}


@pytest.mark.parametrize(("trainer", "options"), [(name, own) for name, sets in OPTIONS.items() for own in sets])
def test_options_of_a_training_come_back(trainer, options):
    kind = [] if any(text.startswith("recomputation=") for text in options) else ["recomputation=none"]
    words = ["gpu=h200", "parallelism.tp=1", "parallelism.pp=1", "microbatch_size=2", *kind, *options]
    own = resolve(words, CONFIG)[0].workload
    table = trainer_named(trainer)
    plain = {**MODEL_FIELDS, **dict(leaves(to_plain(own)))}
    text = written(table, plain, 8, SYNTAXES[ENDS[trainer]])
    assert not [line for line in text.unsaid if line.startswith(("training.", "recomputation"))]
