"""Figures with a unit in the prose of README.md and how-tos: each is of the code, of data, or of a page it links to.

What a how-to says that a command printed stands in a block of text below the command: test_printed_commands.py.
"""

import re
from pathlib import Path

import pytest
import yaml

import trainers
from kareus.adapters.governor import LEAST_SLOWDOWN
from kareus.adapters.online import LEAST_OF_ASKED
from kareus.adviser.order import FULL_SHARE
from kareus.calibrate.heat import STEP_S, STEPS
from kareus.doctor.change_timing import PERIODS_S
from kareus.pareto import AS_FAST
from kareus.plans.grid_power import WINDOW_S
from kareus.prediction.errors import SHARE
from kareus.progress.shows import Lines

DOCS = Path(__file__).parents[2] / "docs"
SLURM = (DOCS / "howto/slurm.md").read_text()
NEAR_LEAST = f"{100 * AS_FAST:g} %"
MOST_LATER = f"{100 * (trainers.SHARES['5 % slower'] - 1):.0f} %"
ELSEWHERE = (
    r"For the default workload .*? more energy",
    r"the plan of the least time of the default workload .*? kJ \(simulated\)",
    r"may take 4\.8 s, it needs \d+ % less energy",
    r"on H100 with Megatron-Core are within [\d.]+ % in nine of ten cases",
    r"\((?:(?:tp|cp|pp|dp|shards|chunks)\d+-?)+\*?, [\d.]+ s\)",
)
"""Sentences that test_readme.py has, one of test_fidelity_tables.py, and cells of a table of test_doc_tables.py."""
COUNTER_S = 0.1
"""After which the driver updates the energy counter (docs of `EnergyMeter`, kareus/device/protocol.py)."""
WINDOWS_S = yaml.safe_load((DOCS.parent / "config/sweep/settling.yaml").read_text())["windows_s"]
PERIODS = [f"{1000 * seconds:g}" for seconds in PERIODS_S]
SLURM_ROWS = [
    (rules, times, memory)
    for rules, _, times, memory in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", SLURM, flags=re.M)[2:]
]
"""Rules, longest times and memory in the table of resources."""
HELD = {
    "../README.md": (
        f"at most {200 * AS_FAST:g} % slower, and at most {MOST_LATER} (simulated",  # than plans, than the trainer
        f"`*`: over {100 * FULL_SHARE:g} % of a GPU's memory by the estimate",
    ),
    "howto/advise.md": (
        f"where that saves {NEAR_LEAST}",
        f"more than {100 * FULL_SHARE:g} % of a GPU's memory",
        "the first choice is 4.4 % slower than the best on average, the best of the first three 0.3 %",
    ),
    "howto/campaigns.md": (f"windows of up to {max(WINDOWS_S)} s",),
    "howto/doctor.md": (f"every {', '.join(PERIODS[:-1])} and {PERIODS[-1]} ms",),
    "howto/fsdp.md": (f"allows {MOST_LATER} more time than the trainer's own execution",),
    "howto/gpu.md": (f"{STEPS * STEP_S:g} s of load, then {STEPS * STEP_S:g} s of rest",),
    "howto/hugging_face.md": (f"takes less than {2 * COUNTER_S:g} s, give more steps",),
    "howto/online.md": (
        f"at least {100 * (LEAST_SLOWDOWN - 1):.0f} % longer for its plan",
        f"a clock is {100 * (1 - LEAST_OF_ASKED):.0f} % below what was asked for",
    ),
    "howto/points.md": (
        f"the least energy within {NEAR_LEAST} of the least time",
        f"`fastest` allows {NEAR_LEAST} because",
        f"within {NEAR_LEAST} of the time of the fastest precomputed plan",
        f"means over windows of {WINDOW_S:g} s",
        "Rows of 5 or 15 minutes become means of hours, a row of a day stands for its 24 hours",  # of the calendar
    ),
    "howto/progress.md": (f"every {Lines.every_s:g} s what is running",),
    "howto/report.md": (f"may take {NEAR_LEAST} longer",),
    "howto/slurm.md": tuple(f"| {times} | {memory} |" for _, times, memory in SLURM_ROWS),
    "howto/trainer.md": (f"with a chance of {100 * SHARE:.0f} %",),
}
"""What holds the percentages of a page: parts of its sentences that have them."""
RESEARCH = {"howto/advise.md": ("research/ranking.md", ("4.4 %", "0.3 %"))}
"""Percentages that a page of research has measured, which the how-to links to."""
PAGES = ["../README.md", *sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("howto/*.md"))]


def prose(name: str) -> str:
    text = re.sub(r"^```.*?^```$", "", (DOCS / name).read_text(), flags=re.S | re.M)
    return " ".join(text.split())


UNITS = "%|s|ms|seconds?|minutes|hours|min|h|days|J|kJ|MJ|kWh|MWh|W|kW|MW|GB|GiB|TB|MHz|degC|points?"


@pytest.mark.parametrize("name", PAGES)
def test_a_figure_in_prose_is_held_by_something(name):
    text = re.sub("|".join(ELSEWHERE), "", prose(name))
    for part in HELD.get(name, ()):
        assert part in text
        text = text.replace(part, "")
    assert re.findall(rf".{{0,40}}\d (?:{UNITS})(?![\w/-]).{{0,20}}", re.sub(r"`[^`]*`", "", text)) == []


def test_the_table_of_what_slurm_gives_is_its_profile():
    profile = yaml.safe_load((DOCS.parent / "profiles/slurm/profile.yaml").read_text())
    usual = dict(entry.split("=", 1) for entry in profile["default-resources"])
    for rules, times, memory in SLURM_ROWS:
        asked = [usual | profile["set-resources"].get(rule, {}) for rule in re.findall("`(.+?)`", rules) or ["others"]]
        minutes, megabytes = ([int(str(a[key]).split()[0]) for a in asked] for key in ("runtime", "mem_mb"))
        shown = [f"{m // 60} h" if m >= 60 else f"{m} min" for m in minutes]
        assert times == ", ".join(shown if len(set(shown)) > 1 else shown[:1])
        assert {memory.partition(" (")[0]} == {f"{m // 1000} GB" for m in megabytes}
    extraction = profile["set-resources"]["extract_partitions"]["mem_mb"].split()[0]
    assert SLURM_ROWS[-1][2].endswith(f"(extraction {int(extraction) // 1000} GB)")


@pytest.mark.parametrize("name", RESEARCH)
def test_a_percentage_of_research_stands_on_its_page(name):
    page, figures = RESEARCH[name]
    assert f"(../{page}" in (DOCS / name).read_text()
    measured = prose(page)
    assert [figure for figure in figures if figure not in measured] == []
