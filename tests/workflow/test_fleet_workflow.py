"""Fleets by the workflow: the sizes share one search, and the smallest pipeline gains what the paper says it does."""

import pytest
from helpers.preloaded import snakemake, would_run

from kareus.artifacts.tables import read_table
from kareus.emulate.tables import FLEET, HOURS
from kareus.pipeline.compare import compare_methods
from runs.checkout import checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAME = "llama3.3-70b_pp10-tp8_mbs4_seq4096_a100_noupdate"
FLEETS = "--config", "campaign=emulation"
SMALLEST = (*FLEETS, "overrides=emulation=10240gpus")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The fleet with the fewest microbatches; the folder has everything but the other sizes.

    Stragglers and caps of power take most of the time: a smaller fleet below has them.
    """
    folder = checkout(tmp_path_factory.mktemp("emulated"))
    config = folder / "config/emulation/10240gpus.yaml"
    short = config.read_text().replace("[1.1, 1.2]", "[]").replace("[60%, 55%]", "[]")
    config.write_text(short.replace("deadlines: 20", "deadlines: 4"))
    done = snakemake(folder, *SMALLEST)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_four_sizes_are_four_jobs_and_one_search_each(tmp_path):
    rules = would_run(checkout(tmp_path), *FLEETS)
    assert (rules["emulate_fleet"], rules["report_fleets"]) == (4, 1)
    assert (rules["search_partition"], rules["extract_partitions"], rules["compose_frontiers"]) == (4, 1, 1)
    assert "solve_pipeline" not in rules


def test_sizes_with_the_update_are_workloads_of_their_own(tmp_path):
    config = 'overrides=["emulation=10240gpus,5120gpus","iteration.include_update=true"]'
    rules = would_run(checkout(tmp_path), *FLEETS, config)
    assert (rules["emulate_fleet"], rules["report_fleets"], rules["compose_frontiers"]) == (2, 2, 2)
    assert "solve_pipeline" not in rules


def test_other_sizes_need_no_search(emulated):
    rules = would_run(emulated, *FLEETS)
    assert (rules["emulate_fleet"], rules["report_fleets"]) == (3, 1)
    assert not {"search_partition", "compose_frontiers"} & set(rules)


def test_another_straggler_reruns_emulation_alone(emulated):
    rules = would_run(emulated, *FLEETS, 'overrides=["emulation=10240gpus","emulation.stragglers=[1.3]"]')
    assert rules == {"all": 1, "resolve_campaign": 1, "emulate_fleet": 1, "report_fleets": 1, "report_campaign": 1}


def test_nothing_is_left_to_do_afterwards(emulated):
    assert would_run(emulated, *SMALLEST) == {}


def test_gains_are_of_the_size_that_the_paper_emulated(emulated):
    """Paper, section 6.3, 16 microbatches: M+P 0.0 % of time and 15.0 % of energy, Kareus 9.3 % and 20.2 %."""
    plans = read_table(emulated / "results" / NAME / "emulate/10240gpus/fleet.parquet", FLEET)
    found = {row.method: (row.time_reduction_percent, row.energy_reduction_percent) for row in compare_methods(plans)}
    assert found["sequential+perseus"] == (pytest.approx(0.0, abs=2), pytest.approx(15.0, abs=5))
    assert found["kareus"] == (pytest.approx(9.3, abs=4), pytest.approx(20.2, abs=4))
    assert "simulated testbed" in (emulated / "results" / NAME / "report/fleets.txt").read_text()


def test_editing_a_series_reruns_its_fleet(emulated):
    (emulated / "prices.csv").write_text("hour,price_per_kwh\n0,0.3\n1,0.1\n")
    overrides = "emulation.series=prices.csv", "emulation.iterations=200", "emulation.deadlines=3"
    short = "emulation.stragglers=[1.2]", "emulation.power_caps=[55%]", "emulation.num_microbatches=2"
    config = f"overrides={['emulation=10240gpus', *overrides, *short]}"
    done = snakemake(emulated, "--until", "emulate_fleet", *FLEETS, config)
    assert done.returncode == 0, done.stdout + done.stderr
    (hours,) = (emulated / "results" / NAME / "emulate").glob("10240gpus_*/hours.parquet")
    assert set(read_table(hours, HOURS)["policy"]) == {"hourly", "steady"}
    (emulated / "prices.csv").write_text("hour,price_per_kwh\n0,0.1\n1,0.3\n")
    assert would_run(emulated, *FLEETS, config)["emulate_fleet"] == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("emulation=10241gpus", "perhaps you meant 10240gpus"),
        ("emulation.pipelines=0", "pipelines=0: must be greater than 0"),
    ],
)
def test_a_fleet_that_cannot_be_emulated_is_refused_in_one_line(tmp_path, override, message):
    done = snakemake(checkout(tmp_path), "-n", *FLEETS, f"overrides={override}")
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
