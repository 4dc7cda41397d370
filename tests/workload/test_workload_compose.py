import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml
from helpers.builders import CONFIG

from kareus.artifacts.cache import CACHE_VARIABLE
from kareus.calibrate.priors import ATTENTION_PRIORS
from kareus.errors import ConfigError
from kareus.evidence.kernels.stages import OF_POWER
from kareus.gpu_model.thermal import of_profiles
from kareus.graph.recomputation import Recomputation
from kareus.workload import compose as composing
from kareus.workload.compose import KIND, ComposedWorkload, _merged, compose, compose_file
from kareus.workload.config import Workload
from kareus.workload.overrides import groups

OPTIONS = sorted(path for path in CONFIG.glob("*/*.yaml") if path.parent.name in groups())

TINY = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


@cache
def workload(*overrides: str) -> Workload:
    (composition,) = compose(overrides, CONFIG)
    return composition.workload


@pytest.mark.parametrize("option", OPTIONS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_option_of_every_group_composes(option: Path) -> None:
    (composition,) = compose([f"{option.parent.name}={option.stem}"], CONFIG)
    assert composition.options[option.parent.name] == option.stem
    assert composition.changes == {}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_a_name_inside_an_option_is_that_of_its_file(option: Path) -> None:
    values = yaml.safe_load(option.read_text())
    assert values.get("name", option.stem).lower() == option.stem


def test_every_group_folder_is_a_key_of_the_workload() -> None:
    """But for campaigns, and for what extends a workload, which has a primary file of its name."""
    others = {path.stem for path in CONFIG.glob("*.yaml")} | {"campaign"}
    assert {path.name for path in CONFIG.iterdir() if path.is_dir()} - others == set(groups())


def test_the_default_is_the_first_row_of_the_paper() -> None:
    default = workload()
    assert (default.model.name, default.gpu.name) == ("llama3.2-3b", "A100-SXM4-40GB")
    assert (default.parallelism.pp, default.parallelism.tp, default.parallelism.cp) == (2, 8, 1)
    assert (default.microbatch_size, default.num_microbatches, default.sequence_length) == (8, 8, 4096)
    assert default.recomputation is Recomputation.STAGE


GPUS = ["a100-sxm4-40gb", "a100-sxm4-80gb", "b200", "h100-96gb-hbm2e", "h100-sxm5-80gb", "h200"]
OVERLAP = (
    "contention",
    "crowding",
    "crowding_exponent",
    "traffic_crowding",
    "collective_sm_w",
    "host_launch_s",
    "isolation_overhead",
    "bus_clock_share",
    "thermal_time_s",
)
"""Coefficients that single kernels do not tell."""


@pytest.mark.parametrize("gpu", GPUS)
def test_gpu_numbers_agree_with_each_other(gpu: str) -> None:
    spec = workload(f"gpu={gpu}").gpu
    flop_per_cycle = {108: 2048, 132: 4096, 148: 8192}[spec.sm_count]  # white papers: dense bf16, of one SM
    assert spec.bf16_tflops == pytest.approx(spec.sm_count * flop_per_cycle * spec.maximum_clock_mhz * 1e-6, rel=1e-3)
    assert spec.search_frequencies.clocks_mhz[-1] == spec.maximum_clock_mhz
    assert all(clock % 15 == 0 for clock in spec.search_frequencies.clocks_mhz)  # the driver's steps
    assert spec.static_power_w < spec.blocking_power_w < spec.power_limit_w


@pytest.mark.parametrize("gpu", GPUS[1:])
def test_what_kernels_do_not_tell_is_carried_over_from_one_fit_to_the_a100(gpu: str) -> None:
    """Of the fit with which their errors were measured, as the A100 80GB has it: the A100 40GB has a later one."""
    own, known = (workload(f"gpu={each}", "software=kareus").gpu.coefficients for each in (gpu, "a100-sxm4-80gb"))
    assert [getattr(own, name) for name in OVERLAP] == [getattr(known, name) for name in OVERLAP]
    assert own.gemm_step_s > 0 < own.collective_step_s


def test_the_unmeasured_gpu_carries_the_coefficients_of_its_kin() -> None:
    own, kin = (workload(f"gpu={gpu}", "software=kareus").gpu for gpu in ("h100-96gb-hbm2e", "h100-sxm5-80gb"))
    assert of_profiles(own).coefficients == of_profiles(kin).coefficients  # they settle at limits of their own
    assert (own.power_limit_w, kin.power_limit_w) == (500.0, 700.0)


OF_THE_CHIP = (OF_POWER - {"clock_power_w", "cast_waiting_share"}) | ATTENTION_PRIORS.keys()
"""Coefficients that no measurement of the H100 tells; waiting for a cast is of a host that was metered."""


def test_the_h100_has_the_energies_and_attention_of_its_chip() -> None:
    """Of an earlier fit to the H200, with which its software was fitted; the H200's is of hot chips now."""
    own, chip = (workload(f"gpu={gpu}").gpu.coefficients for gpu in ("h100-sxm5-80gb", "h200"))
    of_chip = {name: getattr(chip, name) for name in OF_THE_CHIP}
    assert {name: getattr(own, name) for name in OF_THE_CHIP} == pytest.approx(of_chip, rel=0.2)
    assert own.clock_power_w > chip.clock_power_w, "chosen on training iterations"


def test_the_default_strategy_is_informed() -> None:
    assert workload().search == workload("search=informed").search
    assert workload().search.strategy == "informed"


def test_baselines_differ_from_the_paper_in_strategy_only() -> None:
    paper, random, exhaustive = (workload(f"search={name}").search for name in ("paper", "random", "exhaustive"))
    assert dataclasses.replace(random, strategy=paper.strategy) == paper
    assert dataclasses.replace(exhaustive, strategy=paper.strategy) == paper


def test_changes_are_what_overrides_changed_and_nothing_else() -> None:
    (composition,) = compose(
        ["gpu=h200", "seed=0", "gpu.power_limit_w=500", "search=paper", "search.small.batch=8"], CONFIG
    )
    assert composition.changes == {"gpu.power_limit_w": 500.0, "search.small.batch": 8}
    assert composition.workload.gpu.power_limit_w == 500.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("microbatch_size=abc", "microbatch_size: expected int, got 'abc'."),
        ("microbatch_size=8.5", "microbatch_size: expected int, got 8.5."),
        ("microbatch_size=", "microbatch_size: expected int, got ''."),
        ("microbatch_size=null", "microbatch_size: expected int, got None."),
        ("microbatch_size=-8", "microbatch_size=-8: must be greater than 0."),
        ("recomputation=true", "recomputation: True is not known; allowed: full, none, selective, stage."),
        ("gpu.power_limit_w=inf", "gpu.power_limit_w: expected a finite number, got inf."),
        ("gpu.power_limit_w=-inf", "gpu.power_limit_w: expected a finite number, got -inf."),
        ("gpu.coefficients.contention=nan", "gpu.coefficients.contention: expected a finite number, got nan."),
        ("search.reference_margin=1e999", "search.reference_margin: expected a finite number, got inf."),
        ("parallelism.tp=0", "parallelism: tp=0: must be greater than 0."),
        ("parallelism.layers_per_stage=15", "parallelism.layers_per_stage: expected a list, got 15."),
        (
            "search.strategy=paper",
            "search: strategy=paper: has other hyperparameters than these; choose it by search=paper.",
        ),
        (
            "search=paper;search.strategy=informed",
            "search: strategy=informed: has other hyperparameters than these; choose it by search=informed.",
        ),
        ("search.enough=0", "search: enough=0.0: must be greater than 0 and at most 1."),
        ("search.strategy=papr", "search.strategy: 'papr' is not known; perhaps you meant paper."),
        ("search=paper;search.small=5", "search.small: expected keys and values, got 5."),
        ("space.sm_max=108", "space.sm_max=108: must be less than gpu.sm_count (108)."),
        (
            "testbed.default_collective_sm_count=200",
            "testbed.default_collective_sm_count=200: must be less than gpu.sm_count (108).",
        ),
        (
            "gpu.search_frequencies.maximum_mhz=2000",
            "gpu: search_frequencies.maximum_mhz=2000: must be at most maximum_clock_mhz (1410).",
        ),
        (
            "gpu.search_frequencies.maximum_mhz=1200",
            "gpu: search_frequencies=900-1200 by 30: must contain maximum_clock_mhz (1410), at which the baselines "
            "run; set maximum_mhz to 1410 and stride_mhz to a divisor of 510.",
        ),
        (
            "gpu.search_frequencies.stride_mhz=40",
            "gpu: search_frequencies=900-1410 by 40: must contain maximum_clock_mhz (1410), at which the baselines "
            "run; set maximum_mhz to 1410 and stride_mhz to a divisor of 510.",
        ),
        (
            "gpu.coefficients.hbm_efficiency=1.2",
            "gpu.coefficients: hbm_efficiency=1.2: must be greater than 0 and at most 1.",
        ),
        ("gpu.coefficients.contention=-1", "gpu.coefficients: contention=-1.0: must be 0 or more."),
        ("gpu.gpus_per_node=1000000000", "gpu: gpus_per_node=1000000000: must be from 1 to 10,000 (GPUs)."),
        ("gpu.memory_gib=1e300", "gpu: memory_gib=1e+300: must be from 0.01 to 1,000,000 (GiB)."),
        (
            "gpu.coefficients.gemm_efficiency=1e-300",
            "gpu.coefficients: gemm_efficiency=1e-300: must be from 0.001 to 1 (share).",
        ),
        (
            "gpu.search_frequencies.stride_mhz=1;gpu.search_frequencies.minimum_mhz=1",
            "gpu.search_frequencies: stride_mhz=1: gives more than 1,000 clocks from 1 to 1410 MHz; "
            "use a wider stride.",
        ),
        ("model.num_layers=200000000", "model: num_layers=200000000: must be from 1 to 10,000 (blocks)."),
        (
            "model.name=a/b",
            "model: name='a/b': must be letters, digits, '.', '_', '-', '+' and single "
            "spaces inside, begin "
            "with a letter or a digit and have at most 80 characters; give another name.",
        ),
        ("seed=99999999999999999999", "seed=99999999999999999999: must be from 0 to 9,223,372,036,854,775,807 (seed)."),
        (
            "num_microbatches=100000",
            "parallelism.pp x num_microbatches x pipeline.chunks=200,000: must be "
            "at most 100,000, "
            "the passes of microbatches through chunks for which an iteration can be planned.",
        ),
        ("pipeline.deadlines=100000", "pipeline: deadlines=100000: must be from 2 to 1,000 (plans of a frontier)."),
        ("protocol.window_s=1e9", "protocol: window_s=1000000000.0: must be from 0.001 to 1,000,000 (s)."),
        ("testbed.time_noise=1", "testbed: time_noise=1.0: must be from 0 to 0.5 (relative standard deviation)."),
        ("search.noise=1e-300", "search: noise=1e-300: must be from 1e-06 to 1 (relative standard deviation)."),
        (
            "microbatch_size=1000000;sequence_length=1000000000",
            "microbatch_size=1000000, "
            "sequence_length=1000000000: with "
            "these widths of the model a matrix product has more than 1.15292e+18 multiplications; use smaller ones.",
        ),
        ("search=paper;search.static_energy_share=-0.1", "search: static_energy_share=-0.1: must be 0 or more."),
        (
            "search=paper;search.total_energy_share=0.9",
            "search: pass shares add up to 1.3: must be at most 1; the rest is exploration.",
        ),
    ],
)
def test_a_value_of_wrong_type_or_range_gets_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(override.split(";"), CONFIG)
    assert str(raised.value) == message


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A copy of the configuration, to be spoilt."""
    return Path(shutil.copytree(CONFIG, tmp_path / "config"))


def test_an_edited_file_counts_from_the_next_time_on(edited: Path) -> None:
    before = compose(["seed=7"], edited)
    file = edited / "gpu/a100-sxm4-40gb.yaml"
    text = file.read_text()
    file.write_text(text.replace("static_power_w: 60", "static_power_w: 61"))
    (changed,) = compose(["seed=7"], edited)
    assert changed.workload.gpu.static_power_w == 61
    file.write_text(text)
    assert compose(["seed=7"], edited) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "model/qwen3-1.7b.yaml",
            "hidden_size",
            "hiden_size",
            "model.hiden_size: unknown key; perhaps you meant hidden_size.",
        ),
        ("model/qwen3-1.7b.yaml", "hidden_size: 2048\n", "", "model.hidden_size: missing; give it a value."),
        ("gpu/h200.yaml", "4800.0", "fast", "gpu.hbm_gb_per_s: expected float, got 'fast'."),
        ("config.yaml", "seed: 0", "sead: 0", "sead: unknown key; perhaps you meant seed."),
        ("config.yaml", "seed: 0", "seed: ???", "{config}: cannot be composed: Missing mandatory value: seed"),
        ("config.yaml", "- gpu: a100-sxm4-40gb", "- gpu: a100", "{config}: cannot be composed: In 'config': Could not"),
        ("config.yaml", "seed: 0", "seed: ${no}", "{config}: cannot be composed: Interpolation key 'no' not found"),
        ("model/qwen3-1.7b.yaml", "name: qwen3", "name: [qwen3", "{config}: cannot be composed: while parsing a flow"),
    ],
)
def test_a_spoilt_file_is_answered_in_one_line(edited: Path, file: str, old: str, new: str, message: str) -> None:
    path = edited / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError) as raised:
        compose(["model=qwen3-1.7b", *(["gpu=h200"] if "gpu" not in old else [])], edited)
    assert str(raised.value).startswith(message.format(config=edited))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("file", ["config.yaml", "gpu/a100-sxm4-40gb.yaml"])
def test_a_file_that_is_no_text_is_named_in_one_line(edited: Path, file: str) -> None:
    (edited / file).write_bytes(b"seed: 0 # \xb5s\n")
    with pytest.raises(ConfigError) as raised:
        compose([], edited)
    assert str(raised.value) == f"{edited / file}: not a text file; save it as UTF-8."


@pytest.mark.parametrize("name", ["campaign/quickstart", "emulation/fleet", "software/nemo"])
def test_a_file_read_by_itself_that_is_no_text_is_named_in_one_line(edited: Path, name: str) -> None:
    file = edited / f"{name}.yaml"
    file.write_bytes(b"# \xb5s\n")
    with pytest.raises(ConfigError) as raised:
        compose_file(name, edited)
    assert str(raised.value) == f"{file}: not a text file; save it as UTF-8."


@pytest.mark.parametrize("file", ["config.yaml", "gpu/a100-sxm4-40gb.yaml"])
def test_endless_brackets_get_one_line(edited: Path, file: str) -> None:
    (edited / file).write_text(f"seed: {'[' * 10_000}")
    with pytest.raises(ConfigError) as raised:
        compose([], edited)
    assert (
        str(raised.value) == f"{edited / file}: its lists are more than 100 levels deep; write the values themselves."
    )


BOMB = "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 8)
)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]\n", "a: &a {b: {c: *a}}\n"])
def test_aliases_that_stand_for_too_much_are_refused(edited: Path, text: str) -> None:
    (edited / "gpu/bomb.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        compose(["gpu=bomb"], edited)
    assert str(raised.value) == (
        f"{edited}/gpu/bomb.yaml: its aliases stand for more than 100,000 values, or for themselves; write the values "
        "themselves."
    )


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["a: " + "[" * 10_000 + "1\n", "a: # " + "]" * 10_000 + "\n " + "{b: " * 10_000])
def test_brackets_that_are_too_deep_are_refused(edited: Path, text: str) -> None:
    (edited / "gpu/deep.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"deep\.yaml: its lists are more than 100 levels deep"):
        compose(["gpu=deep"], edited)


def test_aliases_that_stand_for_little_are_read(edited: Path) -> None:
    path = edited / "gpu/a100-sxm4-40gb.yaml"
    text = path.read_text()
    path.write_text(text.replace("static_power_w: 60", "static_power_w: &p 60") + "\n# R & D\n")
    assert compose([], edited) == compose([], CONFIG)


def test_a_refusal_has_a_reason(edited: Path) -> None:
    (edited / "gpu/h200.yaml").write_text("~: 1\n")
    with pytest.raises(ConfigError, match=r"cannot be composed: \S"):
        compose(["gpu=h200"], edited)


@pytest.mark.parametrize("group", groups())
def test_a_group_without_a_default_is_named(edited: Path, group: str) -> None:
    path = edited / "config.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(f"  - {group}:")))
    with pytest.raises(ConfigError, match=f"has no option of {group} among its defaults"):
        compose([], edited)


@pytest.mark.timeout(10)
def test_a_pipe_in_the_folder_is_not_waited_for(edited: Path) -> None:
    (edited / "gpu/h200.yaml").unlink()
    os.mkfifo(edited / "gpu/h200.yaml")
    with pytest.raises(ConfigError, match=r"h200\.yaml: no regular file"):
        compose(["gpu=h200"], edited)


def test_a_folder_without_a_configuration_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        compose([], tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}: not a configuration folder (no config.yaml); pass another --config-dir, or none for the "
        "configuration that comes with Kareus."
    )


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def kept(edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which compositions are kept for other processes, empty."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / KIND


def composed_anew(folder: Path, *overrides: str) -> list[ComposedWorkload]:
    """As another process composes them."""
    _merged.cache_clear()
    return compose(overrides, folder)


@pytest.mark.parametrize("overrides", [(), ("model=llama3.3-70b", "gpu=b200", "search=random"), ("testbed=cuda",)])
def test_what_another_process_has_composed_is_the_same(
    edited: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    overrides = (*overrides, "microbatch_size=4")
    first = composed_anew(edited, *overrides)
    monkeypatch.setattr(composing, "hydra_compose", None)  # nobody asks Hydra
    assert composed_anew(edited, *overrides) == first


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{}"), halved])
def test_a_spoilt_composition_is_made_anew(edited: Path, kept: Path, spoil: Callable[[Path], object]) -> None:
    first = composed_anew(edited)
    for path in kept.iterdir():
        spoil(path)
    assert composed_anew(edited) == first


def test_a_composition_of_other_files_is_not_used(edited: Path, kept: Path) -> None:
    before = composed_anew(edited)[0].workload.microbatch_size
    primary = edited / "config.yaml"
    primary.write_text(primary.read_text().replace(f"microbatch_size: {before}", f"microbatch_size: {before + 1}"))
    assert composed_anew(edited)[0].workload.microbatch_size == before + 1


def test_a_composition_of_other_files_behind_a_link_is_not_used(edited: Path, kept: Path, tmp_path: Path) -> None:
    (edited / "gpu").rename(tmp_path / "gpus")
    (edited / "gpu").symlink_to(tmp_path / "gpus")
    (edited / "loop").symlink_to(edited)
    limit_w = composed_anew(edited, "gpu=b200")[0].workload.gpu.power_limit_w
    file = tmp_path / "gpus/b200.yaml"
    file.write_text(file.read_text().replace(f"power_limit_w: {limit_w:g}", f"power_limit_w: {limit_w - 1:g}"))
    assert composed_anew(edited, "gpu=b200")[0].workload.gpu.power_limit_w == limit_w - 1


@pytest.mark.parametrize("line", ["hydra: {searchpath: []}", "# ${oc.env:HOME}"])
def test_nothing_is_kept_of_files_that_may_read_others(edited: Path, kept: Path, line: str) -> None:
    primary = edited / "config.yaml"
    primary.write_text(f"{primary.read_text()}\n{line}\n")
    composed_anew(edited)
    assert not kept.exists()


def test_nothing_is_kept_of_a_model_that_is_in_no_folder(edited: Path, kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    composed_anew(edited, f"model={path}")
    composed_anew(edited)
    (only,) = kept.iterdir()
    path.write_text(json.dumps(TINY | {"num_hidden_layers": 6}))
    assert composed_anew(edited, f"model={path}")[0].workload.model.num_layers == 6
    assert list(kept.iterdir()) == [only]
