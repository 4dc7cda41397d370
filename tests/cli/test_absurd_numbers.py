"""Absurd numbers: refused in one line, or worked with; never a traceback, or an answer that is no number."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.judged import judged
from helpers.planned import planned_folder
from helpers.trainings import planned, tiny_workload
from test_fuzzed_inputs import COLUMNS, FLEET, WORKLOAD

pytestmark = pytest.mark.acceptance

TRAINED = (
    "--clip nan", "--clip inf", "--clip 0", "--clip -1", "--weight-decay 1e38", "--weight-decay nan",
    "--weight-decay -1", "--learning-rate -1", "--learning-rate nan", "--learning-rate inf", "--learning-rate 1e38",
    "--final-rate nan", "--final-rate 1e308", "--seed 1e30", f"--seed {10**30}", "--seed -1", f"--warmup {10**30}",
    "--warmup -1", "--keep 0", "--keep -1", "--checkpoint-every -1", "--iterations 0", f"--iterations -{10**30}",
)  # fmt: skip
"""Options of a training of one iteration, none of which can be meant."""
RESOLVED = (
    "gpu.gpus_per_node=1000000000", "gpu.gpus_per_node=-1", "model.num_layers=200000000", f"model.num_layers={10**30}",
    "model.hidden_size=1000000000000", "model.vocab_size=9223372036854775807", "parallelism.pp=100000000",
    "parallelism.dp=1000000000000", "num_microbatches=1000000000", "sequence_length=1000000000000", "seed=1e30",
    f"seed={10**30}", "seed=-1", "memory_reserve_gib=-1e308", "memory_reserve_gib=nan", "pipeline.deadlines=100000000",
    "gpu.search_frequencies.stride_mhz=0", "gpu.search_frequencies.maximum_mhz=100000000000", "space.sm_max=1000000000",
    "space.sm_stride=0", "search.draws=1000000000000", "protocol.window_s=1e300", "protocol.window_s=1e-300",
    "testbed.time_noise=1e300", "gpu.static_power_w=1e308", "model.norm_epsilon=1e-320",
    "microbatch_size=range(1,100000000)", "seed=range(0,1e9)", "parallelism.layers_per_stage=[2,99999999999]",
)  # fmt: skip
EMULATED = (
    "emulation.deadlines=100000", "emulation.deadlines=10000000000", "emulation.pipelines=1000000000000000000",
    f"emulation.pipelines={10**30}", "emulation.num_microbatches=100000000", "emulation.stragglers=[1e300]",
    "emulation.stragglers=[1e308]", "emulation.power_caps=[1e-300W]", "emulation.power_caps=[1e308W]",
)  # fmt: skip
SELECTED = (
    "deadline=1e300s", "deadline=1e-300s", "deadline=1e999s", "straggler=1e308x", "straggler=0.000001x",
    "energy=1e300kJ", "power=1e-300W", "power=1e308MW", "cost=1e300perkWh", "cost=1e308perkWh+1e308perGPUh",
    "cost=1e-320perkWh", "cost=0perkWh+0perGPUh", "deadline=...s", "edp --tokens 1e308", "edp --tokens 1e-308",
    "edp --tokens nan", "edp --tokens -1", "cost=1e300perkWh --tokens 1e300",
)  # fmt: skip
ROWS = ("1e300,500", "1e-308,500", "0.9,1e-308", "0.9,1e308", "5e-324,5e-324", "1e308,1e308")
"""Time and energy of one of two rows of reference data."""
HOURS = (
    ("1e300", "1e300"),
    ("-1e300", "-1e300"),
    ("1e-308", "1e-308"),
    ("0.1", "1e308"),
    ("-1e308", "1e308"),
    ("0", "0"),
)
"""Prices of two hours."""
NO_NUMBER = re.compile(r"(?<![\w=.'-])-?(nan|inf|Infinity)(?![\w'])")
"""What is printed instead of a number, unless it quotes the input."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(caplog: pytest.LogCaptureFixture, *words: object) -> None:
    with caplog.at_level("INFO"):
        ended = judged(*words)
    assert not ended.is_done or not NO_NUMBER.search("\n".join((ended.said, *caplog.messages)))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(tmp_path_factory.mktemp("planned") / "tiny", tiny_workload())


@pytest.mark.parametrize("options", TRAINED)
def test_no_absurd_option_is_trained_with(training: Path, place: Path, options: str) -> None:
    iterations = [] if "--iterations" in options else ["--iterations", 1]
    words = ["train", training, *iterations, "--output", place / "run", "--communicator", "gloo", *options.split()]
    assert not judged(*words).is_done


@pytest.mark.parametrize("override", RESOLVED)
def test_an_absurd_override_is_refused_or_resolved(caplog: pytest.LogCaptureFixture, override: str) -> None:
    check(caplog, "resolve", override, "--config-dir", CONFIG)


@pytest.mark.parametrize("override", EMULATED)
def test_an_absurd_fleet_is_refused_or_emulated(caplog: pytest.LogCaptureFixture, override: str) -> None:
    key = override.partition("=")[0]
    others = [text for text in FLEET if text.partition("=")[0] != key]
    check(caplog, "emulate", *others, override, "--config-dir", CONFIG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned_folder(tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("selector", SELECTED)
def test_an_absurd_selector_is_refused_or_answered_in_numbers(
    caplog: pytest.LogCaptureFixture, folder: Path, selector: str
) -> None:
    name, *options = selector.split()
    check(caplog, "select", name, folder, *options)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("command", ["validate", "fit"])
def test_absurd_measurements_are_refused_or_compared_in_numbers(
    caplog: pytest.LogCaptureFixture, place: Path, command: str, row: str
) -> None:
    rows = f"{WORKLOAD},sequential,0,{row}\n{WORKLOAD},sequential,1,1.1,450\n"
    (place / "reference.csv").write_text(f"{COLUMNS},method,point,iteration_time_s,total_energy_j\n{rows}")
    check(caplog, command, "--reference", "reference.csv")


@pytest.mark.parametrize("prices", HOURS)
def test_absurd_prices_are_refused_or_answered_in_numbers(
    caplog: pytest.LogCaptureFixture, place: Path, prices: tuple[str, str]
) -> None:
    (place / "prices.csv").write_text(
        "hour,price_per_kwh\n" + "".join(f"{n},{price}\n" for n, price in enumerate(prices))
    )
    check(caplog, "emulate", *FLEET, "emulation.series=prices.csv", "emulation.iterations=10")
