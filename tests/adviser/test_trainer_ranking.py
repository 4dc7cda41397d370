"""Advice for what a trainer can run of a plan: its ranking, its figures, and the commands that work in it."""

import itertools
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.advice import answer
from kareus.adviser.answers import LayoutChoice
from kareus.adviser.beside import frugal_lines
from kareus.adviser.choosing import telling_constraints
from kareus.adviser.lines import answer_lines, commands, headline, layout_settings, turn_on_lines, unset_line
from kareus.adviser.order import settable_instead, without_setting
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.question import ask
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.pareto import as_fast_s
from kareus.pipeline.config import PipelineSchedule
from kareus.software.trainers import trainers
from kareus.workload.compose import compose
from kareus.workload.resolve import checked_but_for_memory

TESTS = Path(__file__).parents[1]
FEW = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "tp=2", "cp=1", "pp=1,2", "microbatch_size=2", "recompute=none")


def advised(trainer, *overrides):
    question = ask(
        [*FEW, *overrides], gpus=4, global_batch=16, sequence_length=2048, config_dir=CONFIG, trainer=trainer
    )
    return answer(question)


@pytest.fixture(scope="module")
def by_trainer():
    return {name: advised(name) for name in ("kareus", "megatron-core", "hugging-face", "nanotron")}


def test_a_trainer_is_promised_no_more_than_it_can_run(by_trainer):
    """The engine runs all that Megatron-Core runs, and that runs all that one clock for a step gives.

    Frontiers are plans for a few deadlines: between two of them there are others, on their chord or below.
    """
    for less, more in (("megatron-core", "kareus"), ("nanotron", "megatron-core")):
        costs = sorted((p.cost.time_s, p.cost.energy_j) for p in by_trainer[more].size.frontier)
        for plan in by_trainer[less].size.frontier:
            within_s = plan.cost.time_s * 1.002
            assert costs[0][0] <= within_s
            assert np.interp(within_s, *zip(*costs, strict=True)) <= plan.cost.energy_j * 1.005


def test_without_overlap_nothing_is_faster_than_the_software_by_itself(by_trainer):
    for name in ("megatron-core", "hugging-face", "nanotron"):
        advice = by_trainer[name]
        assert advice.chosen.cost.time_s >= 0.99 * advice.size.baseline.cost.time_s  # the power limit may save a little


def test_one_clock_for_a_step_is_the_price_of_each_clock(by_trainer):
    advice = by_trainer["nanotron"]
    workload = advice.chosen.layout.candidate.workload
    fixed = replace(
        workload,
        gpu=replace(workload.gpu, search_frequencies=replace(workload.gpu.search_frequencies, minimum_mhz=1980)),
    )
    (cost, _) = LayoutPredictor(fixed, InstructionPrices(fixed)).sequential(fixed)
    assert (
        any(
            plan.time_s == pytest.approx(cost.time_s) and plan.energy_j == pytest.approx(cost.energy_j)
            for plan in advice.chosen.layout.plans
        )
        or cost.time_s > as_fast_s(plan.time_s for plan in advice.chosen.layout.plans) / 1.01
    )


def test_the_default_is_the_trainer_of_the_software(by_trainer):
    assert advised(None).chosen.cost == by_trainer["megatron-core"].chosen.cost


@pytest.mark.parametrize(
    ("trainer", "method", "line"),
    [
        ("kareus", "", "kareus train"),
        ("megatron-core", " --method sequential+perseus", "kareus.adapters.megatron"),
        ("hugging-face", " --method sequential+perseus", "TrainerPlan"),
        ("nanotron", " --method sequential", "choose_clock"),
    ],
)
def test_commands_and_lines_are_those_that_work_there(by_trainer, trainer, method, line):
    advice = by_trainer[trainer]
    plan, export = commands(advice)
    assert f"--select {advice.selector if trainer != 'nanotron' else 'fastest'}{method} --output" in plan
    assert advice.question.trainer.export in export
    assert any(line in text for text in turn_on_lines(advice))
    text = "\n".join(answer_lines(advice))
    assert f"in {advice.question.trainer.title}, which obeys " in text
    dry = advice.question.trainer.dry
    assert f", first with {dry.strip(', ')}, which only logs, then without (" in text
    assert any(dry in line for line in [*turn_on_lines(advice)][1:])


def test_a_slower_plan_is_asked_for_by_what_is_printed(by_trainer):
    """One clock for a step is chosen by the line itself; a plan is made by the command that is printed."""
    for trainer, to_do in (
        ("nanotron", "what the line below asks for"),
        ("hugging-face", "plan it with `--select straggler="),
    ):
        chosen = by_trainer[trainer].chosen
        fastest = replace(chosen, cost=chosen.layout.fastest)
        (line,) = frugal_lines(replace(by_trainer[trainer], chosen=fastest))
        assert line.startswith("at full speed ")
        assert to_do in line


def slower_beside(advice, *others):
    """An advice whose first layout saves 2 % at 4 % more time, beside others: time and energy, and share of memory."""
    layout, another = advice.size.layouts[:2]
    fastest, slower, *costs = (
        replace(advice.chosen.cost, time_s=time_s, energy_j=energy_j)
        for time_s, energy_j in ((1.0, 1000.0), (1.04, 980.0), *(cost for cost, _ in others))
    )
    chosen = LayoutChoice(layout=replace(layout, plans=(fastest, slower)), cost=fastest)
    layouts, gpu_gib = [chosen.layout], another.candidate.workload.gpu.memory_gib
    for number, (cost, (_, share)) in enumerate(zip(costs, others, strict=True), another.number):
        states_gib = another.candidate.memory.optimizer_gib + share * gpu_gib - another.candidate.memory.total_gib
        memory = replace(another.candidate.memory, optimizer_gib=states_gib)
        candidate = replace(another.candidate, memory=memory)
        layouts.append(replace(another, number=number, plans=(cost,), candidate=candidate))
    size = replace(advice.size, baseline=chosen, layouts=tuple(layouts))
    return list(frugal_lines(replace(advice, sizes=(size,), chosen=chosen)))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ((1.045, 950.0), "4.5 % more time and 5.0 % less energy, 1.045 s and 950.0 J"),
        ((1.03, 979.5), ""),
        ((1.06, 900.0), ""),
    ],
    ids=["saves more", "saves no more", "too slow"],
)
def test_another_layout_is_named_where_it_saves_more_at_that_pace(by_trainer, other, said):
    advice = by_trainer["hugging-face"]
    line, *others = slower_beside(advice, (other, 0.5))
    if not said:
        assert "; 4.0 % slower saves 2.0 % of energy in this layout: plan it with `--select " in line
        assert others == []
        return
    assert line == "at full speed there is nothing to gain; more time saves more, each against the choice:"
    another, this = others
    assert this.startswith(
        "  4.0 % more time and 2.0 % less energy, 1.040 s and 980.0 J: this layout; plan it with `--select "
    )
    assert another.startswith(
        f"  {said}: {advice.size.layouts[1].candidate.words}, at 50 % of memory; ask again with `"
    )


def test_a_layout_with_room_in_memory_is_named_before_a_full_one_that_saves_more(by_trainer):
    advice = by_trainer["hugging-face"]
    both = slower_beside(advice, ((1.02, 930.0), 0.99), ((1.03, 950.0), 0.86), ((1.03, 960.0), 0.8))
    _, safe, full = both  # the chosen layout is slower than the safe one, and saves less
    assert safe.startswith("  3.0 % more time and 5.0 % less energy, ")
    assert ", at 86 % of memory; ask again " in safe
    assert full.startswith("  2.0 % more time and 7.0 % less energy, ")
    assert ", at 99 % of memory, so try it first; ask again " in full
    *_, alone = slower_beside(advice, ((1.02, 950.0), 0.99), ((1.03, 930.0), 0.86))
    assert alone.startswith("  3.0 % more time and 7.0 % less energy, ")
    assert "try it first" not in alone
    *_, sooner = slower_beside(advice, ((1.01, 955.0), 0.99), ((1.04, 950.0), 0.86))
    assert sooner.startswith("  1.0 % more time and 4.5 % less energy, "), "which saves most for its time"
    assert not any("at 99 %" in line for line in slower_beside(advice, ((1.04, 955.0), 0.99), ((1.02, 950.0), 0.86)))


def test_what_saves_most_for_its_time_comes_first_of_what_fits_for_certain(by_trainer):
    """The chosen layout saves 2 % at 4 % more time."""
    advice = by_trainer["hugging-face"]
    _, better, this = slower_beside(advice, ((1.045, 950.0), 0.86))
    assert better.startswith("  4.5 % more time and 5.0 % less energy, ")
    assert ": this layout; " in this
    _, this, full = slower_beside(advice, ((1.01, 955.0), 0.99))
    assert ": this layout; " in this, "a full one that beats it in both may not fit"
    assert full.startswith("  1.0 % more time and 4.5 % less energy, ")
    _, only = slower_beside(advice, ((1.039, 950.0), 0.5))
    assert only.startswith("  3.9 % more time and 5.0 % less energy, "), "which beats this layout in both"


def test_another_layout_is_named_by_the_plan_that_saves_most_for_its_time(by_trainer):
    """Its fastest one, where a slower one saves little more."""
    advice = by_trainer["hugging-face"]
    another = advice.size.layouts[1]
    costs = ((1.0, 1000.0), (1.04, 980.0), (1.01, 955.0), (1.02, 953.0), (1.04, 950.0))
    plans = [replace(advice.chosen.cost, time_s=time_s, energy_j=energy_j) for time_s, energy_j in costs]
    chosen = LayoutChoice(layout=replace(advice.size.layouts[0], plans=tuple(plans[:2])), cost=plans[0])
    layouts = (chosen.layout, replace(another, plans=tuple(plans[2:])))
    size = replace(advice.size, baseline=chosen, layouts=layouts)
    *_, line = frugal_lines(replace(advice, sizes=(size,), chosen=chosen))
    assert line.startswith("  1.0 % more time and 4.5 % less energy, 1.010 s and 955.0 J: ")
    assert line.endswith(f"; ask again with `{' '.join(telling_constraints(advice.question, *layouts[1:], layouts))}`")


def test_what_the_engine_would_do_is_said_beside(by_trainer):
    assert by_trainer["kareus"].engine is None
    engine = by_trainer["megatron-core"].engine
    assert engine is not None
    assert engine.time_s <= by_trainer["megatron-core"].chosen.layout.fastest.time_s * (1 + 2e-3)


def test_the_engine_needs_no_setting_of_the_software(by_trainer):
    advice = by_trainer["kareus"]
    layout = next(one for one in advice.size.layouts if one.candidate.layout.pp == 2)
    workload = layout.candidate.workload
    pipeline = replace(workload.pipeline, schedule=PipelineSchedule.ZERO_BUBBLE_H1, chunks=1)
    delayed = replace(workload, pipeline=pipeline)
    chosen = replace(advice.chosen, layout=replace(layout, candidate=replace(layout.candidate, workload=delayed)))
    assert unset_line(replace(advice, chosen=chosen)) == ""
    by_megatron = replace(by_trainer["megatron-core"], chosen=chosen)
    assert "megatron-core has no setting for pipeline.schedule=zb-h1" in unset_line(by_megatron)
    assert unset_line(by_megatron).endswith("such as schedule=1f1b")
    assert (
        headline(by_megatron)
        .partition(": ")[2]
        .startswith(f"{layout.candidate.layout.degrees_words}, which Megatron-Core does not run, and plan ")
    )
    (command,) = commands(by_megatron)
    assert command.startswith("kareus plan "), "no format has its layout"
    in_v = replace(workload, pipeline=replace(workload.pipeline, schedule=PipelineSchedule.ZERO_BUBBLE_V, chunks=2))
    folded = replace(chosen, layout=replace(layout, candidate=replace(layout.candidate, workload=in_v)))
    assert [*commands(replace(by_megatron, chosen=folded))][1].endswith(" --format torchtitan")
    assert layout_settings(by_megatron) == ""
    assert list(turn_on_lines(by_megatron)) == []


def test_what_has_a_setting_is_named_instead_of_what_has_none():
    """Torchtitan shares out the optimizer alone where a pipeline keeps gathered weights, and has no other way to."""
    layout = ("parallelism.dp=8", "parallelism.tp=1", "parallelism.sharding=optimizer", "model=qwen3-30b-a3b")
    named = (*layout, "gpu=h200", "microbatch_size=1", "recomputation=none", "software=torchtitan")

    def instead(*overrides):
        return settable_instead(checked_but_for_memory(compose([*named, *overrides], CONFIG)[0].workload))

    assert instead("parallelism.pp=1") == ("sharding=full",)
    assert instead("parallelism.pp=2") == ()
    assert instead("parallelism.pp=2", "pipeline=zb-h1") == ("schedule=1f1b",)


def test_a_layout_without_a_setting_is_not_ranked():
    advice = advised("megatron-core", "schedule=zb-h1,1f1b")
    assert all(not without_setting(one.candidate.workload) for one in advice.size.layouts)


def test_an_unknown_trainer_is_refused(capsys):
    with pytest.raises(ConfigError, match="--trainer megatrn: not known; perhaps you meant megatron-core"):
        advised("megatrn")
    assert main(["advise", *FEW, "--gpus", "4", "--global-batch", "16", "--trainer", "x"]) == 2
    assert "--trainer x: not known" in capsys.readouterr().err


def test_python_takes_a_trainer():
    advice = kareus.advise([*FEW], gpus=4, global_batch=16, sequence_length=2048, trainer="nanotron")
    assert advice.method == "sequential"


STARTS = {
    "megatron-core": "from pathlib import Path\n"
    "from helpers.megatron_start import Start\n"
    "(exported,) = Path('advised').glob('*/plan/*.sh')\n"
    "start = Start(exported.read_text(), tuple(range(1200, 1981, 15)))\n",
    "torchtitan": "from torchtitan.models.llama3.config_registry import llama3_debugmodel\n"
    "configuration = llama3_debugmodel()\n",
    "hugging-face": "import functools, torch, transformers\n"
    "arguments = transformers.TrainingArguments(output_dir='run', report_to=[], use_cpu=True)\n"
    "Trainer = functools.partial(transformers.Trainer, torch.nn.Linear(1, 1), arguments)\n",
}
"""By trainer: what a user's script has before the lines that turn a plan on."""
STARTED = {"megatron-core": "assert start.train() >= 2\n"}
"""What it has after them, where the trainer starts in this process."""


@pytest.mark.acceptance
@pytest.mark.parametrize("trainer", STARTS)
def test_what_is_printed_is_typed_in_a_fresh_folder_up_to_the_trainer(trainer, tmp_path, monkeypatch, capsys):
    """Its commands make and export a plan, which its lines give to the real trainer.

    Megatron-LM is no package: by the exported arguments the schedule and the timers of Megatron-Core run an iteration.
    """
    monkeypatch.chdir(tmp_path)
    question = ["--gpus", "4", "--global-batch", "16", "--sequence-length", "2048", "--trainer", trainer]
    assert main(["advise", *FEW, *question]) == 0
    printed = capsys.readouterr().out.splitlines()
    typed = [line for line in printed if line.startswith("kareus ")]
    assert [line.split()[1] for line in typed] == ["plan", "export"]
    for line in typed:
        assert main(shlex.split(line)[1:]) == 0
    first = next(n for n, line in enumerate(printed) if line.startswith("turned on in ")) + 1
    assert f", {trainers()[trainer].where}" in printed[first - 1], "and where they go"
    lines = [
        line.removeprefix("  ") for line in itertools.takewhile(lambda line: line.startswith("  "), printed[first:])
    ]
    script = "\n".join([STARTS[trainer], *lines, STARTED.get(trainer, ""), "print('starts')"])
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1:] == ["starts"], ended.stderr
