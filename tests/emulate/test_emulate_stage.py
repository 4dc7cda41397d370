"""`kareus emulate` on the command line: Hydra overrides and sweeps in, tables out, one line for what is wrong."""

import polars as pl
import pytest
import yaml
from helpers.fleets import CONFIG, fleet, with_small, write_microbatch

from kareus.artifacts.tables import read_provenance, read_table
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import main
from kareus.emulate.resolve import resolve_fleets
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ConfigError, KareusError, RefusedWorkloadError
from kareus.plans.units import scaled
from kareus.workload.model_flops import mfu

SIZES = "10240gpus,5120gpus,2560gpus,1280gpus"


def emulate(results, *overrides):
    return main(["emulate", *with_small(*overrides), "--results", str(results), "--config-dir", str(CONFIG)])


@pytest.fixture
def results(tmp_path):
    write_microbatch(tmp_path, fleet())
    return tmp_path


def test_the_sizes_are_the_rows_of_the_paper():
    fleets = resolve_fleets([SIZES], CONFIG)
    found = [(f.gpus, f.emulation.pipelines, f.emulation.num_microbatches, f.workload.microbatch_size) for f in fleets]
    assert found == [(10240, 128, 16, 4), (5120, 64, 32, 4), (2560, 32, 64, 4), (1280, 16, 128, 4)]
    assert {f.workload_name for f in fleets} == {"llama3.3-70b_pp10-tp8_mbs4_seq4096_a100_noupdate"}
    assert {f.workload.model.name for f in fleets} == {"llama3.3-70b"}
    assert {(f.pipeline.num_microbatches, f.pipeline.parallelism.dp) for f in fleets} == {
        (n, 1) for n in (16, 32, 64, 128)
    }


def test_every_option_composes_alone():
    for path in (CONFIG / "emulation").glob("*.yaml"):
        assert yaml.safe_load(path.read_text())
        (one,) = resolve_fleets([path.stem], CONFIG)
        assert one.name == ("640gpus" if path.stem == "fleet" else path.stem)


def names(*overrides):
    return [f.name for f in resolve_fleets(list(overrides), CONFIG)]


def test_a_fleet_is_named_after_what_differs_from_its_option():
    found = names("1280gpus", "emulation.pipelines=16,8", "emulation.stragglers=[],[1.5]")
    assert len(set(found)) == 4
    assert [name.rpartition("_")[0] for name in found] == ["1280gpus"] * 2 + ["640gpus-as-1280gpus"] * 2
    assert names("1280gpus", "emulation.deadlines=30") == ["1280gpus_deadlines-30"]


def test_a_fleet_is_named_after_its_true_size():
    small = "model=qwen3-1.7b", "parallelism=tp8"
    assert names("fleet", "emulation.gpus=256,512", *small) == ["256gpus", "512gpus"]
    assert names("fleet", "emulation.gpus=256", "emulation.num_microbatches=32", *small) == [
        "256gpus_num-microbatches-32"
    ]
    assert names("fleet", "emulation.gpus=1280", *small) == ["1280gpus-fleet"]  # the option 1280gpus is another
    assert names("1280gpus", *small) == ["256gpus-as-1280gpus"]


def test_a_fleet_may_be_asked_for_by_its_gpus():
    (one,) = resolve_fleets(["fleet", "emulation.gpus=256", "model=qwen3-1.7b", "parallelism=tp8"], CONFIG)
    assert (one.gpus, one.pipelines, one.workload.parallelism.gpus) == (256, 16, 16)


def test_a_sweep_writes_the_tables_of_every_fleet(results, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("hour,price_per_kwh\n0,0.3\n1,0.1\n")
    write_microbatch(results, fleet())
    caps = ("emulation.stragglers=[1.05,1.1]", "emulation.power_caps=[300W]")
    assert emulate(results, *caps, f"emulation.series={path}", "emulation.iterations=900", "seed=0") == 0
    assert emulate(results, *caps, "emulation.gradient_reduction=hidden,exposed") == 0
    folders = sorted((results / fleet().workload_name / "emulate").iterdir())
    assert len(folders) == 3
    hours = 0
    for folder in folders:
        plans = read_table(folder / "fleet.parquet", FLEET)
        assert set(plans["fleet"]) == {folder.name}
        assert plans["method"].unique(maintain_order=True).to_list() == ["sequential", "sequential+perseus", "kareus"]
        assert len(read_table(folder / "stragglers.parquet", STRAGGLERS)) == 3 * 2
        assert len(read_table(folder / "power_caps.parquet", POWER_CAPS)) == 3
        hours += len(read_table(folder / "hours.parquet", HOURS))
        assert read_provenance(folder / "fleet.parquet", FLEET).testbed.kind == "simulated"
    assert hours > 0


def test_nothing_else_changes_when_the_reduction_is_exposed(results):
    assert emulate(results, "emulation.gradient_reduction=hidden,exposed") == 0
    hidden, exposed = (
        read_table(folder / "fleet.parquet", FLEET)
        for folder in sorted((results / fleet().workload_name / "emulate").iterdir(), key=lambda f: "exposed" in f.name)
    )
    assert hidden["points"].to_list() == exposed["points"].to_list()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["emulation=1000gpus"], "emulation=1000gpus: unknown option; perhaps you meant 10240gpus"),
        (["emulation.straglers=[1.1]"], "unknown key; perhaps you meant emulation.stragglers"),
        (["emulation.stragglers=[0.9]"], "stragglers: 0.9 is faster than the others; give 1 or more"),
        (["emulation.power_caps=[0W]"], "power_caps: '0W': must be greater than 0 and at most 100,000W of each GPU"),
        (["emulation.power_caps=[101%]"], "power_caps: '101%': must be greater than 0 and at most 100% of each GPU"),
        (
            ["emulation.power_caps=['350']"],
            "power_caps: '350': not understood; write a share of the",
        ),
        (["emulation.power_caps_w=[350]"], "it is emulation.power_caps now: watts as 350W"),
        (
            ["emulation=fleet", "emulation.pipelines=null", "emulation.gpus=250"],
            "a pipeline has 16 GPUs; give a multiple",
        ),
        (
            ["emulation.gpus=256"],
            "pipelines=4, gpus=256: give one of both, and null for the other",
        ),
        (["emulation.methods=[kareus]"], "methods: reductions are against 'sequential'; add it"),
        (["emulation.methods=[karius]"], "methods: 'karius' is not known"),
        (["emulation.stragglers=[1.1,1.2,1.1]"], "stragglers: 1.1 is given twice"),
        (["emulation.power_caps=[300W,300W]"], "power_caps: 300W is given twice"),
        (["emulation.methods=[sequential,sequential+perseus,sequential]"], "methods: sequential is given twice"),
        (["emulation.series=none.csv", "emulation.iterations=5"], "none.csv: cannot be read"),
        (["emulation.iterations=5"], "series, iterations: give both"),
        (["emulation.deadlines=1"], "deadlines=1: must be 2 or more"),
        (["emulation.deadlines=100000"], "deadlines=100000: must be from 2 to 1,000 (plans of a frontier)"),
        (["emulation.pipelines=1000000000"], "pipelines=1000000000: must be from 1 to 1,000,000 (pipelines)"),
        (["emulation.stragglers=[1e300]"], "stragglers=1e+300: must be from 1 to 1,000"),
        (
            ["emulation.power_caps=[1e300W]"],
            "power_caps: '1e300W': must be greater than 0 and at most 100,000W of each GPU",
        ),
        (["emulation.series='{x}.csv'", "emulation.iterations=5"], "series='{x}.csv': must be a path of 1 to 1,024"),
        (["emulation.series=x.csv", "emulation.iterations=1000000000000000"], "must be from 1 to 1,000,000,000,000"),
        (["emulation.num_microbatches=0"], "num_microbatches=0"),
        (["emulation.pipelines=0"], "pipelines=0"),
        (["num_microbatches=16"], "num_microbatches=16: a fleet says that itself; set emulation.num_microbatches"),
        (["parallelism.dp=2"], "parallelism.dp=2: a fleet says that itself; set emulation.pipelines"),
        (
            ["parallelism.sharding=full"],
            "parallelism.sharding=full: is planned with parallelism.pp=2, parallelism.tp=8",
        ),
        (["parallelism.sharding=gradients"], "but the engine runs it with data parallelism alone (pp=1, tp=1, cp=1)"),
        (
            ["iteration.include_update=true", "emulation.gradient_reduction=exposed"],
            "with iteration.include_update=true the reduction over the pipelines is planned, and would be",
        ),
        (
            ["iteration.include_update=true", "emulation.pipelines=100000"],
            "emulation.pipelines=100000: as replicas of one workload, dp x pp x tp x cp=1,600,000: must be at most",
        ),
        (["iteration.include_update=true"], "seq4096_a100: has no microbatch frontiers, which fleets are planned from"),
        (["sequence_length=2048"], "has no microbatch frontiers, which fleets are planned from; run snakemake"),
    ],
)
def test_what_cannot_be_emulated_is_refused_in_one_line(results, capsys, overrides, message):
    assert emulate(results, *overrides) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_iterations_beyond_the_peak_of_the_gpus_are_refused_before_anything_is_planned(tmp_path, capsys):
    """16 A100s have 312 TFLOP/s each; the model's FLOPs over that are the least time of an iteration."""
    path = tmp_path / "prices.csv"
    path.write_text("hour,price_per_kwh\n0,0.3\n")
    most = int(3600 / mfu(fleet().pipeline, 1.0))
    resolved = resolve_fleets(with_small(f"emulation.series={path}", f"emulation.iterations={most}"), CONFIG)
    assert resolved[0].refusal is None
    assert emulate(tmp_path, f"emulation.series={path}", f"emulation.iterations={most + 1}") == 2
    assert f"at most {most:,} fit into the 1 hours of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"), [("hour,price\n0,1\n", "columns hour,price; expected"), (None, "be read")]
)
def test_a_bad_series_of_a_fleet_is_refused_when_its_campaign_is_resolved(tmp_path, text, message):
    path = tmp_path / "prices.csv"
    if text is not None:
        path.write_text(text)
    overrides = ["emulation=10240gpus", f"emulation.series={path}", "emulation.iterations=5"]
    with pytest.raises(KareusError, match=message):
        resolve_campaign("emulation", overrides, CONFIG)


def test_a_pipeline_that_does_not_fit_is_refused():
    with pytest.raises(RefusedWorkloadError, match=r"mbs64_.*out of memory"):
        resolve_fleets(["microbatch_size=64"], CONFIG)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("pipeline=interleaved", "emulation.num_microbatches=3"), "num_microbatches=3: must be a multiple of"),
        (("pipeline=zb-h1", "emulation.num_microbatches=1"), "num_microbatches=1: must be at least"),
        (("pipeline=gpipe", "microbatch_size=16", "emulation.num_microbatches=2"), "needs 41.9 GiB"),
        (("pipeline=gpipe", "microbatch_size=16", "emulation.num_microbatches=40"), "needs 56.1 GiB"),
    ],
)
def test_the_microbatches_of_a_fleet_decide_if_it_can_run(overrides, message):
    with pytest.raises(RefusedWorkloadError) as refused:
        resolve_fleets(with_small(*overrides), CONFIG)
    assert message in str(refused.value)


def test_the_microbatches_of_the_workload_refuse_no_fleet():
    """Eight in flight need 44.1 GiB, two 41.9 GiB."""
    one = fleet("pipeline=gpipe", "microbatch_size=16", "emulation.num_microbatches=2", "gpu.memory_gib=43")
    assert (one.refusal, one.pipeline.num_microbatches, one.workload.num_microbatches) == (None, 2, 8)


def test_the_fastest_plan_of_every_method_is_logged(results, caplog):
    with caplog.at_level("INFO"):
        assert emulate(results) == 0
    (path,) = results.rglob("fleet.parquet")
    for row in read_table(path, FLEET).filter(pl.col("plan") == 0).iter_rows(named=True):
        time, energy, power = (
            scaled(row[name], unit, digits=4) for name, unit in (("time_s", "s"), ("energy_j", "J"), ("power_w", "W"))
        )
        assert f"{row['method']}: fastest {time} with {energy} and {power}; " in caplog.text
    assert caplog.text.count("the trainer's own execution") == 2  # of the two methods beside it


def test_microbatch_frontiers_of_another_workload_are_refused(tmp_path, capsys):
    own, other = fleet(), fleet("seed=3", "gpu.power_limit_w=300")
    write_microbatch(tmp_path, other)
    (tmp_path / other.workload_name).rename(tmp_path / own.workload_name)
    assert emulate(tmp_path) == 2
    assert "made with another configuration" in capsys.readouterr().err


def test_a_bare_text_is_an_option_and_anything_else_an_override():
    assert resolve_fleets(["1280gpus"], CONFIG) == resolve_fleets(["emulation=1280gpus"], CONFIG)
    with pytest.raises(ConfigError, match="unknown option"):
        resolve_fleets(["tp8"], CONFIG)
