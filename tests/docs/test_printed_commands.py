"""Every command that README.md and docs/ print does what a reader would see: it succeeds, as printed.

They run in a copy of the repository in which the default workload is planned, page by page, each block in a shell of
its own. The lists below are the only exceptions. What takes minutes is run by `pytest -m acceptance`; of that, `make
test` checks the configuration.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helpers.code_blocks import run_block
from helpers.measured import SIMULATED, measured_workload, true_costs, true_frontiers
from helpers.planned import remember_plans
from helpers.printed import PAGES, ROOT, Block, blocks, commands

from kareus.artifacts.layout import WorkloadFolder
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import fork_server
from kareus.plans.planned_folder import write_microbatch
from kareus.plans.selectors import parse_selector
from kareus.processes import FORK_SERVER_VARIABLE

pytestmark = pytest.mark.timeout(600)  # the first test waits until the default workload is planned

SETUP, GPUS = "sets up the environment in which these tests run", "needs GPUs"
LEFT_OUT = {
    r"make run": SETUP,
    r"source .venv/bin/activate": SETUP,
    r"pip install .*": SETUP,
    r"kareus clocks .*": GPUS,
    r"kareus doctor.*": "its exit code is that of the machine: tests/doctor",
    r"kareus calibrate .*testbed=cuda.*": GPUS,
    r"kareus fit --gpu NAME --measurements .*": GPUS,
    r"kareus train .*--communicator nccl.*": GPUS,
    r"pytest -m gpu.*": GPUS,
    r"python benchmarks/gpu_record.py .*": GPUS,
    r"zeusd .*": GPUS,
    r"torchrun .*torchtitan.*": GPUS,
    r"export ZEUSD_SOCK_PATH=.*": GPUS,
    r"snakemake --workflow-profile profiles/slurm( --config .*)?": "needs a cluster: see test_slurm.py",
}
"""Commands that no test runs, and why."""

RESOLVED_ONLY = {
    r"snakemake .*testbed=cuda.*": GPUS,
    r"snakemake --config campaign=paper": "benchmarks/acceptance.py runs it",
}
"""Commands of Snakemake whose configuration is checked and which are never run, and why."""

MINUTES = [
    r"snakemake --config .*overrides=\[.*",
    r"snakemake --config .*campaign=.*",
    r"snakemake --config .*select=.*",  # docs/howto/campaigns.md selects the same point by the workflow, alone
    r"snakemake (--quiet|--logger-kareus-show json)",  # tests/progress/test_logger_plugin.py says what they show
    r"kareus (advise|calibrate|emulate|fit|validate gpu=NAME) .*",
    r"kareus train .*--communicator gloo.*",
    r"kareus plan gpu=h200 .*",  # tests/cli/test_first_look.py plans a smaller workload so
]
"""Commands that take long, or need what such a one has made: for acceptance."""

PYTHON_LEFT_OUT = {
    "docs/howto/megatron.md": "runs in Megatron: tests/adapters/test_megatron.py runs all of it",
    "docs/howto/torchtitan.md": "runs in torchtitan: tests/adapters/test_torchtitan.py and test_pipelining.py run it",
    "docs/howto/fsdp.md": "runs in trainings: tests/adapters/test_fsdp.py and test_steps.py run it",
    "docs/howto/hugging_face.md": "runs in trainers: tests/adapters/test_steps.py runs it",
    "docs/tutorials/cluster.md": "runs in Megatron: tests/adapters/test_megatron.py runs the same lines",
    "docs/emulation.md": "opens tables of a campaign that takes minutes",
    "docs/internals/pipelines.md": "ends in the error that it shows: tests/pipeline/test_schedules.py",
}
"""Pages whose blocks of Python are not run, and why."""

TUTORIALS = "docs/tutorials/"
"""Pages that are typed from start to end by every run of the tests: their workloads are small."""
DOCUMENTATION = ("docs", "examples")
FILES = ("README.md", "kareus/evidence/data/training_iterations.csv.gz")
REFERENCE = """\
method,model,cp,tp,pp,num_microbatches,microbatch_size,seq_len,point,iteration_time_s,total_energy_j,stage0_mhz,stage1_mhz
"""
WORKLOADS = ("qwen3-1.7b,1,4,2,2,2,1024", "llama3.2-3b,1,8,2,2,4,1024")
REDUCTIONS = """\
table,model,cp,tp,pp,num_microbatches,microbatch_size,seq_len,metric,sequential+perseus,nanobatching+perseus,kareus
max_throughput,qwen3-1.7b,1,4,2,2,2,1024,time_reduction_pct,0.0,,5.0
"""
TINY = """\
{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
 "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000}
"""


def matches(name: str, patterns: object) -> bool:
    return any(re.fullmatch(pattern, name, re.S) for pattern in patterns)


def frontiers() -> str:
    """Frontiers that somebody might have measured: slower clocks take longer and use less."""
    rows = [
        f"{method},{workload},{point},{0.10 + 0.01 * point},{30.0 - point},"
        + ",".join(";".join(f"{d}{mhz}" for d in order) for order in ("FFBB", "FBFB"))
        for workload in WORKLOADS
        for method in ("sequential+perseus", "nanobatching+perseus")
        for point, mhz in enumerate((1410, 1290, 1170, 1050))
    ]
    return REFERENCE + "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def clone(default_workload, tmp_path_factory) -> Path:
    """A copy of the repository with the default workload planned, and the files that a reader has and we do not."""
    folder = Path(shutil.copytree(default_workload, tmp_path_factory.mktemp("clone"), dirs_exist_ok=True))
    for name in DOCUMENTATION:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("FRONTIERS.csv", "YOURS.csv", "OTHERS.csv"):
        (folder / name).write_text(frontiers())
    (folder / "REDUCTIONS.csv").write_text(REDUCTIONS)
    gpu = (folder / "config/gpu/a100-sxm4-40gb.yaml").read_text()
    (folder / "config/gpu/NAME.yaml").write_text(gpu)
    job = measured_workload()
    write_microbatch(WorkloadFolder(folder / "measured"), job, true_frontiers(job, true_costs(job)), SIMULATED)
    (folder / "my-model").mkdir(parents=True)
    (folder / "my-model/config.json").write_text(TINY)
    shutil.copy(ROOT / "tests/interchange/files/train_llama_8b.sh", folder / "train.sh")
    shutil.copy(ROOT / "tests/explain/files/train_llama_8b.log", folder / "train.log")
    return folder


@pytest.fixture(scope="module")
def shell(clone, tmp_path_factory) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """Run a script in the copy, as a reader would; `kareus` there is forked from a process that has imported it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "kareus").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kareus "$@"\n')
    (folder / "kareus").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone)
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # the server takes commands of its own environment
        patch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}")
        for name in fork_server.THREADS:
            patch.setenv(f"{name}_THREADS", "1")
        patch.setenv(FORK_SERVER_VARIABLE, "set by the server")
        server, environment = fork_server.start(), dict(os.environ)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)

    yield run
    server.terminate()
    server.wait()


def script_of(block: Block, seen: set[str]) -> list[str]:
    """What `make test` runs of a block: what is printed elsewhere as well, only there."""
    lines = []
    for command in commands(block):
        is_new = "<<" in command.name or command.name not in seen
        seen.add(command.name)
        slow = () if block.place.startswith(TUTORIALS) else MINUTES
        if is_new and not matches(command.name, (*LEFT_OUT, *RESOLVED_ONLY, *slow)):
            lines.append(command.text)
    return lines


def whole_script_of(block: Block, _: set[str]) -> list[str]:
    """What acceptance runs of a block, if anything of it takes long."""
    if block.place.startswith(TUTORIALS):
        return []
    own = [command for command in commands(block) if not matches(command.name, (*LEFT_OUT, *RESOLVED_ONLY))]
    return [command.text for command in own] if any(matches(command.name, MINUTES) for command in own) else []


def configurations() -> list[str]:
    """Commands of Snakemake that `make test` does not run."""
    names = dict.fromkeys(command.name for block in blocks("sh") for command in commands(block))
    return [n for n in names if matches(n, (*RESOLVED_ONLY, *MINUTES)) and n.startswith("snakemake ")]


def parameters(choose) -> list:
    seen = {"snakemake"}  # what the copy is planned with
    chosen = [(block, choose(block, seen)) for block in blocks("sh")]
    return [pytest.param("\n".join(lines), block.answer, id=block.place) for block, lines in chosen if lines]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "answer"), parameters(script_of))
def test_printed_commands_succeed(shell, script, answer):
    done = shell(script)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    assert answer in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", configurations())
def test_configurations_of_slow_printed_commands_are_accepted(clone, name, monkeypatch):
    monkeypatch.chdir(clone)  # with the files that the commands before have made
    words = [word for word in shlex.split(name)[1:] if "=" in word]
    given = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
    assert set(given) <= {"campaign", "overrides", "select"}
    overrides, selectors = (
        shlex.split(listed) if isinstance(listed, str) else listed
        for listed in (given.get("overrides", []), given.get("select", []))
    )
    campaign = resolve_campaign(given.get("campaign", "quickstart"), overrides, clone / "config")
    assert campaign.members or campaign.asked
    for selector in selectors:
        parse_selector(selector)


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("script", "answer"), parameters(whole_script_of))
def test_printed_commands_that_take_minutes_succeed(shell, script, answer):
    done = shell(script)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    assert answer in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.place) for b in blocks("python") if b.place.split(":")[0] not in PYTHON_LEFT_OUT]
)
def test_printed_python_runs(clone, block, monkeypatch):
    monkeypatch.chdir(clone)
    remember_plans(monkeypatch)
    run_block(block.text)


def test_the_lists_of_exceptions_name_only_what_is_printed():
    names = [command.name for block in blocks("sh") for command in commands(block)]
    for pattern in (*LEFT_OUT, *RESOLVED_ONLY, *MINUTES):
        assert any(re.fullmatch(pattern, name, re.S) for name in names), f"{pattern} is printed nowhere"
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert set(PYTHON_LEFT_OUT) <= pages


def test_every_fenced_block_has_a_checked_language():
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(), re.M)
        assert set(fences[::2]) <= {"sh", "python", "text", "output", "json", "yaml"}, page
        assert set(fences[1::2]) <= {""}, page
