"""The tables of a campaign, one row for each thing compared; `sheets.py` shows them in the paper's form."""

from collections.abc import Iterator

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import Row, TableSchema
from kareus.pipeline.compare import compare_methods
from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.workload.effort import SearchEffort, search_efforts
from kareus.report.workload.tables import COMPARISON, FLEET_COMPARISON, PASSES, PROFILER, SEARCH_TIME

SHAPE = ("model", "gpu", "parallelism", "microbatch_size", "sequence_length", "num_microbatches", "gpus")


def campaign_tables(inputs: CampaignInputs) -> list[tuple[TableSchema, pl.DataFrame]]:
    """Every table of a campaign with its schema, some of them without rows."""
    rows = {
        COMPARISON: _comparison(inputs),
        FLEET_COMPARISON: _fleet_comparison(inputs),
        PASSES: _passes(inputs),
        SEARCH_TIME: _search_time(inputs),
        PROFILER: _profiler(inputs),
    }
    return [(schema, schema.frame(list(table_rows))) for schema, table_rows in rows.items()]


def _comparison(inputs: CampaignInputs) -> Iterator[Row]:
    for member in inputs.of_kind("workload"):
        iteration = inputs.iteration[member["workload"]]
        ran = {run.method: run for run in inputs.runs[member["workload"]]}
        for row in inputs.savings[member["workload"]].iter_rows(named=True):
            run = ran.get(row["method"])
            yield {
                **_of(member, iteration),
                **{name: member[name] for name in SHAPE},
                **row,
                "ran_time_percent": run.time_percent if run else None,
                "ran_energy_percent": run.energy_percent if run else None,
            }


def _fleet_comparison(inputs: CampaignInputs) -> Iterator[Row]:
    for member in inputs.of_kind("fleet"):
        fleet = inputs.fleet[member["workload"], member["name"]]
        pipelines = fleet["pipelines"][0]
        for row in compare_methods(fleet):
            yield {
                **_of(member, fleet),
                "fleet": member["name"],
                **{name: member[name] for name in SHAPE},
                "pipelines": pipelines,
                "global_batch_size": pipelines * member["num_microbatches"] * member["microbatch_size"],
                **to_plain(row),
            }


def _of(member: Row, labelled: pl.DataFrame) -> Row:
    return {"part": member["part"], "workload": member["workload"], "testbed": labelled["testbed"][0]}


def _efforts(inputs: CampaignInputs) -> Iterator[tuple[Row, SearchEffort]]:
    """Yield the search effort of every partition of every workload."""
    for workload, searches in inputs.searches.items():
        of = {"workload": workload, "testbed": inputs.iteration[workload]["testbed"][0]}
        yield from ((of | {"partition": effort.partition}, effort) for effort in search_efforts(searches)[1:])


def _passes(inputs: CampaignInputs) -> Iterator[Row]:
    for of, effort in _efforts(inputs):
        for choice in effort.passes:
            yield of | {"chosen_by": choice.name, "measured": choice.measured, "on_frontier": choice.on_frontier}


def _search_time(inputs: CampaignInputs) -> Iterator[Row]:
    for of, effort in _efforts(inputs):
        yield of | {
            name: getattr(effort, name)
            for name in ("measured", "on_frontier", "profiling_s", "looking_s", "optimisation_s", "strategy", "gpu_s")
        }


def _profiler(inputs: CampaignInputs) -> Iterator[Row]:
    for member in inputs.of_kind("sweep"):
        trials = inputs.trials[member["workload"], member["name"]]
        energy = pl.col("energy_j")
        protocols = trials.group_by("partition", "window_s", "cooldown_s", maintain_order=True).agg(
            trials=pl.len(),
            energy_mean_j=energy.mean(),
            energy_least_j=energy.min(),
            energy_most_j=energy.max(),
            energy_deviation_percent=100 * energy.std() / energy.mean(),
            temperature_before_c=pl.col("temperature_before_c").mean(),
            temperature_after_c=pl.col("temperature_after_c").mean(),
            reference_energy_j=pl.col("reference_energy_j").first(),
            warm_energy_mean_j=pl.col("warm_energy_j").mean(),
            warm_reference_energy_j=pl.col("warm_reference_energy_j").first(),
            duration_mean_s=pl.col("duration_s").mean(),
        )
        of = _of(member, trials) | {"sweep": member["name"]}
        yield from (of | row for row in protocols.iter_rows(named=True))
