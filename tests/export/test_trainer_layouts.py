"""A plan's layout as settings of trainers, and a plan as tables, by `kareus export`."""

import csv
import re
import subprocess

import pytest
from helpers.builders import CONFIG
from helpers.planned import planned_folder

from kareus.cli import main
from kareus.export.listing import COLUMNS
from kareus.plans.file import read_plan

ARGUMENTS = {
    "megatron-args": (".megatron.sh", "--tensor-model-parallel-size 4"),
    "torchtitan-toml": (".torchtitan.toml", "tensor_parallel_degree = 4"),
    "nanotron": (".nanotron.yaml", "tp: 4"),
    "axolotl": (".axolotl.yaml", "tensor_parallel_size: 4"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return planned_folder(tmp_path_factory.mktemp("results"))


def export(folder, form):
    assert main(["export", str(folder), "--format", form, "--force"]) == 0


@pytest.mark.parametrize("form", ARGUMENTS)
def test_a_layout_is_written_beside_its_plan_and_read_again(form, folder, caplog):
    suffix, argument = ARGUMENTS[form]
    assert main(["export", str(folder), "--format", form]) == 0
    (path,) = (folder / "plan").glob(f"*{suffix}")
    text = path.read_text()
    assert text.isascii()
    assert argument in text
    caplog.clear()
    caplog.set_level("INFO")
    words = ["gpu=a100-sxm4-40gb", "model=llama3.2-3b", "model.num_layers=8", "model.vocab_size=8192"]
    words += ["parallelism.pp=4"] if form == "axolotl" else []
    assert main(["from", str(path), *words, "--config-dir", str(CONFIG)]) == 0
    assert "_pp4-tp4_mbs2_seq4096_a100_nmb4" in caplog.records[-1].message


def test_a_layout_for_a_shell_says_how_a_script_takes_it(folder, tmp_path, caplog):
    """The line is typed as it is printed, in place of the arguments of a job's script."""
    path = tmp_path / "a layout.megatron.sh"
    caplog.set_level("INFO")
    assert main(["export", str(folder), "--format", "megatron-args", "--output", str(path)]) == 0
    source, _, arrays = caplog.messages[-1].removeprefix("in the script of your job: ").partition("; then give ")
    launch, train = re.findall(r'"\S+"', arrays)
    assert arrays.endswith(" in place of the same arguments, and keep all others, such as those of data and optimizer")
    script = f"{source}; printf '%s\\n' {launch} pretrain_gpt.py {train}"
    words = subprocess.run(["bash", "-euc", script], check=True, capture_output=True, text=True).stdout.split("\n")
    assert words.index("--nproc_per_node") < words.index("pretrain_gpt.py")
    assert words[words.index("--tensor-model-parallel-size") + 1] == "4"
    assert words.index("pretrain_gpt.py") < words.index("--tensor-model-parallel-size")
    export(folder, "nanotron")
    assert caplog.messages[-1].endswith("A100-SXM4-40GB]"), "a file of settings is known to who asks for it"


def test_axolotl_has_no_pipeline_and_the_file_says_so(folder):
    export(folder, "axolotl")
    (path,) = (folder / "plan").glob("*.axolotl.yaml")
    assert "#   parallelism.pp=4 (read as 1)" in path.read_text()


def test_a_layout_replaces_another_but_nothing_else(folder, capsys):
    export(folder, "nanotron")
    (path,) = (folder / "plan").glob("*.nanotron.yaml")
    assert main(["export", str(folder), "--format", "nanotron"]) == 0
    path.write_text("mine: 1\n")
    assert main(["export", str(folder), "--format", "nanotron"]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine: 1\n"


@pytest.mark.parametrize("form", ARGUMENTS)
def test_a_layout_that_was_added_to_is_kept_and_one_that_was_not_is_replaced(form, folder, tmp_path, capsys):
    path = tmp_path / f"layout{ARGUMENTS[form][0]}"
    command = ["export", str(folder), "--format", form, "--output", str(path)]
    assert main(command) == 0
    written = path.read_text()
    assert main(command) == 0
    for changed in (written + "# mine\n", written.replace("4", "2", 1), written.rpartition("# seal")[0]):
        path.write_text(changed)
        capsys.readouterr()
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"{path}: was changed after Kareus wrote it; give another path (--output), or --force" in error
        assert path.read_text() == changed
    assert main([*command, "--force"]) == 0
    assert path.read_text() == written


def test_a_plan_as_csv_has_a_row_for_each_instruction(folder):
    export(folder, "csv")
    plan = read_plan(next((folder / "plan").glob("*.json")))
    with next((folder / "plan").glob("*.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    instructions = [(stage.stage, i) for stage in plan.stages for i in stage.instructions]
    assert tuple(rows[0]) == COLUMNS
    assert [(int(row["stage"]), row["direction"], int(row["microbatch"])) for row in rows] == [
        (stage, str(i.direction), i.microbatch) for stage, i in instructions
    ]
    assert [float(row["energy_j"]) for row in rows] == [i.energy_j for _, i in instructions]
    assert max(float(row["start_s"]) + float(row["time_s"]) for row in rows) == pytest.approx(plan.prediction.time_s)


def test_a_plan_in_markdown_has_its_cost_and_counts_its_instructions(folder):
    export(folder, "markdown")
    plan = read_plan(next((folder / "plan").glob("*.json")))
    text = next((folder / "plan").glob("*.md")).read_text()
    assert text.startswith(f"# Plan {plan.selector} of {plan.workload}\n")
    assert f"{plan.prediction.time_s:.4f} s" in text
    assert plan.testbed.label in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    counted = sum(int(part.partition(": ")[2]) for row in rows for part in row[4].split(", "))
    assert counted == sum(len(stage.instructions) for stage in plan.stages)
