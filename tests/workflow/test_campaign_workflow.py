"""A reduced campaign by the workflow: all kinds of members, what reruns what, kills, and two campaigns at once."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from helpers.breaking import KILLING, breaking, other_version
from helpers.preloaded import snakemake, would_run

from kareus.artifacts.locks import lock_at_once
from kareus.artifacts.tables import read_table
from kareus.campaign.config import CAMPAIGN
from kareus.campaign.jobs import campaign_jobs
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import EVERY, main
from kareus.profile.tables import TRIALS
from kareus.verify.stage import RUN_LOCK
from runs.artifacts import artifacts, differences
from runs.checkout import ROOT, checkout, command
from runs.kills import kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REDUCED = """
workloads: ["{small} microbatch_size=2,4096"]
fleets: ["{small} microbatch_size=2 {fleet}"]
sweeps: ["{small} microbatch_size=2 sweep.windows_s=[1] sweep.trials=2"]
question: "{asked}"
""".format(
    small="model=qwen3-1.7b parallelism=tp8 model.num_layers=4 model.vocab_size=8192 search=mine "
    "gpu.search_frequencies.stride_mhz=510 pipeline.deadlines=2 parallelism.layers_per_stage=[2,2] "
    "iteration.include_update=false",
    fleet="emulation.pipelines=2 emulation.num_microbatches=2 emulation.deadlines=2 emulation.stragglers=[] "
    "emulation.power_caps=[]",
    asked="model=qwen3-1.7b model.num_layers=4 gpus=1 global_batch=4 sequence_length=1024 microbatch_size=2 "
    "recompute=none",
)
"""One workload that can run and one that cannot, a fleet and a sweep of the first; two clocks, few candidates; and one
layout to find.

A fleet has no update unless it says so: the workload shares its search only without, as in the paper's campaigns.
"""
MINE = """
defaults: [random, _self_]
medium: {initial: 6, max_rounds: 0, batch: 2}
large: {initial: 6, max_rounds: 0, batch: 2}
"""
CONFIG = "--config", "campaign=reduced"
RULES = sorted((ROOT / "workflow/rules").glob("*.smk"))


def reduced(folder: Path) -> Path:
    """A checkout to which a user has added a campaign and a strategy."""
    checkout(folder)
    (folder / "config/campaign/reduced.yaml").write_text(REDUCED)
    (folder / "config/search/mine.yaml").write_text(MINE)
    return folder


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Path:
    folder = reduced(tmp_path_factory.mktemp("campaign"))
    done = snakemake(folder, *CONFIG, "--max-jobs-per-timespan=1/1h")  # of no effect on jobs of this machine
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def copy(planned, tmp_path) -> Path:
    return Path(shutil.copytree(planned, tmp_path / "copy"))


def workload_of(folder: Path) -> Path:
    (page,) = folder.glob("results/*/report/page.html")
    return page.parents[1]


def plan_of(folder: Path) -> str:
    """What needs searches and no report, which takes most of a run: reports that are there stay."""
    return f"results/{workload_of(folder).name}/plan/fastest.json"


def test_everything_that_belongs_to_a_campaign_is_made(planned):
    folder = workload_of(planned)
    assert "simulated testbed" in (folder / "report/fleets.txt").read_text()
    (trials,) = folder.glob("profile/window_*/trials.parquet")
    assert len(read_table(trials, TRIALS)) == 2
    assert (folder / "engine/end-to-end/iterations.parquet").is_file()
    assert (folder / "plan/fastest.json").is_file()


def test_what_cannot_run_is_part_of_the_result_with_its_reason(planned):
    table = read_table(planned / "results/campaigns/reduced/campaign.parquet", CAMPAIGN)
    assert table["kind"].to_list() == ["workload", "workload", "fleet", "sweep"]
    assert [reason is None for reason in table["refusal"]] == [True, False, True, True]
    assert "out of memory" in table["refusal"][1]
    assert set(table["workload"]) - {table["workload"][1]} == {workload_of(planned).name}


def test_a_campaign_that_is_done_has_nothing_left_to_do(planned):
    assert would_run(planned, *CONFIG) == {}


def test_one_file_is_made_alone(planned):
    target = f"results/{workload_of(planned).name}/plan/deadline=5.2s.json"
    assert would_run(planned, target, *CONFIG) == {"select_plan": 1}


def test_a_file_of_another_campaign_is_refused_with_its_members(planned):
    done = snakemake(planned, "-n", "results/llama3.2-3b/plan/fastest.json", *CONFIG)
    assert done.returncode != 0
    assert f"not of campaign reduced, which has: {workload_of(planned).name}; give another" in done.stdout + done.stderr


def test_another_strategy_reruns_search_and_later_stages(copy):
    strategy = copy / "config/search/mine.yaml"
    strategy.write_text(strategy.read_text().replace("_self_]\n", "_self_]\nstrategy: exhaustive\n"))
    rules = would_run(copy, *CONFIG)
    assert rules["search_partition"] == 4
    assert {"compose_frontiers", "solve_pipeline", "select_plan", "write_report", "emulate_fleet"} <= set(rules)
    assert not {"extract_partitions", "enumerate_schedules", "profile_instructions", "sweep_profiler"} & set(rules)


def test_another_strategy_for_a_campaign_repeats_no_measurement(planned):
    rules = would_run(planned, *CONFIG, "overrides=search=random")
    assert rules["search_partition"] == 4
    assert "extract_partitions" not in rules


def test_without_a_table_only_its_measurements_are_repeated(copy):
    whole, folder = artifacts(copy / "results"), workload_of(copy)
    (kept,) = copy.glob("results/measurements/*/forward-mlp-allreduce_*")
    shutil.rmtree(kept)
    shutil.rmtree(folder / "search/forward-mlp-allreduce")
    patterns = ("profile*", "profile/*", "search/backward-*")
    others = [log for pattern in patterns for log in folder.glob(f"logs/{pattern}.log")]
    before = [log.stat().st_mtime_ns for log in others]
    done = snakemake(copy, plan_of(copy), *CONFIG)
    assert done.returncode == 0, done.stderr
    assert "candidates: 6 measured, 0 from" in (folder / "logs/search/forward-mlp-allreduce.log").read_text()
    assert [log.stat().st_mtime_ns for log in others] == before
    assert differences(whole, artifacts(copy / "results")) == []


def files_of(folder: Path) -> dict[Path, bytes]:
    """Bytes of all results but logs."""
    found = (path for path in (folder / "results").rglob("*") if path.is_file() and "logs" not in path.parts)
    return {path: path.read_bytes() for path in found if path.suffix != ".log" and not path.name.startswith(".")}


def test_all_asks_for_the_outputs_of_every_job(tmp_path):
    folder = reduced(tmp_path)
    asked = campaign_jobs(resolve_campaign("reduced", [], folder / "config"), ["fastest"], ["its one workload"])
    run = would_run(folder, *CONFIG)
    assert run == {rule: len(jobs) for rule, jobs in asked.items()} | {"all": 1}
    declared = {rule for file in RULES for rule in re.findall(r"^rule (\w+):", file.read_text(), re.M)}
    assert declared == set(asked)


def test_a_killed_selection_leaves_the_former_plan(copy, tmp_path):
    before = files_of(copy)
    environment = os.environ | other_version(tmp_path / "other", "plans/stage.py") | breaking(tmp_path / "breaking")
    assert snakemake(copy, plan_of(copy), *CONFIG, env=environment).returncode != 0
    assert set(before) <= set(files_of(copy))
    assert would_run(copy, plan_of(copy), *CONFIG, env=environment)["select_plan"] == 1


@pytest.mark.acceptance
def test_a_job_killed_on_a_rerun_is_never_up_to_date(copy, tmp_path):
    whole, before = artifacts(copy / "results"), files_of(copy)
    environment = os.environ | other_version(tmp_path / "other") | breaking(tmp_path / "breaking")
    runs = 0
    while (done := snakemake(copy, *CONFIG, env=environment)).returncode != 0:
        runs += 1
        assert runs < 20, done.stdout + done.stderr
        assert set(before) <= set(files_of(copy))
        assert would_run(copy, *CONFIG, env=environment)
    assert runs > 5
    assert would_run(copy, *CONFIG, env=environment) == {}
    assert differences(whole, artifacts(copy / "results")) == []


WRITTEN = {
    "campaign": "campaigns/*/campaign.parquet",
    "stage partition": "graphs/*/*.parquet",
    "stage schedule": "*/schedule/*.parquet",
    "stage profile": "*/profile/*.parquet",
    "stage sweep": "*/profile/*/trials.parquet",
    "stage search": "*/search/*/*.parquet",
    "stage frontier": "*/frontier/*.parquet",
    "stage pipeline": "*/pipeline/*.parquet",
    "select": "*/plan/*.json",
    "stage end-to-end": "*/engine/*/*.parquet",
    "emulate": "*/emulate/*/*.parquet",
    "stage report": "*/report/data/timeline.parquet",
    "stage report-fleets": "*/report/data/fleet.parquet",
    "stage report-campaign": "campaigns/*/report/data/*.parquet",
}
"""Artifacts of each command of the workflow that say when they were written."""


def written_at(path: Path) -> str:
    """When an artifact says that it was written, to the second."""
    told = (
        json.loads(path.read_text()) if path.suffix == ".json" else json.loads(pl.read_parquet_metadata(path)["kareus"])
    )
    return str((told.get("provenance") or told)["created_at"])


@pytest.mark.acceptance
@pytest.mark.parametrize("victim", ["job", "snakemake"])
@pytest.mark.parametrize("command", WRITTEN)
def test_a_rerun_that_is_killed_is_made_up_for(copy, tmp_path, command, victim):
    whole, before = artifacts(copy / "results"), files_of(copy)
    source = "/".join(EVERY[command].module.split(".")[1:]) + ".py"
    moment = ("it starts", "it has written")[(list(WRITTEN).index(command) + (victim == "job")) % 2]
    environment = os.environ | other_version(tmp_path / "other", source, KILLING)
    edited_at = datetime.now(UTC).isoformat(timespec="seconds")
    assert snakemake(copy, *CONFIG, env=environment | {"KILLED": f"{victim}|{moment}"}).returncode != 0
    assert set(before) <= set(files_of(copy))
    runs = [snakemake(copy, *CONFIG, env=environment) for _ in range(2)]
    assert runs[1].returncode == 0, runs[1].stderr
    assert not any("Traceback" in done.stderr for done in runs)
    assert would_run(copy, *CONFIG, env=environment) == {}
    assert differences(whole, artifacts(copy / "results")) == []
    assert all(written_at(path) >= edited_at for path in (copy / "results").glob(WRITTEN[command]))


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["a {x} b", "it's", "a\nb", "100%s $HOME `id`"])
def test_a_campaign_is_planned_or_refused_in_a_folder_of_any_name(planned, tmp_path, name):
    (tmp_path / "around").mkdir()
    folder = reduced(tmp_path / "around" / name)
    done = snakemake(folder, *CONFIG)
    assert "Traceback" not in done.stdout + done.stderr
    if done.returncode == 0:
        assert would_run(folder, *CONFIG) == {}
        assert differences(artifacts(planned / "results"), artifacts(folder / "results")) == []
    else:
        assert not (folder / "results").exists()
    assert [path.name for path in (tmp_path / "around").iterdir()] == [name]


TRUNCATED, FLIPPED = "truncated", "flipped"


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == TRUNCATED:
        path.write_bytes(content[: len(content) * 2 // 3])
    else:
        middle = len(content) // 2  # not a digit: the last one of a number may be beyond its precision
        content[next((n for n in range(middle, len(content)) if bytes([content[n]]).isalpha()), middle)] ^= 1
        path.write_bytes(content)


DAMAGED = [
    "*/config/plan.yaml",
    "graphs/*/segments.parquet",
    "*/partition/partitions.parquet",
    "*/search/forward-mlp-allreduce/candidates.parquet",
    "*/pipeline/iteration.parquet",
    "*/plan/fastest.json",
    "*/report/figures/search.pdf",
    "*/report/timelines/fastest.svg",
    "*/report/data/power.csv",
    "*/report/fleets.manifest.json",
    "campaigns/reduced/campaign.parquet",
    "campaigns/reduced/report/workloads/*/page.html",
    "measurements/*/instructions_*/measurements.parquet",
]
"""One file of each kind."""


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param((TRUNCATED, FLIPPED), id="either"),
        pytest.param((FLIPPED, TRUNCATED), id="the-other", marks=pytest.mark.acceptance),
    ],
)
def test_what_is_damaged_is_named_and_made_again(copy, ways):
    whole, before = artifacts(copy / "results"), files_of(copy)
    damaged = [next((copy / "results").glob(pattern)) for pattern in DAMAGED]
    for path, how in zip(damaged, itertools.cycle(ways), strict=False):
        damage(path, how)
    dry = snakemake(copy, "-n", *CONFIG)
    assert all(f"{path.relative_to(copy)}: damaged" in dry.stdout + dry.stderr for path in damaged), dry.stderr
    assert all(path.read_bytes() != before[path] for path in damaged)
    done = snakemake(copy, *CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert would_run(copy, *CONFIG) == {}
    assert differences(whole, artifacts(copy / "results")) == []
    aside = {path for path in files_of(copy) if path.suffix == ".damaged"}
    assert {path.parent.parent.parent.name for path in aside} == {"measurements"}
    assert set(files_of(copy)) - aside == set(before)


EXACT = (".yaml", ".csv")
"""What is the same bytes in each run."""
KINDS = (
    "workloads.parquet",
    "campaigns/*/campaign.parquet",
    "campaigns/*/report/index.html",
    "campaigns/*/report/data/comparison.csv",
    "campaigns/*/report/workloads/*/page.html",
    "graphs/*/config.yaml",
    "graphs/*/segments.parquet",
    "*/config/workload.yaml",
    "*/config/search.yaml",
    "*/partition/partitions.parquet",
    "*/schedule/space.parquet",
    "*/profile/components.parquet",
    "*/profile/*/trials.parquet",
    "*/search/backward-mlp-*/rounds.parquet",
    "*/frontier/microbatch.parquet",
    "*/pipeline/iteration.parquet",
    "*/plan/fastest.json",
    "*/engine/*/iterations.parquet",
    "*/emulate/*/fleet.parquet",
    "*/report/page.html",
    "*/report/summary.txt",
    "*/report/figures/iteration.pdf",
    "*/report/data/timeline.csv",
    "*/report/timelines/fastest.svg",
    "*/report/fleets.html",
)
"""All kinds of artifacts of a campaign."""


@pytest.mark.acceptance
@pytest.mark.parametrize("how", ["deleted", TRUNCATED, FLIPPED])
@pytest.mark.parametrize("pattern", KINDS)
def test_any_one_file_that_is_lost_or_spoilt_in_its_time_is_made_again(copy, pattern, how):
    """What damages one file alone is not found by what it does to others; disks do not change a file's time."""
    whole, before = artifacts(copy / "results"), files_of(copy)
    path = next((copy / "results").glob(pattern))
    time_ns = path.stat().st_mtime_ns
    if how == "deleted":
        path.unlink()
    else:
        damage(path, how)
        os.utime(path, ns=(time_ns, time_ns))
    done = snakemake(copy, *CONFIG)
    assert done.returncode == 0, done.stderr
    assert would_run(copy, *CONFIG) == {}
    assert differences(whole, artifacts(copy / "results")) == []
    after = files_of(copy)
    assert set(after) == set(before)
    assert path.suffix not in EXACT or after[path] == before[path]


@pytest.mark.acceptance
def test_a_damaged_plan_of_a_user_is_made_again_on_request(copy):
    name = f"results/{workload_of(copy).name}/plan/edp.json"
    assert snakemake(copy, name, *CONFIG).returncode == 0
    plan = copy / name
    time_ns, whole = plan.stat().st_mtime_ns, artifacts(copy / "results")
    damage(plan, TRUNCATED)
    os.utime(plan, ns=(time_ns, time_ns))
    assert would_run(copy, name, *CONFIG) == {"select_plan": 1}
    assert would_run(copy, *CONFIG) == {}
    assert snakemake(copy, name, *CONFIG).returncode == 0
    assert differences(whole, artifacts(copy / "results")) == []


def test_a_foreign_damaged_file_does_not_block_a_campaign(copy):
    report = workload_of(copy) / "report"
    content = (report / "data/power.parquet").read_bytes()
    (report / "data/mine.parquet").write_bytes(content[:-9])
    shutil.rmtree(copy / "results/campaigns/reduced/report/workloads")
    assert snakemake(copy, *CONFIG).returncode == 0
    assert would_run(copy, *CONFIG) == {}


def test_a_configuration_that_differs_is_written_again(copy):
    config = workload_of(copy) / "config"
    before = {name: (config / name).read_bytes() for name in ("plan.yaml", "search.yaml", "profile.yaml")}
    time_ns = (config / "search.yaml").stat().st_mtime_ns
    (config / "search.yaml").write_bytes(before["profile.yaml"])  # a sound one, of another stage
    (config / "plan.yaml").write_text("seed: 1\n")
    for name in ("search.yaml", "plan.yaml"):
        os.utime(config / name, ns=(time_ns, time_ns))
    assert would_run(copy, *CONFIG)["write_config"] == 2
    wrong = [str((config / name).relative_to(copy)) for name in ("search.yaml", "plan.yaml")]
    assert snakemake(copy, *wrong, *CONFIG).returncode == 0  # not what depends on them, which takes longer
    assert {name: (config / name).read_bytes() for name in before} == before


LOST = [
    "*/plan/fastest.json",
    "*/config/search.yaml",
    "*/config/plan.yaml",
    "*/emulate/*/hours.parquet",
    "*/engine/end-to-end/iterations.parquet",
    "*/report/manifest.json",
    "*/search",
    "campaigns/reduced/campaign.parquet",
    "workloads.parquet",
    "graphs",
]


def test_missing_files_are_noticed_from_the_results_alone(copy, caplog):
    for pattern in LOST:
        lost = next((copy / "results").glob(pattern))
        lost.rename(copy / "elsewhere")
        caplog.clear()
        with caplog.at_level("INFO"):
            assert main(["verify", str(copy / "results")]) == 1
        assert f"{lost}: missing: listed in reduced/outputs.json" in caplog.messages
        (copy / "elsewhere").rename(lost)
    assert main(["verify", str(copy / "results")]) == 0


def test_a_damaged_list_of_outputs_is_written_without_a_job(copy):
    (path,) = (copy / "results").glob("campaigns/*/outputs.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    done = snakemake(copy, *CONFIG)
    assert "Nothing to be done" in done.stderr
    assert "outputs.json: damaged" in done.stderr
    assert path.read_bytes() == whole


@pytest.mark.acceptance
def test_deleted_files_are_made_again_without_metadata(copy):
    before = files_of(copy)
    lost = sorted(before)[::2]
    for path in lost:
        path.unlink()
    shutil.rmtree(copy / ".snakemake")
    done = snakemake(copy, *CONFIG, "select=edp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workload_of(copy) / "plan/edp.json").is_file()
    assert {path.stem for path in before if not path.is_file()} <= {"fastest"}  # which is not asked for any more


def wait_until(pattern: str, folder: Path) -> None:
    """Until a file of that name is there."""
    for _ in range(1200):
        if next(folder.glob(pattern), None):
            return
        time.sleep(0.05)
    raise AssertionError(f"{pattern} did not come")


@pytest.fixture
def unsearched(copy) -> Path:
    """Of the campaign without its searches: a run measures candidates and goes on from there."""
    folder = workload_of(copy)
    shutil.rmtree(folder / "search")
    shutil.rmtree(folder / "logs/search")
    for kept in copy.glob("results/measurements/*/*-allreduce_*/*.parquet"):  # trials of the sweep are below
        kept.unlink()
    return copy


@pytest.mark.parametrize(
    ("sent", "moment"),
    [
        (signal.SIGKILL, "results/*/search/*/rounds.parquet"),
        pytest.param(signal.SIGINT, "results/*/logs/search/*.log", marks=pytest.mark.acceptance),
    ],
)
def test_a_stopped_run_completes_when_started_again(planned, unsearched, sent, moment):
    asked = (plan_of(unsearched), *CONFIG)
    assert kill(unsearched, lambda: wait_until(moment, unsearched), *asked, sent=sent) is not None
    complete(unsearched, planned, *asked)


@pytest.mark.acceptance
@pytest.mark.parametrize("moment", ["results/*/partition/partitions.parquet", "results/*/pipeline/iteration.parquet"])
def test_a_first_run_that_is_killed_completes_afterwards(planned, tmp_path, moment):
    folder = reduced(tmp_path)
    assert kill(folder, lambda: wait_until(moment, folder), *CONFIG) is not None
    complete(folder, planned, *CONFIG)


def complete(folder: Path, whole: Path, *asked: str) -> None:
    """Run again, and compare with what an undisturbed run made."""
    done = snakemake(folder, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert differences(artifacts(whole / "results"), artifacts(folder / "results")) == []


def test_a_run_in_a_folder_that_is_in_use_is_told_to_wait(planned):
    with lock_at_once(planned / RUN_LOCK):
        done = snakemake(planned, "--config", "campaign=quickstart")
    assert done.returncode != 0
    assert "kareus.lock: another run" in done.stderr


@pytest.mark.acceptance
def test_a_second_campaign_in_a_folder_is_told_to_wait(planned, unsearched):
    with subprocess.Popen(command(*CONFIG), cwd=unsearched, stderr=subprocess.DEVNULL) as first:
        wait_until("results/*/logs/search/*.log", unsearched)
        second = snakemake(unsearched, "--config", "campaign=quickstart")
        assert first.wait(timeout=240) == 0
    assert second.returncode != 0
    assert "kareus.lock: another run" in second.stderr
    assert differences(artifacts(planned / "results"), artifacts(unsearched / "results")) == []


@pytest.mark.parametrize(
    ("campaign", "text", "message"),
    [
        ("testbet", None, "campaign testbet: not known; perhaps you meant testbed"),
        ('testbed overrides=["gpu=h200', None, "No closing quotation; write a list, as"),
        pytest.param("testbed select=[]", None, "select: no selector; give at least one", marks=pytest.mark.acceptance),
        ('testbed select=["fastest","fastest"]', None, "select: 'fastest' is given twice; leave one"),
        ("mine", "workloads: microbatch_size=8", "config/campaign/mine.yaml: workloads: expected a list"),
    ],
)
def test_a_campaign_that_cannot_be_used_is_refused_in_one_line(tmp_path, campaign, text, message):
    folder = checkout(tmp_path)
    if text:
        (folder / f"config/campaign/{campaign}.yaml").write_text(text)
    done = snakemake(folder, "-n", "--config", *f"campaign={campaign}".split())
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_an_impossible_point_is_refused_before_measuring(tmp_path):
    done = snakemake(checkout(tmp_path), "-n", "results/llama3.2-3b_pp2-tp8_mbs8_seq4096_a100/plan/deadlin=5.2s.json")
    assert done.returncode != 0
    assert "deadlin=5.2s" in done.stderr + done.stdout
    assert "not understood; perhaps you meant deadline; allowed: fastest" in done.stderr + done.stdout
