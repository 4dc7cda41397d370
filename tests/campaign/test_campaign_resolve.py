"""Campaigns: what belongs to the paper's, how a user writes one, and what is said of one that cannot be used."""

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from helpers.builders import CONFIG

import kareus
from kareus.artifacts.tables import read_table
from kareus.campaign.config import CAMPAIGN, merged
from kareus.campaign.resolve import folder_name, resolve_campaign
from kareus.cli import main
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.search.config import Strategy
from kareus.workload.resolve import resolve_accepted
from kareus.workload.tables import WORKLOADS

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration, to add campaigns to."""
    return Path(shutil.copytree(CONFIG, tmp_path / "config"))


def write(config: Path, name: str, text: str) -> None:
    (config / "campaign" / f"{name}.yaml").write_text(text)


def shapes(name: str, *overrides: str) -> list[tuple[str, str, int, int, bool]]:
    return [
        (w.model.name, f"cp{w.parallelism.cp}tp{w.parallelism.tp}", w.microbatch_size, w.sequence_length, not m.refusal)
        for m in resolve_campaign(name, overrides, CONFIG).members
        for w in [m.workload]
    ]


def test_the_testbed_has_the_papers_twelve_rows_two_too_large() -> None:
    """Paper, table 3."""
    expected = [
        (model, parallelism, *shape)
        for model in ("llama3.2-3b", "qwen3-1.7b")
        for parallelism in ("cp1tp8", "cp2tp4")
        for shape in ((8, 4096), (8, 8192), (16, 4096))
    ]
    found = shapes("testbed")
    assert sorted(row[:4] for row in found) == sorted(expected)
    refused = [row[:4] for row in found if not row[4]]
    assert refused == [("llama3.2-3b", "cp1tp8", 8, 8192), ("llama3.2-3b", "cp1tp8", 16, 4096)]
    reasons = [m.refusal for m in resolve_campaign("testbed", [], CONFIG).members if m.refusal]
    assert all("out of memory" in reason for reason in reasons)


def test_sensitivity_and_ablation_use_the_papers_model() -> None:
    assert shapes("sensitivity") == [("qwen3-1.7b", "cp1tp8", size, 4096, True) for size in (8, 12, 16, 20)]
    assert shapes("ablation") == shapes("sensitivity")[:1]


def test_the_paper_names_its_parts_and_shares_members() -> None:
    campaign = resolve_campaign("paper", [], CONFIG)
    parts = list(dict.fromkeys(member.part for member in campaign.members))
    assert parts == ["testbed", "sensitivity", "ablation", "search", "emulation", "profiler"]
    assert len(campaign.workloads) == 16  # ten rows of the testbed, microbatches of 12 and 20, and four searches
    assert [fleet.gpus for fleet in campaign.fleets.values()] == [10240, 5120, 2560, 1280]
    assert len(campaign.folders) == 17  # and the one that is emulated


def test_the_papers_own_search_has_folders_of_its_own() -> None:
    searched = resolve_campaign("search", [], CONFIG).workloads
    assert list(searched) == [
        f"{model}_{degrees}_mbs8_seq4096_a100_noupdate_search-paper"
        for model in ("llama3.2-3b", "qwen3-1.7b")
        for degrees in ("pp2-tp8", "pp2-cp2-tp4")
    ]
    assert {w.search.strategy for w in searched.values()} == {Strategy.PAPER}
    assert not set(searched) & set(resolve_campaign("testbed", [], CONFIG).workloads)


def test_the_papers_iterations_end_with_the_last_backward() -> None:
    for name, includes in (("paper", False), ("quickstart", True)):
        campaign = resolve_campaign(name, [], CONFIG)
        assert {member.workload.iteration.include_update for member in campaign.members} == {includes}
        assert all(("noupdate" in folder) is not includes for folder in campaign.folders)


def test_the_profiler_is_swept_as_in_the_paper() -> None:
    """Paper, section 6.7: windows with a cooldown of 5 s, cooldowns with a window of 5 s, batches of 4 x 4K."""
    window, cooldown = resolve_campaign("profiler", [], CONFIG).sweeps.values()
    assert (window.sweep.windows_s, window.sweep.cooldowns_s) == (tuple(range(1, 11)), (5,))
    assert (cooldown.sweep.windows_s, cooldown.sweep.cooldowns_s) == ((5,), tuple(range(11)))
    for swept in (window, cooldown):
        assert (swept.sweep.frequency_mhz, swept.sweep.trials) == (1410, 10)
        assert (swept.workload.microbatch_size // 2, swept.workload.sequence_length) == (4, 4096)
        assert (swept.workload.model.name, swept.workload.parallelism.tp) == ("llama3.2-3b", 8)


def test_quickstart_is_the_default_workload_with_overrides() -> None:
    for overrides in ([], ["model=qwen3-1.7b", "microbatch_size=8,16"]):
        assert resolve_campaign("quickstart", overrides, CONFIG).workloads == resolve_accepted(overrides, CONFIG)


@pytest.mark.parametrize("name", ["sensitivity", pytest.param("paper", marks=pytest.mark.acceptance)])
def test_overrides_replace_those_of_the_campaign(name: str) -> None:
    assert merged("a=1 b='x y'", ["b=2", "c=3"]) == ["a=1", "b=2", "c=3"]
    assert merged("a=1 b=2", ["c=3", "a=4"]) == ["a=4", "b=2", "c=3"]
    campaign = resolve_campaign(name, ["gpu=h100-sxm5-80gb", "microbatch_size=4"], CONFIG)
    assert {m.workload.gpu.name for m in campaign.members} == {"H100-SXM5-80GB"}
    assert {m.workload.microbatch_size for m in campaign.members} == {4}


def test_a_campaign_of_ones_own_is_one_file(config: Path) -> None:
    write(config, "mine", "campaigns: [ablation]\nworkloads: [microbatch_size=4]\nsweeps: [sweep.trials=2]\n")
    write(config, "longer", "defaults: [mine, _self_]\nworkloads: [sequence_length=8192 parallelism=cp2tp4]\n")
    mine, longer = (resolve_campaign(name, [], config) for name in ("mine", "longer"))
    assert [(m.part, m.kind) for m in mine.members] == [
        ("mine", "workload"),
        ("mine", "sweep"),
        ("ablation", "workload"),
    ]
    assert [w.sequence_length for w in longer.workloads.values()] == [8192, 4096]


def test_a_model_of_ones_own_is_one_file(config: Path) -> None:
    text = (config / "model/qwen3-1.7b.yaml").read_text()
    for old, new in (("1.7b", "small"), ("num_layers: 28", "num_layers: 8"), ("[15, 13]", "[4, 4]")):
        text = text.replace(old, new)
    (config / "model/qwen3-small.yaml").write_text(text)
    write(config, "mine", "workloads: [model=qwen3-small]\n")
    (workload,) = resolve_campaign("mine", [], config).workloads.values()
    assert workload.parallelism.split == (4, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workloads: microbatch_size=8", "mine.yaml: workloads: expected a list"),
        ("workload: [microbatch_size=8]", "mine.yaml: workload: unknown key; perhaps you meant workloads."),
        ("workloads: []", "nothing to plan; give workloads, fleets, sweeps, a question or campaigns."),
        ("", "nothing to plan; give workloads, fleets, sweeps, a question or campaigns."),
        ("[]", "mine.yaml"),
        ("workloads: [", "cannot be composed"),
        ("workloads: ['microbatchsize=8']", "campaign mine: microbatchsize=8: unknown key; perhaps you meant"),
        ('workloads: ["model=\'qwen"]', "No closing quotation"),
        ("campaigns: [testbet]", "campaign testbet: not known; perhaps you meant testbed"),
        ("campaigns: [mine]", "campaign mine: names itself (mine > mine); take it out of mine.yaml"),
        ("fleets: [emulation=3gpus]", "campaign mine: emulation=3gpus: unknown option"),
        ("sweeps: [sweep.partition=forward]", "not a partition of llama3.2-3b_pp2-tp8_mbs8_seq4096_a100"),
        ("sweeps: ['sweep.windows_s=[0]']", "windows_s: 0 must be 0.1 or more (seconds)"),
        ("sweeps: ['sweep.cooldowns_s=[1,1]']", "cooldowns_s=[1.0, 1.0]: give one or more, each once"),
    ],
)
def test_a_campaign_that_cannot_be_used_is_answered_in_one_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    write(config, "mine", text)
    assert main(["campaign", "mine", "--config-dir", str(config), "--output", str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_campaign_in_which_nothing_can_run_is_refused() -> None:
    with pytest.raises(RefusedWorkloadError, match="out of memory"):
        resolve_campaign("quickstart", ["microbatch_size=16"], CONFIG)
    with pytest.raises(ConfigError, match="perhaps you meant testbed"):
        resolve_campaign("testbeds", [], CONFIG)


def test_a_refused_fleet_or_sweep_is_part_of_the_result(config: Path) -> None:
    write(config, "mine", 'fleets: ["microbatch_size=4,64"]\nsweeps: ["microbatch_size=8,16"]\n')
    campaign = resolve_campaign("mine", [], config)
    assert [(m.kind, m.refusal is None) for m in campaign.members] == [
        ("fleet", True),
        ("fleet", False),
        ("sweep", True),
        ("sweep", False),
    ]
    assert (len(campaign.fleets), len(campaign.sweeps), len(campaign.folders)) == (1, 1, 2)


def test_members_are_written_with_reasons_of_refusals(tmp_path: Path) -> None:
    assert main(["campaign", "paper", "--config-dir", str(CONFIG), "--output", str(tmp_path)]) == 0
    table = read_table(tmp_path / "campaigns/paper/campaign.parquet", CAMPAIGN)
    assert table.group_by("part", "kind", maintain_order=True).agg(pl.len(), pl.col("refusal").count()).rows() == [
        ("testbed", "workload", 12, 2),
        ("sensitivity", "workload", 4, 0),
        ("ablation", "workload", 1, 0),
        ("search", "workload", 4, 0),
        ("emulation", "fleet", 4, 0),
        ("profiler", "sweep", 2, 0),
    ]
    fleets = table.filter(pl.col("kind") == "fleet")
    assert (fleets["num_microbatches"] * fleets["gpus"]).unique().to_list() == [2048 * 80]
    assert table.filter(pl.col("kind") == "sweep")["name"].to_list() == ["window", "cooldown"]
    assert len(read_table(tmp_path / "workloads.parquet", WORKLOADS)) == 18
    opened = kareus.open_results(tmp_path)["campaign"].collect()
    assert opened["campaign"].unique().to_list() == ["paper"]
    assert opened.drop("campaign").equals(table)


def test_without_a_name_all_campaigns_are_listed(caplog):
    caplog.set_level("INFO")
    assert main(["campaign", "--config-dir", str(CONFIG)]) == 0
    names = [path.stem for path in sorted((CONFIG / "campaign").glob("*.yaml"))]
    assert [message.split()[0] for message in caplog.messages[: len(names)]] == names
    assert "The paper's whole evaluation" in caplog.text


@pytest.mark.parametrize("command", [["campaign", "quickstart"], ["resolve"]])
def test_looking_up_what_would_be_planned_writes_nothing(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "gpu=h100-sxm5-80gb", "--config-dir", str(CONFIG)]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_stand_in_a_path_is_refused(capsys):
    assert main(["campaign", "t wo", "--config-dir", str(CONFIG)]) == 2
    assert "campaign 't wo': a name has letters, digits" in capsys.readouterr().err


def test_the_folder_of_a_campaign_tells_its_overrides():
    assert folder_name("quickstart", []) == "quickstart"
    assert folder_name("quickstart", ["seed=1", "gpu=h200"]) == "quickstart+gpu=h200+seed=1"
    assert folder_name("quickstart", ["gpu=h200", "seed=1"]) == folder_name("quickstart", ["seed=1", "gpu=h200"])


@pytest.mark.parametrize("override", ["model.name={x}", "sweep.windows_s=[1]", "a=../b", "a=1+b=2", "a=" + 80 * "9"])
def test_overrides_unfit_for_a_path_are_named_by_hash(override):
    name = folder_name("quickstart", [override])
    assert re.fullmatch(r"quickstart\+[0-9a-f]{8}", name)
    assert name != folder_name("quickstart", [f"{override}0"])


def test_campaigns_never_share_a_folder():
    folders = [
        folder_name("a", ["b_c=1"]),
        folder_name("a_b", ["c=1"]),
        folder_name("a", ["b=1_c=2"]),
        folder_name("a", ["b=1", "c=2"]),
        folder_name("a", ["b=1,2"]),
    ]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("overrides", [[], ["seed=1"], ["gpu.name='A 1'"]])
def test_the_table_of_a_campaign_overwrites_no_other_file(overrides, tmp_path, capsys):
    command = ["campaign", "quickstart", *overrides, "--config-dir", str(CONFIG), "--output", str(tmp_path)]
    path = tmp_path / "campaigns" / folder_name("quickstart", overrides) / "campaign.parquet"
    path.parent.mkdir(parents=True)
    path.write_text("somebody's")
    assert main(command) == 2
    assert f"{path}: there is a file" in capsys.readouterr().err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert path.read_text() == "somebody's"
    assert main([*command, "--force"]) == 0
    assert main(command) == 0


def test_a_campaign_name_has_no_plus_sign(config):
    write(config, "quickstart+deadbeef", "workloads: ['']")
    with pytest.raises(ConfigError, match=r"campaign quickstart\+deadbeef: its name must not contain '\+'"):
        resolve_campaign("quickstart+deadbeef", [], config)


ASKED = "question: model=qwen3-1.7b gpus=8 global_batch=32\n"


def test_a_campaign_may_ask_a_question_and_nothing_else(config, caplog) -> None:
    write(config, "mine", ASKED)
    campaign = resolve_campaign("mine", ["gpus=16", "tp=8"], config)
    assert campaign.asked is not None
    assert campaign.asked.texts == ("model=qwen3-1.7b", "gpus=16", "global_batch=32", "tp=8")
    assert not campaign.members
    caplog.set_level("INFO")
    assert main(["campaign", "mine", "--config-dir", str(config)]) == 0
    assert caplog.messages == ["mine:", "  question model=qwen3-1.7b gpus=8 global_batch=32"]


def test_of_two_questions_both_campaigns_are_named(config) -> None:
    write(config, "mine", ASKED)
    write(config, "both", "campaigns: [mine, advise]\n")
    with pytest.raises(ConfigError, match="has the questions of mine and advise; leave all but one out"):
        resolve_campaign("both", [], config)


def test_a_question_that_cannot_be_asked_names_its_campaign(config) -> None:
    write(config, "mine", ASKED.replace("gpus=8", "gpus=x"))
    with pytest.raises(ConfigError, match="campaign mine: --gpus x: not understood"):
        resolve_campaign("mine", [], config)


def test_the_hash_of_a_question_is_of_all_that_is_asked(config) -> None:
    def hashed(*overrides: str) -> str:
        found = resolve_campaign("advise", overrides, config).asked
        assert found is not None
        return found.content_hash

    assert hashed() == hashed()
    assert len({hashed(), hashed("gpus=16"), hashed("tokens=1e11"), hashed("seed=2"), hashed("tp=1")}) == 5
