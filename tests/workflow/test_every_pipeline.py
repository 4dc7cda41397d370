"""Every pipeline, planned through all stages for a small workload, from configuration to checked plan and page."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from helpers.builders import resealed
from helpers.figures import save_empty

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.tables import read_table
from kareus.cli import COMMANDS, main
from kareus.frontiers.tables import MICROBATCH
from kareus.graph.records import UPDATING
from kareus.partition.names import expected_partitions
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION
from kareus.plans.planning import plan_tables
from kareus.report.workload.timeline import LETTERS
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import SLICES, PlanSlice, slice_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STAGES, MICROBATCHES = 4, 4
UPDATES = STAGES + 2
"""Instructions of the update: one on every stage, and an exchange of tied embeddings on the first and the last."""
PLANNED = [schedule for schedule in PipelineSchedule if schedule is not PipelineSchedule.DUALPIPE_V]
"""Of the two in a V one."""
SMALL = (
    *(f"parallelism.{key}" for key in (f"pp={STAGES}", "tp=4")),
    *(f"model.{key}" for key in ("num_layers=8", "vocab_size=8192")),
    *(f"search.{size}.{key}" for size in ("medium", "large") for key in ("initial=6", "max_rounds=0")),
    f"num_microbatches={MICROBATCHES}",
    "microbatch_size=2",
    "search=random",
    "gpu.search_frequencies.stride_mhz=255",
    "pipeline.deadlines=3",
)
"""Three clocks, a few candidates of each partition, three plans."""


def run(command: str, *arguments: str | Path, **files: Path) -> None:
    force = [] if command == "check-plan" else ["--force"]  # as the rules do: it makes folders, too
    words = [command] if command in COMMANDS else ["stage", command]
    assert main([*words, *map(str, arguments), *(f"--{name}={path}" for name, path in files.items()), *force]) == 0


def planned(results: Path, pipeline: str) -> Path:
    """Run every stage as the rules do; the folder of the workload."""
    ((name, workload),) = resolve_accepted([f"pipeline={pipeline}", *SMALL], ROOT / "config").items()
    folder, store = results / name, results / "measurements"
    config = {stage: folder / "config" / f"{stage}.yaml" for stage in SLICES}
    (folder / "config").mkdir(parents=True)
    for stage, path in config.items():
        path.write_text(slice_text(workload, stage))
    segments, partitions = (folder / "partition" / f"{table}.parquet" for table in ("segments", "partitions"))
    space, microbatch = folder / "schedule/space.parquet", folder / "frontier/microbatch.parquet"
    components, whole = (folder / "profile" / f"{table}.parquet" for table in ("components", "instructions"))
    instructions, iteration = (folder / "pipeline" / f"{table}.parquet" for table in ("instructions", "iteration"))
    searches = [folder / "search" / partition for partition in expected_partitions(workload)]
    candidates, rounds, proposals = (
        [path / f"{table}.parquet" for path in searches] for table in ("candidates", "rounds", "proposals")
    )
    plan = folder / "plan/fastest.json"

    run("partition", config=config["partition"], segments=segments, partitions=partitions)
    run("schedule", config=config["schedule"], partitions=partitions, space=space)
    run("profile", config=config["profile"], segments=segments, store=store, components=components, instructions=whole)
    for path, found, in_rounds, proposed in zip(searches, candidates, rounds, proposals, strict=True):
        inputs = {"config": config["search"], "partitions": partitions, "space": space, "store": store}
        run("search", f"--partition={path.name}", **inputs, candidates=found, rounds=in_rounds, proposals=proposed)
    inputs = {"config": config["frontier"], "segments": segments, "components": components, "instructions": whole}
    run("frontier", "--candidates", *candidates, **inputs, microbatch=microbatch)
    run("pipeline", config=config["pipeline"], microbatch=microbatch, instructions=instructions, iteration=iteration)
    run("select", "fastest", folder)
    run("check-plan", plan)
    tables = {"iteration": iteration, "microbatch": microbatch, "plans": plan}
    run(
        "report",
        f"--title={name}",
        "--candidates",
        *candidates,
        "--rounds",
        *rounds,
        "--proposals",
        *proposals,
        **tables,
        config=config["plan"],
        output=folder / "report",
    )
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of workloads by pipeline; figures take three quarters of the time: `tests/report` draws them."""
    results = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kareus.report.page.save", save_empty)
        return {str(schedule): planned(results, schedule) for schedule in PLANNED}


@pytest.mark.parametrize("pipeline", PLANNED)
def test_every_instruction_is_planned_with_points_of_its_own(folders, pipeline):
    folder, chunks = folders[pipeline], 2 if pipeline is PipelineSchedule.INTERLEAVED or pipeline.folds else 1
    split = ("forward", "input-gradient", "weight-gradient")
    updates = STAGES if pipeline.folds else UPDATES  # in a V one stage has both ends
    directions = split if pipeline.splits_backward else ("forward", "backward")
    instructions = read_table(folder / "pipeline/instructions.parquet", INSTRUCTIONS)
    assert len(instructions) == STAGES * chunks * MICROBATCHES * len(directions) + updates
    iteration = read_table(folder / "pipeline/iteration.parquet", ITERATION)
    assert iteration["points"].list.len().unique().to_list() == [len(instructions)]
    microbatch = read_table(folder / "frontier/microbatch.parquet", MICROBATCH)
    for (method,), points in microbatch.group_by("method"):
        kinds = points.select("stage", "chunk", "direction").unique()
        assert len(kinds) == STAGES * chunks * len(directions) + updates, method
    assert set(microbatch["direction"]) == {*directions, *(() if pipeline.folds else ("embedding-exchange",)), "update"}


@pytest.mark.parametrize("pipeline", PLANNED)
def test_the_page_draws_the_plan_of_every_pipeline(folders, pipeline):
    page = (folders[pipeline] / "report/page.html").read_text()
    plan = json.loads((folders[pipeline] / "plan/fastest.json").read_text())
    drawn = json.loads(re.search(r'"plan":\{"stage":\[[\d,]*\],"label":(\[[^]]*\])', page)[1])
    assert drawn == [
        LETTERS[instruction["direction"]]
        if instruction["direction"] in UPDATING
        else f"{LETTERS[instruction['direction']]}{instruction['microbatch']}"
        + (f".{instruction['chunk']}" if pipeline is PipelineSchedule.INTERLEAVED or pipeline.folds else "")
        for stage in plan["stages"]
        for instruction in stage["instructions"]
    ]
    assert "simulated testbed" in page


@pytest.mark.parametrize(
    ("pipeline", "number", "change", "message"),
    [
        ("interleaved", 1, {"chunk": 1}, "stage 0 departs from the interleaved order at instruction 1"),
        ("gpipe", 1, {"microbatch": 2}, "stage 0 departs from the gpipe order at instruction 1"),
        ("zb-h1", -3, {"execution": "overlap"}, "weight-gradient of microbatch 3: execution 'overlap' is not possible"),
    ],
)
def test_a_plan_that_departs_from_its_pipeline_is_refused(folders, tmp_path, capsys, pipeline, number, change, message):
    plan = json.loads((folders[pipeline] / "plan/fastest.json").read_text())
    plan["stages"][0]["instructions"][number].update(change)
    (tmp_path / "plan.json").write_text(json.dumps(resealed(plan)))
    assert main(["check-plan", str(tmp_path / "plan.json"), f"--folder={folders[pipeline]}"]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_python_plans_what_the_stages_plan(folders):
    folder = folders["1f1b"]
    frontiers = plan_tables(load_slice(folder / "config/plan.yaml", PlanSlice).workload).frontiers
    assert frontiers.microbatch.equals(read_table(folder / "frontier/microbatch.parquet", MICROBATCH))
    assert frontiers.iteration.equals(read_table(folder / "pipeline/iteration.parquet", ITERATION))


def fastest_s(folder: Path, method: str) -> float:
    iteration = read_table(folder / "pipeline/iteration.parquet", ITERATION)
    return min(iteration.filter(pl.col("method") == method)["time_s"])


def test_schedules_with_smaller_bubbles_are_faster(folders):
    """Four microbatches on four stages wait much."""
    kareus = {pipeline: fastest_s(folder, "kareus") for pipeline, folder in folders.items()}
    assert kareus["zb-h1"] < kareus["1f1b"]
    assert kareus["interleaved"] < kareus["1f1b"]
    assert kareus["gpipe"] == pytest.approx(kareus["1f1b"], rel=0.05)


def test_a_split_backward_takes_as_long_as_a_whole_one(folders):
    """Sequentially, the collectives of a whole backward run beside its weight gradients, those of a split one alone."""

    def seconds(pipeline: str, *directions: str) -> float:
        points = read_table(folders[pipeline] / "frontier/microbatch.parquet", MICROBATCH)
        own = points.filter(
            (pl.col("method") == "sequential") & (pl.col("stage") == 1) & (pl.col("frequency_mhz") == 1410)
        )
        return sum(own.filter(pl.col("direction").is_in(directions))["time_s"])

    whole_s, split_s = seconds("1f1b", "backward"), seconds("zb-h1", "input-gradient", "weight-gradient")
    assert whole_s < split_s < 1.5 * whole_s
