"""Profiles of software, and GPUs as software drives them."""

import dataclasses

import pytest
from helpers.builders import CONFIG, software

from kareus.artifacts.records import added_fields
from kareus.errors import ConfigError
from kareus.gpu_model.coefficients import OF_SOFTWARE, LaunchesAhead
from kareus.gpu_model.gpu import Gpu
from kareus.software.record import OLD_ATTENTION, LossKernels, driven, is_software, of_times
from kareus.workload.compose import compose

OTHER_NAMES = {"nemo": "megatron-core"}
OPTIONS = sorted({path.stem for path in (CONFIG / "software").glob("*.yaml")} - OTHER_NAMES.keys())


def gpu(*overrides: str) -> Gpu:
    (composition,) = compose(overrides, CONFIG)
    return composition.workload.gpu


@pytest.mark.parametrize("option", OPTIONS)
def test_every_profile_has_the_name_of_its_file(option: str) -> None:
    assert software(option).name == option
    assert is_software(CONFIG / "software" / f"{option}.yaml")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_another_name_of_a_software_is_the_same(name: str) -> None:
    (same,), (other,) = (compose([f"software={one}"], CONFIG) for one in (OTHER_NAMES[name], name))
    assert other.workload == same.workload


def test_numbers_of_a_software_are_refused_by_the_name_that_a_user_writes() -> None:
    for override in ("software.host_launch_s=abc", "software.traffic=0.5"):
        with pytest.raises(ConfigError, match=r"^software\.?"):
            gpu(override)


def test_kareus_own_engine_has_nothing_between_kernels() -> None:
    profile = software("kareus")
    assert (profile.host_launch_s, profile.host_collective_s, profile.isolation_overhead) == (0, 0, 0)
    assert (profile.attention_slowdown, profile.traffic, profile.streaming_kernels) == (1, 1, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "megatron-paper"),
        (("gpu=h100-sxm5-80gb",), "megatron-core"),
        (("gpu=b200", "software=torchtitan"), "torchtitan"),
        (("testbed=cuda",), "kareus"),
        (("testbed=cuda", "software=megatron-paper"), "megatron-paper"),
    ],
)
def test_a_gpu_names_the_software_that_is_planned_for(options: tuple[str, ...], expected: str) -> None:
    (composition,) = compose(options, CONFIG)
    assert composition.workload.software.name == composition.options["software"] == expected


@pytest.mark.parametrize("option", OPTIONS)
def test_the_numbers_of_a_software_are_those_of_the_gpu_that_it_drives(option: str) -> None:
    coefficients, profile = gpu(f"software={option}").coefficients, software(option)
    assert {name: getattr(coefficients, name) for name in OF_SOFTWARE} == {
        name: getattr(profile, name) for name in OF_SOFTWARE
    }


def test_a_number_of_a_software_is_overridden_there_alone() -> None:
    assert gpu("software.traffic=2.5").coefficients.traffic == 2.5
    with pytest.raises(ConfigError, match=r"write software\.traffic="):
        gpu("gpu.coefficients.traffic=2.5")


def test_old_attention_kernels_are_slower_on_hopper_alone() -> None:
    old = software("megatron-core", hopper_attention=False)
    for name, slowdown in (("a100-sxm4-40gb", 1.0), ("h100-sxm5-80gb", OLD_ATTENTION)):
        bare = gpu(f"gpu={name}", "software=kareus")
        slow, fast = (driven(bare, profile, 1).coefficients for profile in (old, software("megatron-core")))
        ratio = slow.attention_slowdown / fast.attention_slowdown
        assert ratio == pytest.approx(slowdown)


def test_driving_a_gpu_again_changes_nothing() -> None:
    warm = gpu("gpu=h100-sxm5-80gb")
    assert warm.coefficients.warm_leakage_w > 0
    assert driven(warm, software("megatron-core"), warm.job_gpus) == warm
    cool = gpu("gpu=h100-sxm5-80gb", "software=kareus")
    assert driven(warm, software("kareus"), 1) == cool


def test_profiles_after_a_cooldown_are_those_of_the_gpu_and_software_that_were_fitted_to_them() -> None:
    assert software().launches_ahead is LaunchesAhead.STEP
    assert gpu().coefficients.warm_leakage_w == gpu().coefficients.limiter_s == 0


@pytest.mark.parametrize("option", OPTIONS)
def test_a_chip_is_as_warm_as_its_limit_makes_it_whatever_drives_it(option: str) -> None:
    named = (f"software={option}", "gpu=a100-sxm4-80gb")
    cool, warm = (gpu(*named, f"gpu.ambient_c={air_c}") for air_c in (25, 35))
    c = cool.coefficients
    assert c.reference_temperature_c == 25 + c.thermal_resistance_c_per_w * cool.power_limit_w > 50
    assert c.warm_leakage_w == pytest.approx(c.leakage_w_per_c * (c.reference_temperature_c - 50))
    assert warm.coefficients.warm_leakage_w == pytest.approx(c.warm_leakage_w + 10 * c.leakage_w_per_c)


def test_vocabularies_are_padded_as_the_software_does() -> None:
    assert software("megatron-core").padded(50257, 8) == 51200  # 128 for each of eight GPUs
    assert software("vtrain").padded(50257, 8) == 50256
    assert software("kareus").padded(50257, 8) == 50257


def test_numbers_beyond_what_makes_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="traffic"):
        dataclasses.replace(software(), traffic=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_reduction", 1.1), ("hidden_gather", -0.1), ("network_slowdown", 0.1), ("block_messages", -1.0)],
)
def test_numbers_of_a_network_have_physical_bounds(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(software("nanotron"), **{name: value})


def test_a_host_waits_for_more_ranks_only_where_a_pipeline_spans_nodes() -> None:
    bare, late = gpu("gpu=h100-sxm5-80gb"), software("nanotron", host_rank_s=1e-4)
    waits = {(gpus, pp): driven(bare, late, gpus, pp).coefficients.host_rank_s for gpus in (8, 16) for pp in (1, 2)}
    assert waits == {(8, 1): 0.0, (8, 2): 0.0, (16, 1): 0.0, (16, 2): 1e-4}


def test_a_host_that_begins_anew_with_every_collective_waits_for_no_more_ranks() -> None:
    with pytest.raises(ConfigError, match="host_rank_s"):
        dataclasses.replace(software("megatron-paper"), host_rank_s=1e-4)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option != "nanotron"])
def test_profiles_of_which_no_network_was_measured_have_the_neutral_numbers(option: str) -> None:
    plain = dataclasses.replace(software(option), loss_kernels=LossKernels.ENGINE)
    assert not added_fields(of_times(plain, experts=False))
