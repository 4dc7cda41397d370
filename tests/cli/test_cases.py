"""What people bring, by the table `tests/cases/index.csv`: each row has a command and what is expected of it.

Rows of the kind `hf` resolve a published `config.json`; `layout` are trainings that ran, `key` settings, `issue`
reports of users, `scale` questions that took long. Every row has a check.
"""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.artifacts.store import RowShelf
from kareus.artifacts.tables import Column
from kareus.cli import main
from kareus.device.cuda import check_whole
from kareus.device.held_clock import ClockOutcome, clock_outcome
from kareus.errors import ArtifactError, ConfigError, DeviceError
from kareus.model.parameters import total_parameters
from kareus.plans.grid_files import read_series
from kareus.profile.tables import MEASUREMENTS
from kareus.workload.resolve import Resolved, resolve

CASES = Path(__file__).parents[1] / "cases"
Row = dict[str, str]
PARTS = {
    "nvidia--Nemotron-H-56B-Base-8K": "blocks without attention (hybrid_override_pattern)",
    "default--qwen3_next": "experts (num_experts=512), linear attention (linear_num_value_heads=32)",
}
"""Models that no type has, and what is said of them."""
EXPERTS = (
    "mistralai--Mixtral-8x22B-v0.1",
    "Qwen--Qwen3-30B-A3B",
    "deepseek-ai--DeepSeek-V3",
    "openai--gpt-oss-20b",
    "default--granitemoe",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct",
)
"""Models with experts; one of them does not fit in 64 GPUs."""


class Called:
    """A command that was run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, folder: Path) -> None:
        self._capsys, self._caplog = capsys, caplog
        self.folder = folder
        """Of this test alone."""

    def __call__(self, command: str, *more: str) -> tuple[int, str, str]:
        """Return the code, what was told, and what was refused."""
        self._caplog.clear()
        program, *words = shlex.split(command.replace("cases/", f"{CASES}/"))
        assert program == "kareus"
        code = main([*words, *more, "--config-dir", str(CONFIG)])
        told = self._capsys.readouterr()
        return code, "\n".join([told.out, *(record.message for record in self._caplog.records)]), told.err

    def predicted(self, command: str) -> dict:
        code, out, err = self(command, "--json")
        assert code == 0, err
        return json.loads(out.splitlines()[0])

    def refusal(self, command: str) -> str:
        code, _, err = self(command)
        (line,) = err.splitlines()
        assert code == 2
        return line


@pytest.fixture
def called(capsys, caplog, tmp_path):
    caplog.set_level("INFO")
    return Called(capsys, caplog, tmp_path)


def rows() -> dict[str, Row]:
    with (CASES / "index.csv").open(newline="") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


TABLE = rows()


def resolved(command: str, *more: str) -> Resolved:
    program, _, *overrides = shlex.split(command)
    assert program == "kareus"
    (one,) = resolve([*(text.replace("model=cases/", f"model={CASES}/") for text in overrides), *more], CONFIG)
    return one


def a_model(row: Row) -> None:
    name, expected = row["case"].removeprefix("hf/"), row["expected"]
    if name in PARTS:
        with pytest.raises(ConfigError) as raised:
            resolved(row["command"])
        assert f": {PARTS[name]} not supported; the nearest to plan without a job: " in str(raised.value)
        assert "\n" not in str(raised.value)
        return
    one = resolved(row["command"])
    if name in EXPERTS:
        assert one.composed.model.experts is not None
        assert (one.refusal is not None) == name.endswith("DeepSeek-V3"), one.refusal
        assert "out of memory" in (one.refusal or "out of memory")
        return
    assert "accepted" in expected or expected.startswith("supported")
    if expected == "accepted as architecture":  # of 405 billion parameters, in a layout that does not hold them
        assert "out of memory" in (one.refusal or "")
    elif expected == "refused or accepted without dropout":  # at 4,096 tokens, of which it learns 1,024 positions
        assert "max_positions (1024)" in (one.refusal or "")
    else:
        assert one.workload is not None, one.refusal
    if parameters := re.fullmatch(r"accepted, (\d+) parameters", expected):
        assert total_parameters(one.composed.model) == int(parameters[1])


def measured_s(row: Row) -> float:
    return float(re.search(r"measured ([\d.]+) s", row["expected"])[1])


def runs_as_measured(row: Row, called: Called) -> None:
    command = row["command"]
    if command.startswith("same with "):
        before = TABLE["layout/dgxc-8b-8gpu"]["command"]
        command = before.replace("parallelism.dp=4", command.removeprefix("same with "))
    assert called.predicted(command)["time_s"] == pytest.approx(measured_s(row), rel=0.062)


def runs(row: Row, called: Called) -> None:
    assert called.predicted(row["command"])["time_s"] > 0


def runs_there(row: Row, called: Called) -> None:
    """What people type beside the command of a case names another GPU, which takes its place."""
    assert called.predicted(row["command"].replace("gpu=h100-sxm5-80gb gpu=", "gpu="))["time_s"] > 0


def fits(row: Row, *more: str) -> None:
    one = resolved(row["command"], *more)
    assert one.workload is not None, one.refusal


def fits_as_recipes_share(row: Row, _: Called) -> None:
    one = resolved(row["command"])
    assert one.workload is not None, one.refusal
    assert one.proposed == ("parallelism.sharding=optimizer",)
    assert resolved(row["command"], "parallelism.sharding=none").workload is None


def shares_states_over_context(row: Row, called: Called) -> None:
    found = called.predicted(row["command"])  # which ran
    assert "refused" not in found
    states = sum(found["memory"][f"{part}_gib"] for part in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(50.8, abs=0.1)  # 76.1 without


def not_supported(row: Row, called: Called) -> None:
    command = row["command"].replace("gpu=h100-sxm5-80gb gpu=", "gpu=")
    line = called.refusal(command)
    assert re.search(r"not supported: .*the nearest ", line)
    assert "perhaps" not in line


def shares_in_a_node(row: Row, called: Called) -> None:
    written = row["command"].replace("sharding=hybrid", "sharding=full parallelism.shards=4")
    assert called.predicted(row["command"]) == called.predicted(written)


def has_no_experts(row: Row, called: Called) -> None:
    assert called.refusal(row["command"]).endswith("parallelism.ep=8: llama3.1-8b has no experts; use 1.")


def pads_the_vocabulary(row: Row, _: Called) -> None:
    one = resolved(row["command"])
    assert one.workload.model.vocab_size == 297 * 128 * 4  # of 151,669


def advises(row: Row, called: Called) -> str:
    code, out, err = called(row["command"])
    assert code == 0, err
    return out


def advises_a_prime(row: Row, called: Called) -> None:
    assert "dp 13" in advises(row, called)


def advises_in_time(row: Row, called: Called) -> None:
    assert re.search(r"layouts of 64 GPUs: .*; [\d.]+ s\n", advises(row, called))


def plans_few_microbatches(row: Row, _: Called) -> None:
    fits(row)
    for schedule in ("zb-h1", "interleaved"):
        assert "num_microbatches=1" in (resolved(row["command"], f"pipeline={schedule}").refusal or "")


def fewer_beside_the_head(row: Row, _: Called) -> None:
    split = resolved(row["command"]).workload.parallelism.split
    assert split[-1] == min(split) < max(split)


def is_read(row: Row, called: Called) -> None:
    assert "Llama(3)" in row["command"]
    folder = called.folder / "Llama(3), new"
    folder.mkdir()
    (folder / "config.json").write_bytes((CASES / "hf/mlc--llama3_2_1b.json").read_bytes())
    (one,) = resolve([f"model={folder / 'config.json'}", "parallelism.tp=1"], CONFIG)
    assert one.workload.model.num_layers == 16


def reads_a_grid(*parts: str):
    def check(row: Row, _: Called) -> None:
        path = CASES / row["command"].rpartition(" cases/")[2]
        assert all(part in read_series(path).understood for part in parts), read_series(path).understood

    return check


def says(*parts: str):
    def check(row: Row, called: Called) -> None:
        command = row["command"].replace("... ", f"{TABLE['issue/csv-semicolon']['command'].split(' --price')[0]} ")
        line = called.refusal(command)
        assert all(part in line for part in parts), line

    return check


def measures_nothing(energy_j: float):
    def check(_row: Row, _called: Called) -> None:
        values = {column.name: _plausible(column) for column in MEASUREMENTS.columns}
        shelf = RowShelf(MEASUREMENTS)
        shelf.append(values)
        with pytest.raises(ArtifactError, match="energy_j"):
            shelf.append(values | {"energy_j": energy_j})
        assert shelf.rows == [values]

    return check


def _plausible(column: Column) -> object:
    dtype = str(column.dtype)
    if dtype.startswith("List"):
        return []
    return "a" if dtype == "String" else {"Float64": 1.0}.get(dtype, 1)


def tells_another_clock(_row: Row, _called: Called) -> None:
    assert clock_outcome(1410, 700.0, ("thermal-limit",)) is ClockOutcome.LOST


def tells_of_slices(_row: Row, _called: Called) -> None:
    with pytest.raises(DeviceError, match="shares clock and energy counter"):
        check_whole("MIG-41c2")


CHECKS = {
    "layout/dgxc-8b-8gpu": runs_as_measured,
    "layout/dgxc-8b-16gpu": runs_as_measured,
    "layout/dgxc-405b": runs_as_measured,
    "layout/vpp-126": fits_as_recipes_share,
    "layout/bridge-8b-128k": lambda row, _: fits(row),
    "layout/bridge-70b-16k": fits_as_recipes_share,
    "layout/bridge-70b-8k": shares_states_over_context,
    "layout/mpt-760m-a100": runs,
    "layout/hsdp": shares_in_a_node,
    "key/fp8": runs,
    "key/ep": has_no_experts,
    "key/offload": not_supported,
    "key/dualpipe": not_supported,
    "key/gb200": runs_there,
    "issue/vocab-odd": pads_the_vocabulary,
    "issue/vocab-odd-advise": advises,
    "issue/kv-lt-tp": says("must divide model.num_key_value_heads (2); allowed: 1, 2"),
    "issue/mb-lt-pp": plans_few_microbatches,
    "issue/layers-dropped": says("adds up to 28; must be model.num_layers (30)"),
    "issue/pp1-layers": says("adds up to 20; must be model.num_layers (32)"),
    "issue/head-last": fewer_beside_the_head,
    "issue/prime-gpus": advises_a_prime,
    "issue/hydra-paren": is_read,
    "issue/csv-electricitymaps": reads_a_grid("carbon intensity of 416.2 to 428.9 g/kWh", "2024-03-30 22:00 UTC"),
    "issue/csv-watttime": reads_a_grid("carbon intensity of 417.1 g/kWh", "2024-03-10 08:00 UTC"),
    "issue/csv-semicolon": reads_a_grid("price of 0.1 to 0.11 a kWh, 2 hours"),
    "issue/csv-gap": says("row 3: hour 3, expected 2"),
    "issue/csv-negative-carbon": says("-400", "not plausible"),
    "issue/counter-stuck": measures_nothing(0.0),
    "issue/counter-reset": measures_nothing(-20_018.0),
    "issue/clock-not-held": tells_another_clock,
    "issue/mig": tells_of_slices,
    "scale/advise-128k": advises_in_time,
}
MARKS = {
    "issue/vocab-odd-advise": pytest.mark.acceptance,
    "issue/prime-gpus": pytest.mark.slow,
    "scale/advise-128k": pytest.mark.acceptance,
}


def test_every_row_has_a_check() -> None:
    assert {case for case in TABLE if not case.startswith("hf/")} == set(CHECKS)


@pytest.mark.parametrize("row", [pytest.param(row, id=case, marks=MARKS.get(case, ())) for case, row in TABLE.items()])
def test_a_case_gives_what_is_expected(row: Row, called: Called) -> None:
    if row["case"].startswith("hf/"):
        a_model(row)
    else:
        CHECKS[row["case"]](row, called)
