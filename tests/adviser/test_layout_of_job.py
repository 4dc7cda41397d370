"""Questions about a job: its layout is priced, named and compared with, and so is what it lacks."""

import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.advice import answer
from kareus.adviser.answers import LayoutChoice
from kareus.adviser.beside import job_lines
from kareus.adviser.from_files import asked_of
from kareus.adviser.job import lacked_overlap
from kareus.adviser.lines import answer_lines, commands, headline, layout_words, short_lines
from kareus.adviser.plain import asked, plain
from kareus.adviser.question import ask
from kareus.adviser.tables import layouts_frame
from kareus.prediction.errors import time_percent
from kareus.report.advice_page import advice_page
from kareus.workload.arguments import brought
from kareus.workload.resolve import resolve

SCRIPT = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
  --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --bf16 \\
  --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 128256 \\
  --hidden-dropout 0 --attention-dropout 0 --seq-length 4096 --micro-batch-size 2 --global-batch-size 64 \\
  --pipeline-model-parallel-size 4 --use-distributed-optimizer --cross-entropy-loss-fusion \\
  --cross-entropy-fusion-impl te"""
INTERLEAVED = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --bf16 \\
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \\
  --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*2|(t*2|)*13t*3|tL' \\
  --use-distributed-optimizer --attention-dropout 0 --hidden-dropout 0"""
GPU = "gpu=h100-sxm5-80gb"
FEW = (GPU, "cp=1", "pp=1,4", "microbatch_size=2,4", "recompute=none", "schedule=1f1b", "sharding=optimizer")
FLAGS = ("--overlap-grad-reduce", "--overlap-param-gather")
OVERLAP = ("software.reduction=buckets", "software.gather_beside_forward=true")
"""What the flags mean."""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "job.sh"
    path.write_text(SCRIPT)
    return path


def question_about(file, *given, gpus=None):
    of_file = asked_of([file], given, gpus=gpus, global_batch=None, sequence_length=None, config_dir=CONFIG)
    numbers = {"global_batch": of_file.global_batch, "sequence_length": of_file.sequence_length}
    files = {"job": of_file.job, "files": [file], "given": of_file.given}
    return ask(of_file.overrides, gpus=of_file.gpus, **numbers, config_dir=CONFIG, **files)


@pytest.fixture(scope="module")
def advice(script):
    return answer(question_about(script, "tp=1", *FEW))


def resolved(file, *given):
    (workload,) = kareus.resolve(brought([file], None, [GPU, *given])[1], CONFIG)
    return workload


def predicted(file, *given):
    return kareus.predict(resolved(file, *given))


def test_the_answer_is_compared_with_the_layout_of_the_script(advice, script):
    own, chosen = predicted(script), advice.chosen.cost
    job = advice.size.job.cost
    assert (job.time_s, job.energy_j) == pytest.approx((own.time_s, own.energy_j), rel=1e-6)
    saved = 100 * (1 - chosen.time_s / own.time_s)
    assert saved > 20, "its stages wait almost half of the time"
    assert f"{saved:.0f} % less time" in headline(advice)
    assert f"instead of {1e3 * own.time_s:.1f} ms and" in headline(advice)
    without = advice.chosen.layout.sequential
    lines = list(short_lines(advice))
    assert lines[1].startswith("first add "), "what costs nothing"
    assert lines[2].startswith("the layout alone, without a plan: ")
    assert f"{100 * (1 - without.time_s / own.time_s):.0f} % less time" in lines[2]
    assert "own execution of your script's layout" in lines[0]
    assert any(
        f"your script's, which it is compared with: {advice.size.job.layout.candidate.words}" in x for x in lines
    )
    assert len(lines) <= 12, "a dozen"
    assert plain(advice)["job"]["time_s"] == job.time_s


def test_layouts_that_can_run_are_counted_once(advice, script, caplog):
    """That of the script among them, while they are counted, in the terminal and on the page."""
    caplog.set_level("INFO", "kareus.adviser.advice")
    again = answer(advice.question)
    count = sum(
        one.candidate.layout.layers_per_stage in (None, advice.question.job.layers_per_stage)
        for one in again.size.layouts
    )
    assert count > sum(one.candidate.layout.layers_per_stage is None for one in again.size.layouts)
    assert f"{count:,} layouts can run, " in caplog.text
    assert any(f" GPUs: {count:,} can run, " in line for line in answer_lines(again))
    (said,) = (section.text for section in advice_page(again).sections if " in figures" in section.title)
    assert f" layouts {count:,} can run. " in said


def test_the_row_of_the_script_is_marked_everywhere(advice):
    job = advice.size.job.layout
    assert (job.candidate.layout.pp, job.candidate.layout.dp, job.candidate.layout.microbatch_size) == (4, 4, 2)
    (row,) = (line for line in answer_lines(advice) if line.endswith(", your script's"))
    assert row.split()[0 if row[0] == " " else 1] == str(job.number)
    table = layouts_frame(advice)
    assert table.filter(table["is_job"])["layout"].to_list() == [job.number]
    sheets = [sheet for section in advice_page(advice).sections for sheet in section.sheets]
    marked = [row.cells[0] for sheet in sheets for row in sheet.rows if "your script's" in row.cells[0]]
    assert [cell.split()[0] for cell in marked] == [str(job.number)]


def test_overlap_that_the_script_lacks_is_named_with_what_it_costs(advice, script):
    lacked = advice.lacked
    assert lacked.settings == FLAGS
    layout = [text for text in lacked.layout.candidate.layout.overrides if not text.startswith("parallelism.layers")]
    usual = [*layout, "parallelism.layers_per_stage=null"]
    without = predicted(script, *usual)
    whole = predicted(script, *usual, *OVERLAP)
    assert lacked.without_s == pytest.approx(without.time_s, rel=1e-6)
    assert lacked.with_s == pytest.approx(whole.time_s, rel=1e-6)
    saved = 100 * (1 - whole.time_s / without.time_s)
    said, _ = job_lines(advice)
    assert said.startswith(f"first add {' and '.join(FLAGS)}, which your script lacks, and ask again: ")
    assert (
        f": it then takes {saved:.2g} % less time: {1e3 * whole.time_s:.4g} ms instead of {1e3 * without.time_s:.4g} ms"
        in said
    )
    assert said.endswith(f" ms, at an error of {time_percent(resolved(script, *usual, *OVERLAP)):g} % instead of 18 %")


def test_what_the_script_lacks_is_said_to_beat_the_choice_where_it_does(script):
    """By time, and with the error of a layout that was measured with it beside that of a choice that never was."""
    question = question_about(script, "tp=1", *FEW[:-1])
    free = answer(question)
    chosen, lacked = free.chosen.layout.candidate, free.lacked
    assert (chosen.layout.sharding, lacked.layout.candidate.layout.sharding) == ("full", "optimizer")
    usual = [text for text in lacked.layout.candidate.layout.overrides if not text.startswith("parallelism.layers")]
    whole = predicted(script, *usual, *OVERLAP)
    assert whole.time_s < free.chosen.cost.time_s
    head, first, second = list(short_lines(free))[:3]
    assert "train with Megatron-Core, dp 16, sharding full, and plan" in head, "another layout of dp 16 is named below"
    assert first.startswith("first add ")
    without_s = lacked.without_s
    assert (
        f", then takes {1e3 * whole.time_s:.4g} ms without a plan instead of {1e3 * without_s:.4g} ms, less than the "
        "choice's " in first
    )
    errors = [time_percent(workload) for workload in (resolved(script, *usual, *OVERLAP), chosen.workload)]
    assert errors[0] < errors[1]
    assert f" ms, at an error of {errors[0]:g} % instead of {errors[1]:g} %" in first
    assert second.startswith("the layout alone")
    lead = advice_page(free).extra["lead"]
    assert lead[1] == f"F{first[1:]}."
    assert plain(free)["lacked"]["error_percent"] == errors[0]
    slow = replace(free, lacked=replace(lacked, with_s=free.chosen.cost.time_s))
    assert "choice" not in next(iter(job_lines(slow)))


def test_a_job_whose_blocks_are_those_that_a_search_finds_is_listed_once(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text(INTERLEAVED)
    few = ("tp=1", "cp=1", "pp=2", "chunks=8", "microbatch_size=1", "recompute=none", "schedule=interleaved")
    question = question_about(path, GPU, *few, "sharding=optimizer")
    alone = [one.candidate.layout for one in answer(replace(question, job=None)).size.layouts]
    assert question.job in alone, "the search of blocks finds those of the job"
    beside = [one.candidate.layout for one in answer(question).size.layouts]
    assert sorted(map(repr, beside)) == sorted(map(repr, alone))


def test_overlap_that_a_layout_cannot_use_is_not_lacked(tmp_path):
    """Replicas that hold all states gather no weights."""
    path = tmp_path / "job.sh"
    path.write_text(SCRIPT.replace("--use-distributed-optimizer", ""))
    lacked = answer(question_about(path, "tp=1", *FEW[:-1], "sharding=none")).lacked
    assert lacked.settings == ("--overlap-grad-reduce",)


def test_overlap_that_costs_the_choice_nothing_is_told_of_the_fastest_layout_that_shares_out_as_the_job(script):
    """A single replica exchanges nothing, which may be why it was chosen."""
    question = question_about(script, GPU, "tp=1", "cp=1", "pp=4,16", *FEW[3:6], "sharding=none,optimizer")
    layouts = answer(question).size.layouts
    alone = next(one for one in layouts if one.candidate.layout.dp == 1)
    shared = [one for one in layouts if one.candidate.layout.sharding == "optimizer" and one.sequential]
    lacked = lacked_overlap(question, question.base, layouts, alone)
    assert lacked.layout == min(shared, key=lambda one: one.sequential.time_s)
    assert lacked.settings == FLAGS
    assert lacked.with_s < lacked.without_s == pytest.approx(lacked.layout.sequential.time_s, rel=1e-6)
    assert lacked_overlap(question, question.base, [alone], alone) is None


def test_a_job_that_needs_more_than_a_gpu_has_is_said_to(tmp_path):
    path = tmp_path / "job.sh"
    long = SCRIPT.replace("--seq-length 4096 --micro-batch-size 2", "--seq-length 16384 --micro-batch-size 4")
    path.write_text(long.replace("--pipeline-model-parallel-size 4", ""))
    advice = answer(question_about(path, "tp=1", *FEW[:3], "microbatch_size=1", *FEW[4:]))
    assert advice.size.job.layout.candidate.memory.total_gib > 80
    assert "GiB by the estimate, more than a GPU has)" in layout_words(advice)


def test_a_script_that_overlaps_lacks_nothing(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text(f"{SCRIPT} {' '.join(FLAGS)}")
    own = answer(question_about(path, GPU, "tp=1", "cp=1", "pp=4", *FEW[3:]))
    assert own.lacked is None
    assert not any("lacks" in line for line in job_lines(own))


def test_constraints_of_a_question_leave_the_script_to_compare_with(script):
    """It is priced all the same, and no row is its."""
    other = answer(question_about(script, "tp=2", *FEW))
    own = predicted(script)
    assert other.size.job.cost.time_s == pytest.approx(own.time_s, rel=1e-6)
    gpu = other.size.job.layout.candidate.workload.gpu
    assert gpu.memory_gib == other.question.base.gpu.memory_gib
    assert {one.candidate.layout.tp for one in other.size.layouts} == {2}
    assert not layouts_frame(other)["is_job"].any()
    assert not any(line.endswith("your script's") for line in answer_lines(other))


def test_other_gpus_are_not_compared_with_the_script(script):
    other = answer(question_about(script, "tp=1", *FEW, gpus="8"))
    assert other.size.job is None
    assert "own execution of its fastest layout" in headline(other)


def test_another_job_is_another_question(advice):
    question = advice.question
    other = replace(question, job=replace(question.job, microbatch_size=1, num_microbatches=16))
    assert asked(other) != asked(question)
    assert "job" not in asked(replace(question, job=None))


def planned_by(command):
    """Names and workloads of a printed command that plans."""
    words = shlex.split(command)
    files = [Path(file) for option, file in pairwise(words) if option == "--from"]
    given = [word for word in words[2 : words.index("--select")] if "=" in word]
    return [(each.name, each.workload) for each in resolve(brought(files, None, given)[1], CONFIG)]


def test_the_command_that_plans_names_the_script_instead_of_its_model(advice, script):
    command = next(commands(advice))
    assert command.startswith(f"kareus plan --from {script} {GPU} parallelism.")
    assert "model=" not in command
    chosen = advice.chosen.layout.candidate.workload
    assert planned_by(command) == [(each.name, chosen) for each in resolve(advice.overrides, CONFIG)]


@pytest.mark.parametrize("more", ["--rampup-batch-size 16 16 1000", "--decoder-first-pipeline-num-layers 5", ""])
def test_the_command_takes_back_what_the_script_says_and_the_layout_has_not(advice, tmp_path, more):
    path = tmp_path / "job.sh"
    path.write_text(f"{SCRIPT} {more}")
    question = question_about(path, "tp=1", *FEW)
    for layout in (one for one in advice.size.layouts if one.plans):
        other = replace(advice, question=question, chosen=LayoutChoice(layout=layout, cost=layout.fastest))
        command = next(commands(other))
        assert command.startswith(f"kareus plan --from {path} ")
        assert planned_by(command) == [(each.name, each.workload) for each in resolve(other.overrides, CONFIG)]
        assert ("'training.batch_ramp=[]'" in command) == ("--rampup" in more)


def test_the_command_has_everything_where_the_script_means_something_else(advice):
    formats = replace(advice.question, given=(*advice.question.given, "precision=bf16,fp8"))
    assert next(commands(replace(advice, question=formats))).startswith("kareus plan 'model={")
