"""Questions to the adviser: that values are read, and that bad ones are answered in one line with what is nearest."""

import re

import pytest
from helpers.builders import CONFIG

from kareus.adviser.advice import answer
from kareus.adviser.goals import DURATIONS, POWERS, Goals, Least, goals_of, quantity
from kareus.adviser.lines import format_lines
from kareus.adviser.plain import plain
from kareus.adviser.question import ask, gpu_counts, split_overrides
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.graph.recomputation import Recomputation

SMALL = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "tp=1", "cp=1", "pp=1", "microbatch_size=1", "recompute=none")


def asked(*overrides, gpus=2, global_batch=8, **goals):
    return ask(
        [*SMALL[:2], *(overrides or SMALL[2:])],
        gpus=gpus,
        global_batch=global_batch,
        sequence_length=1024,
        goals=goals_of(**goals),
        config_dir=CONFIG,
    )


def test_constraints_are_told_from_overrides():
    constraints, others = split_overrides(["model=x", "tp=8", "parallelism.pp=2,4", "recompute=none", "seed=3"])
    assert (constraints.tp, constraints.pp) == ((8,), (2, 4))
    assert constraints.recomputation == (Recomputation.NONE,)
    assert others == ["model=x", "seed=3"]


def test_ranges_of_gpus_are_doublings():
    assert gpu_counts("16..256") == (16, 32, 64, 128, 256)
    assert gpu_counts("16..48") == (16, 32, 48)
    assert gpu_counts("64,8") == (8, 64)
    assert gpu_counts(64) == (64,)


def test_quantities_have_units():
    assert quantity("--deadline", "30d", DURATIONS, 1e10) == 30 * 86400
    assert quantity("--max-power", "35 kW", POWERS, 1e12) == 35_000


def test_what_is_least_follows_from_what_is_given():
    assert Goals().minimised is Least.TIME
    assert goals_of(tokens=1e9, deadline="30d").minimised is Least.ENERGY
    assert goals_of(price_of_energy="0.12perkWh").minimised is Least.COST


@pytest.mark.parametrize(
    ("overrides", "values", "message"),
    [
        ((), {"gpus": 0}, "must be from 1 to"),
        ((), {"gpus": "16..8"}, "a range goes from its least"),
        ((), {"gpus": "many"}, "write a number"),
        ((), {"global_batch": 0}, "--global-batch 0"),
        ((), {"global_batch": 7, "gpus": 1009}, "the nearest that does is 1009"),
        ((), {"global_batch": 300, "gpus": 194}, "the nearest that does is 291"),  # 97 replicas on two GPUs each
        (("tp=3",), {"gpus": 8}, "tp=3: no layout of 8 GPUs has that; allowed: 1,2,4,8."),
        (("tp=8", "dp=8"), {"gpus": 8}, "no layout of 8 GPUs keeps the constraints; one that lacks them is"),
        (("shards=7",), {"gpus": 8}, "no layout of 8 GPUs keeps the constraints; one that lacks them is"),
        (("recompute=none",), {"gpus": 33, "global_batch": 512}, "; 33 GPUs do not fill nodes of 8; try 32 or 40"),
        (("tp=3",), {"gpus": 33, "global_batch": 512}, "; the first: parallelism.tp=3: must fit a node of 8"),
        (("tpp=8",), {}, "perhaps you meant tp="),
        (("recompute=nne",), {}, "perhaps you meant none"),
        (("tp=a",), {}, "'a' is no value of tp"),
        (("num_microbatches=8",), {}, "follows from --global-batch"),
        (("tp=1", "tp=2"), {}, "given twice"),
        ((), {"max_power": "35kw"}, "perhaps you meant 35kW"),
        ((), {"max_power": "35"}, "has no unit"),
        ((), {"max_power": "100W"}, "--max-power 100 W: 2 GPUs draw"),
        ((), {"max_power": "300W"}, "the least power of a plan"),
        ((), {"max_gpu_power": "70W"}, "must be more than"),
        ((), {"max_gpu_power": "90W"}, r"gpu.power_limit_w=90: H100-SXM5-80GB draws 98 W waiting at its lowest clock"),
        ((), {"max_power": "50W"}, "draw 147 W even while they wait; allow more\\.$"),
        ((), {"max_node_power": "100W"}, "the 2 GPUs of a node"),
        ((), {"gpus": "0..8"}, "such as 1..8"),
        ((), {"deadline": "30d"}, "give its --tokens"),
        (
            (),
            {"deadline": "1s", "tokens": 1e12},
            r"no plan keeps the limits \(--deadline 1 s\): .* days in all; allow more time,",
        ),
        ((), {"price_of_energy": "0.12"}, "write 0.12perkWh or 120perMWh, or a CSV file with the columns hour,price"),
        ((), {"price_of_energy": "0.12EUR"}, "write 0.12EURperkWh or 120EURperMWh, or a CSV file"),
        ((), {"gpu_price": "2.5EUR"}, r"write 2\.5EURperGPUh\.$"),
        ((), {"price_of_energy": "52.3perkWh"}, "a price_per_kwh of 52.3 is not plausible"),
        ((), {"carbon": "400"}, "write 400gperkWh or 400kgperMWh"),
        ((), {"carbon": "400000gperkWh"}, "a carbon_g_per_kwh of 400,000 is not plausible"),
        ((), {"gpu_price": "2.5perkWh"}, "write 2.5perGPUh"),
        ((), {"least": "cost"}, "needs prices"),
    ],
)
def test_bad_input_is_answered_in_one_line(overrides, values, message):
    sizes = {name: values.pop(name) for name in ("gpus", "global_batch") if name in values}
    with pytest.raises(ConfigError, match=message) as refused:
        answer(asked(*overrides, **sizes, **values))
    assert "\n" not in str(refused.value)


def test_nothing_fits_names_what_is_nearest():
    question = ask(
        ["model=llama3.3-70b", "gpu=a100-sxm4-40gb"], gpus=8, global_batch=8, sequence_length=4096, config_dir=CONFIG
    )
    nearest = r"none of [0-9,]+ layouts can run .*; the nearest needs ([0-9.]+) of 39.4 GiB; give more GPUs"
    with pytest.raises(ConfigError, match=nearest) as refused:
        answer(question)
    assert len(str(refused.value)) < 250, "what and where, in short"
    needed = re.search(nearest, str(refused.value))[1]
    why, head, *ways_out = refused.value.__notes__
    assert re.fullmatch(
        rf"nearest: .*: stage \d+ \(ranks .*\) needs {needed} of 39.4 GiB: optimizer states [0-9.]+, .*", why
    )
    assert head.startswith("cheapest changes that make it fit, ")
    assert len(ways_out) > 1, "each by itself"
    assert all(re.search(r"^  \w+\S*=.* GiB.*, time .* %, energy .* %", line) for line in ways_out)
    assert any(line.endswith(" GPUs instead of 8") for line in ways_out)


def test_ways_out_are_printed_one_a_line(capsys):
    given = ["model=llama3.3-70b", "gpu=a100-sxm4-40gb", "tp=8", "pp=1", "cp=1", "microbatch_size=1", "recompute=full"]
    assert main(["advise", *given, "--gpus", "8", "--global-batch", "8"]) == 2
    _, _, said = capsys.readouterr().err.partition("kareus advise: ")
    first, nearest, head, *ways_out = said.splitlines()
    assert first.endswith("give more GPUs or fewer constraints.")
    assert nearest.startswith("  nearest: tp 8, ")
    assert head.startswith("  cheapest changes that ")
    assert ways_out and all(line.startswith("    ") and " GiB" in line for line in ways_out)


def test_the_fullest_node_keeps_its_cap():
    goals = goals_of(max_node_power="4kW")
    assert goals.cap_w(4, 8) == 4_000
    assert goals.cap_w(12, 8) == 6_000  # 500 W for each GPU of the node that has eight
    assert goals.cap_w(16, 8) == 8_000


def test_prices_and_intensities_of_a_megawatt_hour_are_understood():
    goals = goals_of(price_of_energy="120perMWh", carbon="400kgperMWh")
    assert goals.money(3600, 3.6e6, 8) == pytest.approx(0.12)
    assert goals.carbon_kg(3600, 3.6e6) == pytest.approx(0.4)


def test_series_count_a_begun_hour_in_part(tmp_path):
    series = tmp_path / "price.csv"
    series.write_text("hour,price_per_kwh\n0,1.0\n1,4.0\n")
    goals = goals_of(price_of_energy=str(series))
    assert goals.money(1.5 * 3600, 3.6e6, 8) == pytest.approx((1.0 + 0.5 * 4.0) / 1.5)
    assert goals.money(5 * 3600, 3.6e6, 8) == pytest.approx((2 * 5.0 + 1.0) / 5)
    assert goals.money(60, 3.6e6, 8) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("precision=fp8", ()),
        ("precision=bf16,fp8", ("bf16", "fp8")),
        ("precision=[fp8,bf16]", ("fp8", "bf16")),
        ("precision=all", ("bf16", "fp8", "fp8-current", "fp8-blockwise")),
    ],
)
def test_formats_are_compared_where_several_are_named(text, formats):
    question = asked(*SMALL[2:], text)
    assert question.precisions == formats
    assert question.base.precision == (formats or ("fp8",))[0]


@pytest.mark.parametrize("text", ["precision=bf16,fp9", "precision=bf16,fp8 precision=fp8"])
def test_formats_that_cannot_be_are_answered_in_one_line(text):
    with pytest.raises(ConfigError, match="precision"):
        asked(*SMALL[2:], *text.split())


def test_formats_are_compared_each_in_its_best_layout():
    advice = answer(asked(*SMALL[2:], "precision=bf16,fp8,nvfp4"))
    alone = answer(asked(*SMALL[2:], "precision=fp8"))
    wide, narrow, none = advice.formats
    assert wide.choice == advice.chosen
    assert narrow.choice.cost == alone.chosen.cost
    assert narrow.choice.layout.candidate.layout == alone.chosen.layout.candidate.layout
    assert none.choice is None
    assert "no fp4 tensor cores" in none.refusal
    lines = list(format_lines(advice))
    assert [line.split()[0] for line in lines[3:]] == ["bf16", "fp8", "nvfp4"]
    assert [line.split()[6] for line in lines[3:5]] == ["iterations", "iterations"]
    said = plain(advice)["formats"]
    assert [one["precision"] for one in said] == ["bf16", "fp8", "nvfp4"]
    assert said[1]["time_s"] == alone.chosen.cost.time_s
    assert said[1]["joules_per_token"] == pytest.approx(alone.chosen.cost.energy_j / (8 * 1024))
