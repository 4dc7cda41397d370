"""`kareus plan` and `kareus predict`: a first look at a workload, without the workflow."""

import json
import shlex
import shutil

import pytest
from helpers.builders import CONFIG
from helpers.figures import save_empty
from helpers.planned import SMALL, planned_folder

import kareus
from kareus.cli import main
from kareus.report.outcome import outcome, run_lines

WORDS = [*SMALL, "--config-dir", str(CONFIG)]


@pytest.fixture(scope="module", autouse=True)
def no_figures():
    """Drawing takes most of the time: the default workload's are drawn, by the same function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kareus.report.page.save", save_empty)
        yield


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """The folder of a workload that `kareus plan` has written."""
    output = tmp_path_factory.mktemp("look") / "look"
    output.parent.joinpath("here").mkdir()
    assert main(["plan", *WORDS, "--select", "min-energy", "--output", str(output)]) == 0
    (folder,) = output.iterdir()
    return folder


def test_the_folder_of_a_first_look_is_one_of_a_workload(looked, tmp_path):
    assert main(["check-plan", str(looked)]) == 0  # its only plan
    assert main(["export", str(looked), "--format", "trace", "--output", str(tmp_path / "look.json")]) == 0
    assert main(["select", "fastest", str(looked), "--output", str(tmp_path / "fastest.json")]) == 0
    assert main(["train", str(looked), "--iterations", "1", "--output", str(tmp_path / "run")]) == 0
    assert main(["verify", str(looked.parent)]) == 0
    assert (looked / "report/page.html").is_file()
    assert (looked / "report/summary.txt").read_text().startswith(looked.name)


def test_a_first_look_says_what_the_plan_saves(looked, caplog):
    caplog.set_level("INFO")
    assert main(["plan", *WORDS, "--select", "min-energy", "--tokens", "1e9"]) == 0  # and writes nothing
    lines = [record.message for record in caplog.records]
    (first,) = outcome(looked).plans
    answer = first.answer.sentence("Kareus' engine")
    assert lines[1] == f"{answer} [simulated testbed, A100-SXM4-40GB]"
    assert lines[2].startswith("in Megatron-Core, which obeys clocks of forwards, backwards and updates: ")
    typed = shlex.join([*WORDS, "--tokens", "1e+09", "--select", "min-energy", "--method", "sequential+perseus"])
    assert sorted(lines[2].partition(": kareus plan ")[2].split()) == sorted(typed.split())
    assert lines[3].startswith("changes of clock an iteration, stage by stage: ")
    assert lines[3].endswith(", taken to cost no time until `kareus doctor --measure` has measured them")
    assert lines[4].startswith("error: 9 of 10 ") and len(lines[4]) <= 160
    assert lines[5].startswith("1,000,000,000 tokens: ")
    assert lines[6].startswith("that is ") and lines[6].endswith("the trainer's own execution")
    assert len(lines) == 7


def test_every_selector_gets_a_plan_and_all_are_on_the_page(tmp_path, caplog):
    caplog.set_level("INFO")
    selectors = ["fastest", "straggler=1.05x", "min-energy"]
    options = [word for text in selectors for word in ("--select", text)]
    assert main(["plan", *WORDS, *options, "--output", str(tmp_path / "look"), "--force"]) == 0
    (folder,) = (tmp_path / "look").iterdir()
    assert sorted(path.stem for path in (folder / "plan").iterdir()) == sorted(selectors)
    assert sorted(path.stem for path in (folder / "report/plans").iterdir()) == sorted(selectors)
    assert [f"plan {text}" in caplog.text for text in selectors] == [True] * 3
    assert len([line for line in caplog.messages if line.startswith("error: ")]) == 1, "it is of all of them"


def test_a_selector_given_twice_is_refused_before_planning(capsys):
    assert main(["plan", *WORDS, "--select", "edp", "--select", "edp"]) == 2
    assert capsys.readouterr().err.startswith("kareus plan: select: 'edp' is given twice; ")


def test_blocks_are_searched_or_given(capsys):
    split = "parallelism.layers_per_stage=[14,14]"
    assert main(["plan", *WORDS, split, "parallelism.layers_per_stage=auto"]) == 2
    assert capsys.readouterr().err == (
        f"kareus plan: parallelism.layers_per_stage=auto: cannot be given beside {split}; leave one of them out.\n"
    )


def test_python_and_the_command_plan_the_same(looked):
    (workload,) = kareus.resolve(SMALL, CONFIG)
    plan = kareus.plan(workload, "min-energy")
    assert kareus.load_plan(looked / "plan/min-energy.json").prediction == plan.prediction


@pytest.mark.parametrize("place", ["results", "results/mine", "other/results/x"])
def test_a_first_look_never_goes_into_results(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    for folder in ("results", "other/results/measurements"):
        (tmp_path / folder).mkdir(parents=True)
    assert main(["plan", *WORDS, "--output", place]) == 2
    assert capsys.readouterr().err == (
        f"kareus plan: {place}: belongs to the workflow, and only snakemake writes there; give another folder, such as "
        "look.\n"
    )


def test_a_first_look_says_what_the_engine_does_not_run(caplog):
    caplog.set_level("INFO")
    assert main(["plan", *WORDS, "software=kareus", "training.gradients=bf16"]) == 0
    (line,) = [record.message for record in caplog.records if record.message.startswith("not run by")]
    assert line.startswith("not run by Kareus' engine: training.gradients: is planned and predicted, but the engine")
    assert line.endswith("leave it out, or train with the trainer that has it (kareus export).")


def test_a_refused_workload_is_named_beside_what_is_predicted(capsys):
    assert main(["predict", "microbatch_size=8,64", "--config-dir", str(CONFIG)]) == 0
    text = capsys.readouterr().out
    first = "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100: sequential at 1410 MHz, megatron-paper in bf16"
    assert f"{first} [GPU model of A100-SXM4-40GB]" in text
    assert "llama3.2-3b_pp2-tp8_mbs64_seq4096_a100: refused: microbatch_size=64" in text


def test_programs_get_the_whole_prediction(capsys):
    words = ["predict", "--json", "--method", "nanobatching", "--frequency", "1200", "--config-dir", str(CONFIG)]
    assert main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    (workload,) = kareus.resolve([], CONFIG)
    found = kareus.predict(workload, "nanobatching", 1200)
    told = json.loads(line)
    assert (told["time_s"], told["energy_j"], told["frequency_mhz"]) == (found.time_s, found.energy_j, 1200)
    assert told["workload"] == "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100"
    assert told["parameters"] == told["active_parameters"] == 3_212_749_824
    assert len(told["stages"]) == 2
    assert told["memory"]["total_gib"] == found.memory.total_gib


def test_a_run_ends_with_the_answers_of_its_plans(looked):
    results, plan = looked.parent, looked / "plan/min-energy.json"
    lines = run_lines(results, [plan, looked / "plan/gone.json"], "mine")
    assert lines[0] == f"{looked.name} [simulated testbed, A100-SXM4-40GB]"
    assert lines[1].startswith("plan min-energy, in Kareus' engine: ")
    assert lines[2].startswith("in Megatron-Core, which obeys ") and lines[2].endswith(" --method sequential+perseus")
    assert lines[3].startswith("error: 9 of 10 ")
    assert lines[4:] == [f"page  {looked / 'report/page.html'}", f"plan  {plan}"]


def test_a_run_of_several_says_of_each_what_its_trainer_gets(looked, tmp_path):
    again = tmp_path / looked.name
    shutil.copytree(looked, again)
    lines = run_lines(looked.parent, [folder / "plan/min-energy.json" for folder in (looked, again)], "mine")
    assert [line.partition(" ")[0] for line in lines] == [looked.name, "plan", "in", "error:"] * 2
    assert sum(line.startswith("in Megatron-Core, which obeys ") for line in lines) == 2


def test_a_run_of_many_workloads_ends_with_one_line_on_all(tmp_path):
    plans = [tmp_path / f"w{number}/plan/fastest.json" for number in range(9)]
    for plan in plans:
        plan.parent.mkdir(parents=True)
        plan.touch()
    index = tmp_path / "campaigns/mine/report/index.html"
    index.parent.mkdir(parents=True)
    index.touch()
    assert run_lines(tmp_path, plans, "mine") == [
        "9 workloads planned; kareus results --campaign mine lists what they save",
        f"page of the campaign: {index}",
    ]


def test_the_only_workload_needs_no_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["select", "min-energy"]) == 2
    assert "results: no workload was planned there; run snakemake" in capsys.readouterr().err
    folder = planned_folder(tmp_path / "results")
    assert main(["select", "min-energy"]) == 0
    assert main(["check-plan", str(folder)]) == 2
    assert f"{folder}: has 2 plans; name one of them: {folder}/plan/fastest.json, " in capsys.readouterr().err


def test_a_folder_that_no_report_goes_into_is_refused_before_planning(looked, tmp_path, monkeypatch, capsys):
    mine = tmp_path / looked.name / "report/notes.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    monkeypatch.setattr("kareus.plans.planning.plan_tables", lambda *_, **__: pytest.fail("it is planned"))
    assert main(["plan", *WORDS, "--output", str(tmp_path)]) == 2
    assert f"{mine.parent}: the folder has files, and no manifest of a report" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
