import re
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.errors import ConfigError
from kareus.workload.overrides import UNSUPPORTED, expand

GPUS = "a100-sxm4-40gb, a100-sxm4-80gb, b200, b300, gb200, gb300, h100-96gb-hbm2e, h100-sxm5-80gb, h200"
TOP = (
    "confirmations, global_batch_size, gpu, gpus, gradient_accumulation_steps, iteration, memory_reserve_gib, "
    "microbatch_size, model, num_microbatches, parallelism, pipeline, precision, protocol, recomputation, search, "
    "seed, sequence_length, software, space, testbed, training"
)


def texts(*overrides: str) -> list[tuple[str, ...]]:
    return [tuple(setting.text for setting in combination) for combination in expand(overrides, CONFIG)]


def test_no_override_is_one_combination() -> None:
    assert texts() == [()]


def test_a_sweep_is_a_product_with_the_last_value_fastest() -> None:
    assert texts("parallelism=tp8,cp2tp4", "seed=3", "microbatch_size=8,16") == [
        ("parallelism=tp8", "seed=3", "microbatch_size=8"),
        ("parallelism=tp8", "seed=3", "microbatch_size=16"),
        ("parallelism=cp2tp4", "seed=3", "microbatch_size=8"),
        ("parallelism=cp2tp4", "seed=3", "microbatch_size=16"),
    ]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("microbatch_size=choice(8,16)", [8, 16]),
        ("microbatch_size=range(4,13,4)", [4, 8, 12]),
        ("parallelism=glob(*tp8)", ["pp10tp8", "tp8"]),
        ("parallelism=glob(*,exclude=pp*)", ["cp2tp4", "tp8"]),
        ("parallelism.layers_per_stage=[15,13],[14,14]", [[15, 13], [14, 14]]),
        ("model='models/a b/config.json',qwen3-1.7b", ["models/a b/config.json", "qwen3-1.7b"]),
        ("search.learning_rate=0.1,0.3", [0.1, 0.3]),
    ],
)
def test_every_form_of_sweep_lists_its_values(override: str, values: list[object]) -> None:
    assert [setting.value for (setting,) in expand([override], CONFIG)] == values


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tp8", "'tp8': not an override; perhaps you meant parallelism=tp8."),
        ("fast", "'fast': not an override; write key=value, such as parallelism=tp8."),
        ("~gpu", "'~gpu': not an override; write key=value, such as parallelism=tp8."),
        ("microbatch-size=4", "microbatch-size=4: unknown key; perhaps you meant microbatch_size."),
        ("nodes=4", "nodes=4: unknown key; it is gpus=N, of all nodes together, here."),
        ("tp=4", "tp=4: unknown key; perhaps you meant parallelism.tp."),
        ("model.hiden_size=4", "model.hiden_size=4: unknown key; perhaps you meant model.hidden_size."),
        ("search.tp=4", "search.tp=4: unknown key; perhaps you meant parallelism.tp."),
        ("parallelism.tensor=2", "parallelism.tensor=2: unknown key; perhaps you meant parallelism.tp."),
        ("parallelism.pipeline=2", "parallelism.pipeline=2: unknown key; perhaps you meant parallelism.pp."),
        ("tensor_parallel_size=2", "tensor_parallel_size=2: unknown key; perhaps you meant parallelism.tp."),
        (
            "parallelism.expert_model_parallel_size=2",
            "parallelism.expert_model_parallel_size=2: unknown key; perhaps you meant parallelism.ep.",
        ),
        ("qqq=4", f"qqq=4: unknown key; allowed: {TOP}."),
        ("hydra.run.dir=x", f"hydra.run.dir=x: unknown key; allowed: {TOP}."),
        (
            "model.layers_per_stage.2=1",
            "model.layers_per_stage.2=1: unknown key; perhaps you meant model.layers_per_stage.",
        ),
        ("gpu=a100-sxm4-4", f"gpu=a100-sxm4-4: unknown option; perhaps you meant a100-sxm4-40gb; allowed: {GPUS}."),
        ("gpu=b400", f"gpu=b400: unknown option; allowed: {GPUS}."),
        (
            "parallelism.foo=3",
            "parallelism.foo=3: unknown key; parallelism has: cp, dp, ep, etp, folded, fsdp, layers_per_stage, pp, "
            "sequence_parallel, sharding, shards, tp.",
        ),
        (
            "parallelism.fsdp=auto",
            "parallelism.fsdp=auto: not supported: kareus plan alone searches exchanges of weights, with auto by "
            "itself as the whole value; the nearest are the settings that it prints.",
        ),
        (
            "activation_checkpointing=true",
            "activation_checkpointing=true: unknown key; it is recomputation now: stage for true, none for false.",
        ),
        (
            "parallelism.shard_optimizer=true",
            "parallelism.shard_optimizer=true: unknown key; it is parallelism.sharding now: optimizer for true, "
            "none for false.",
        ),
        (
            "campaign=paper",
            "campaign=paper: unknown key; not a key of a workload; write kareus campaign NAME, or "
            "snakemake --config campaign=NAME.",
        ),
        ("microbatch_size=???", "microbatch_size=???: '???' means that a value is missing; replace it with a value."),
        (
            "parallelism=tp8,tp9",
            "parallelism=tp9: unknown option; allowed: cp2tp4, pp10tp8, tp8, or each degree as a key, "
            "such as parallelism.tp=4.",
        ),
        (
            "model=qwen3",
            "model=qwen3: unknown option; perhaps you meant qwen3-1.7b or qwen3-235b-a22b or qwen3-30b-a3b; "
            "allowed: deepseek-v3, gpt-oss-120b, gpt2-xl, gpt3-175b, grok-1, llama3.1-405b, llama3.1-8b, llama3.2-3b, "
            "llama3.3-70b, llama4-maverick, mixtral-8x7b, mpt-7b, nemotron4-15b, qwen3-1.7b, qwen3-235b-a22b, "
            "qwen3-30b-a3b, or the path of a Hugging Face config.json.",
        ),
        (
            "parallelism={tp:4}",
            "parallelism={tp:4}: 'parallelism' takes the name of an option (cp2tp4, pp10tp8, tp8); to change one of "
            "its keys, write parallelism.key=value.",
        ),
        (
            "pipeline=",
            "pipeline=: 'pipeline' takes the name of an option (1f1b, dualpipe-v, gpipe, interleaved, zb-h1, "
            "zb-v); to change one of its "
            "keys, write pipeline.key=value.",
        ),
        ("+seed=4", "+seed=4: no key can be added; to change one that exists, write it without '+'."),
        ("++seed=4", "++seed=4: no key can be added; to change one that exists, write it without '+'."),
        ("~gpu=h200", "~gpu=h200: 'gpu' cannot be deleted; give it another value: gpu=value."),
        ("model@x=qwen3-1.7b", "model@x=qwen3-1.7b: '@' has no meaning here; write model=option."),
        ("seed=range(8,4)", "seed=range(8,4): the sweep is empty; check its bounds."),
        (
            "seed=interval(4,8)",
            "seed=interval(4,8): an interval has no values to list; use range(start,stop,step) or a,b.",
        ),
        (
            "seed=glob(*)",
            "seed=glob(*): glob() is for groups (model, parallelism, gpu, software, testbed, protocol, space, search, "
            "pipeline); list the values: a,b.",
        ),
        ("gpu=glob(x*)", f"gpu=glob(x*): matches none; allowed: {GPUS}."),
        (
            "seed=1,",
            "'seed=1,': not a valid override (mismatched input '<EOF>'); write key=value, and quote a value with "
            "spaces or signs: \"key='a value'\".",
        ),
    ],
)
def test_an_override_that_means_nothing_is_answered_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        expand([override], CONFIG)
    assert str(raised.value) == message


def test_options_may_be_spelled_as_answers_print_them() -> None:
    ((setting,),) = expand(["gpu=H100-SXM5-80GB"], CONFIG)
    assert (setting.text, setting.value) == ("gpu=h100-sxm5-80gb", "h100-sxm5-80gb")


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        expand(["seed=1", "microbatch_size=8", "seed=2"], CONFIG)
    assert str(raised.value) == "seed=2: 'seed' is given twice; to sweep it, write its values once: seed=a,b."


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["seed=range(0,1e9)"],
            "seed=range(0,1e9): more than 10,000 values; sweep fewer at once, such as with a larger step.",
        ),
        (
            ["seed=shuffle(range(1,100000000))"],
            "seed=shuffle(range(1,100000000)): more than 10,000 values; sweep fewer at once, such as with a larger "
            "step.",
        ),
        (
            ["seed=range(0,200)", "num_microbatches=8", "microbatch_size=range(1,101)"],
            "seed=range(0,200) microbatch_size=range(1,101): 20,000 combinations; must be at most 10,000; sweep fewer "
            "values at once.",
        ),
    ],
)
def test_sweeps_of_too_many_workloads_are_refused_at_once(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        expand(overrides, CONFIG)
    assert str(raised.value) == message


@pytest.mark.parametrize("folder", ["a=b", "modèle", "a b", "a+b~c"])
def test_a_model_in_a_folder_of_any_name_is_read(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "config.json"
    ((setting,),) = expand([f"model={path}"], CONFIG)
    assert (setting.key, setting.value) == ("model", str(path))


@pytest.mark.parametrize("override", UNSUPPORTED)
def test_what_people_ask_for_in_vain_is_refused_with_what_is_nearest(override: str) -> None:
    text = override if "=" in override else f"{override}=8"
    with pytest.raises(ConfigError, match=rf"^{re.escape(text)}: not supported: .*the nearest (is|are) .*\.$"):
        expand([text], CONFIG)


def test_a_file_that_is_there_may_have_commas_and_brackets(tmp_path: Path) -> None:
    path = tmp_path / "a,b (1) [2]/config.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert [setting.value for (setting,) in expand([f"model={path}"], CONFIG)] == [str(path)]
    path.unlink()
    with pytest.raises(ConfigError):
        expand([f"model={path}"], CONFIG)


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [
        ("gem.jsn", "perhaps you meant gem.json"),
        ("gme.json", "perhaps you meant gem.json; else give the path of a config.json on this machine"),
        ("other.txt", "give the path of a config.json"),
    ],
)
def test_a_file_that_is_not_there_is_not_called_an_option(tmp_path, monkeypatch, typed, remedy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gem.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"^model={typed}: no such file; {remedy}.$"):
        expand([f"model={typed}"], CONFIG)


def test_a_folder_in_place_of_its_configuration_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    with pytest.raises(ConfigError, match="unknown option"):
        expand(["model=my-model"], CONFIG)
    (tmp_path / "my-model/config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^model=my-model: a folder; write model=my-model/config\.json\.$"):
        expand(["model=my-model"], CONFIG)
