"""A small campaign with everything in it: two planned workloads, a refused one, a fleet and a sweep of the profiler."""

from pathlib import Path

import pytest
from test_fleets_page import cap_rows, fleet_rows, hour_rows, straggler_row
from test_report_stage import arguments

from helpers.figures import save_empty
from helpers.report_tables import SIMULATED, WORKLOAD, Names, config_text, with_runs, write_inputs
from kareus.artifacts.files import write_text
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import write_table
from kareus.campaign.config import CAMPAIGN
from kareus.cli import main
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.profile.tables import TRIALS
from kareus.report import page
from kareus.workload.tables import WORKLOADS

CAMPAIGN_NAME = "mine"
OTHER, REFUSED, EMULATED = "other_pp2-tp8", "huge_pp2-tp8", "fleets_pp2-tp8"
REASON = "microbatch_size=16: out of memory, by 3.1 GiB; `kareus resolve` says what would fit"
PROVENANCE = Provenance(config_hash="0123456789abcdef", testbed=SIMULATED, seed=7)
SHAPE = {"model": "tiny", "gpu": SIMULATED.gpu, "parallelism": "pp2-tp8", "sequence_length": 4096, "overrides": []}


def member(part: str, kind: str, workload: str, **changes: object) -> dict:
    row = {"part": part, "kind": kind, "workload": workload, "name": None, "refusal": None, **SHAPE}
    return row | {"microbatch_size": 8, "num_microbatches": 2, "gpus": 16} | changes


MEMBERS = [
    member("testbed", "workload", WORKLOAD),
    member("testbed", "workload", REFUSED, microbatch_size=16, refusal=REASON),
    member("sensitivity", "workload", WORKLOAD),
    member("sensitivity", "workload", OTHER, microbatch_size=12),
    member("emulation", "fleet", EMULATED, name="small", num_microbatches=8, gpus=32),
    member("profiler", "sweep", WORKLOAD, name="window"),
    member("profiler", "sweep", WORKLOAD, name="cooldown"),
]
ENERGIES_J = (0.98, 1.0, 1.02)
"""Of the trials under every protocol."""


def trial_rows(sweep: str) -> list[dict]:
    protocols = [(2.0, 5.0), (5.0, 5.0)] if sweep == "window" else [(5.0, 0.0), (5.0, 2.0), (5.0, 5.0)]
    return [
        {
            "partition": "forward-mlp-allreduce",
            "frequency_mhz": 1410,
            "window_s": window_s,
            "cooldown_s": cooldown_s,
            "settle_s": 0.0,
            "trial": trial,
            "time_s": 0.002,
            "energy_j": energy_j,
            "repetitions": 100,
            "temperature_before_c": 40.0 + trial - cooldown_s,
            "temperature_after_c": 50.0 + window_s,
            "clock_mean_mhz": 1410.0,
            "throttle_reasons": [],
            "duration_s": window_s + cooldown_s,
            "reference_energy_j": 0.99,
        }
        for window_s, cooldown_s in protocols
        for trial, energy_j in enumerate(ENERGIES_J)
    ]


def write_campaign(results: Path) -> Path:
    """Write a results folder with the reports of all members; the folder of the campaign's."""
    write_table(results / "workloads.parquet", WORKLOADS.frame([]), WORKLOADS, PROVENANCE)
    write_table(results / f"campaigns/{CAMPAIGN_NAME}/campaign.parquet", CAMPAIGN.frame(MEMBERS), CAMPAIGN, PROVENANCE)
    with pytest.MonkeyPatch.context() as patch:  # figures of workloads are tested elsewhere, and take their time
        patch.setattr(page, "save", save_empty)
        for workload in (WORKLOAD, OTHER):
            folder = results / workload
            paths = with_runs(write_inputs(folder, Names(workload=workload)), folder)
            assert main(arguments(paths, folder / "report", workload)) == 0
        write_fleet(results / EMULATED)
    for sweep in ("window", "cooldown"):
        path = results / WORKLOAD / "profile" / sweep / "trials.parquet"
        write_table(path, TRIALS.frame(trial_rows(sweep)), TRIALS, PROVENANCE)
    return results / "campaigns" / CAMPAIGN_NAME / "report"


def write_fleet(folder: Path) -> None:
    """Write the report of the fleet `small`, and of one that is not of the campaign."""
    words = ["stage", "report-fleets", "--title", EMULATED, "--output", str(folder / "report")]
    write_text(folder / "config/plan.yaml", config_text())
    words += ["--config", str(folder / "config/plan.yaml")]
    tables = {
        "--fleet": (FLEET, fleet_rows),
        "--stragglers": (STRAGGLERS, lambda name: [straggler_row(name)]),
        "--power-caps": (POWER_CAPS, cap_rows),
        "--hours": (HOURS, hour_rows),
    }
    for option, (schema, rows) in tables.items():
        paths = [folder / f"emulate/{name}/{schema.name}.parquet" for name in ("small", "large")]
        for path in paths:
            write_table(path, schema.frame(list(rows(path.parent.name))), schema, PROVENANCE)
        words += [option, *map(str, paths)]
    assert main(words) == 0
