"""The command `verify`: what it finds in a folder, and what it removes."""

import fcntl
import hashlib
import json
import os
import subprocess
from dataclasses import replace

import polars as pl
import pytest
from helpers.builders import CONFIG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kareus
from kareus.artifacts.files import temporary_of, write_json
from kareus.artifacts.manifest import write_manifest
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.seals import sealed, sealed_text
from kareus.artifacts.store import Shelf
from kareus.artifacts.tables import Column, TableSchema, write_table
from kareus.cli import main
from kareus.training.batches import DataPosition
from kareus.training.checkpoint_files import SCHEMA_VERSION, Header, write_header
from kareus.verify.outputs import write_outputs

TABLE = TableSchema(name="costs", version=1, meaning="Costs.", columns=(Column("n", pl.Int64, "a number"),), key=("n",))
PROVENANCE = Provenance(config_hash="0")
WORKLOAD = "small"
HEADER = Header(
    schema_version=SCHEMA_VERSION,
    run="1",
    subject="2",
    rank=0,
    ranks=1,
    iteration=4,
    sha256=hashlib.sha256(b"tensors" * 9).hexdigest(),
    data=DataPosition(samples=4, source="3"),
)


@pytest.fixture
def results(tmp_path):
    """A results folder with one file of each kind, all sound, and files of others."""
    folder = tmp_path / "results" / WORKLOAD
    write_table(folder / "search/mlp/costs.parquet", TABLE.frame([{"n": n} for n in range(9)]), TABLE, PROVENANCE)
    write_json(folder / "plan/fastest.json", sealed({"schema_version": 3, "time_s": 1.0}))
    (folder / "config").mkdir()
    (folder / "config/plan.yaml").write_text(sealed_text("seed: 1\nname: small\n"))
    (folder / "report/data").mkdir(parents=True)
    (folder / "report/page.html").write_text("<p>A page.</p>\n")
    (folder / "report/data/costs.csv").write_text("n\n1\n2\n")
    write_manifest(folder / "report/manifest.json", [folder / "report/page.html", folder / "report/data"])
    shelf = tmp_path / "results/measurements/gpu/mlp_1"
    with Shelf(shelf, TABLE, PROVENANCE) as open_shelf:
        open_shelf.append({"n": 1})
        open_shelf.append({"n": 2})
        journal = (shelf / "journal.jsonl").read_bytes()
    (shelf / "journal.jsonl").write_bytes(journal)
    checkpoint = tmp_path / "results/training/checkpoints/iteration-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "rank-00000.safetensors").write_bytes(b"tensors" * 9)
    write_header(checkpoint / "rank-00000.json", HEADER)
    listed = ["search/mlp/costs.parquet", "plan/fastest.json", "config/plan.yaml", "report/page.html", "report/data"]
    write_outputs(tmp_path / "results", "mine", [folder / place for place in listed])
    write_json(folder / "plan/fastest.trace.json", {"traceEvents": []})  # an export
    (folder / "notes.json").write_text("{ my own")
    (folder / "mine.csv").write_text("a,b\n")
    pl.DataFrame({"own": [1]}).write_parquet(folder / "own.parquet")
    return tmp_path / "results"


SEALED = [
    f"{WORKLOAD}/search/mlp/costs.parquet",
    f"{WORKLOAD}/plan/fastest.json",
    f"{WORKLOAD}/config/plan.yaml",
    f"{WORKLOAD}/report/page.html",
    f"{WORKLOAD}/report/data/costs.csv",
    f"{WORKLOAD}/report/manifest.json",
    "campaigns/mine/outputs.json",
    "measurements/gpu/mlp_1/costs.parquet",
    "measurements/gpu/mlp_1/journal.jsonl",
    "training/checkpoints/iteration-00000004/rank-00000.json",
]


@pytest.fixture
def verify(caplog, capsys):
    """The command: its exit code, its lines, and its error."""

    def run(*arguments):
        caplog.clear()
        with caplog.at_level("INFO"):
            code = main(["verify", *map(str, arguments)])
        return code, caplog.messages, capsys.readouterr().err

    return run


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_sound_is_said_to_be_and_is_not_touched(results, verify):
    before = contents(results)
    assert verify(results, "--repair") == (0, [f"{results}: all is sound"], "")
    assert contents(results) == before


@pytest.mark.parametrize("place", SEALED)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.99])
def test_a_flipped_bit_of_any_file_is_found(results, verify, place, share):
    content = bytearray((results / place).read_bytes())
    content[int(len(content) * share)] ^= 1
    (results / place).write_bytes(content)
    code, lines, _ = verify(results)
    assert code == 1
    assert lines[0].startswith(f"{results / place}: damaged: ")
    assert lines[-1].startswith(f"{results}: 1 damaged, 0 missing, 0 left over")


@pytest.mark.parametrize("place", [place for place in SEALED if "journal" not in place])
def test_a_truncated_file_is_found_and_set_aside_and_nothing_else(results, verify, place):
    before = contents(results)
    path = results / place
    path.write_bytes(before[path][: len(before[path]) // 2])
    code, lines, _ = verify(results, "--repair")
    assert code == 1
    assert lines[0].startswith(f"{path}: damaged: ")
    after = contents(results)
    kept = path.with_name(f"{path.name}.damaged")
    assert {p: c for p, c in after.items() if p != kept} == {p: c for p, c in before.items() if p != path}
    assert kept.read_bytes() == before[path][: len(before[path]) // 2]


@pytest.mark.parametrize("byte", [b"7", b"\r", b"\x0b", b"\x85"])
def test_of_a_journal_only_damaged_lines_are_set_aside(results, verify, byte):
    path = results / "measurements/gpu/mlp_1/journal.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    damaged = first.replace(b'"n": 1', b'"n": ' + byte)
    path.write_bytes(damaged + second)
    _, lines, _ = verify(results, "--repair")
    assert lines[0] == f"{path}: damaged: line 1; kept in {path.name}.damaged"
    assert path.read_bytes() == second
    assert path.with_name("journal.jsonl.damaged").read_bytes() == damaged


def test_many_damaged_lines_are_counted_and_the_first_are_named(results, verify):
    path = results / "measurements/gpu/mlp_1/journal.jsonl"
    path.write_bytes(b"x\n" * 12)
    _, lines, _ = verify(results)
    assert lines[0].startswith(f"{path}: damaged: 12 lines (line 1, ")


def test_a_changed_tensor_is_found_by_the_hash_in_its_header(results, verify):
    tensors = results / "training/checkpoints/iteration-00000004/rank-00000.safetensors"
    tensors.write_bytes(b"tensorz" * 9)
    code, lines, _ = verify(results)
    assert (code, len(lines)) == (1, 2)
    assert lines[0].startswith(f"{tensors}: damaged: its bytes ")


def test_checkpoints_of_other_versions_are_left_alone(results, verify):
    header = results / "training/checkpoints/iteration-00000004/rank-00000.json"
    for version, write in ((2, dict), (9, sealed)):  # without a seal, and with one
        write_json(header, write({"header": {"schema_version": version}, "state": {}}))
        assert verify(results, "--repair")[0] == 0
        assert header.exists()


def test_a_renamed_checkpoint_is_found_and_can_be_renamed_back(results, verify):
    folder = results / "training/checkpoints/iteration-00000004"
    before = contents(folder)
    renamed = folder.rename(folder.with_name("iteration-00000007"))
    code, lines, _ = verify(results, "--repair")
    assert code == 1
    assert "rank 0 of iteration 4" in lines[0]
    assert sorted(contents(renamed).values()) == sorted(before.values())


def test_a_checkpoint_without_tensors_stays_unsound(results, verify):
    tensors = results / "training/checkpoints/iteration-00000004/rank-00000.safetensors"
    tensors.write_bytes(b"tensorz" * 9)
    verify(results, "--repair")
    code, lines, _ = verify(results)
    assert (code, lines) == (
        1,
        [
            f"{tensors}: missing: described by rank-00000.json",
            f"{results}: 0 damaged, 1 missing, 0 left over; a training resumes from its last checkpoint that is whole",
        ],
    )


def test_what_is_only_missing_is_not_to_be_removed(results, verify):
    (results / WORKLOAD / "plan/fastest.json").unlink()
    _, lines, _ = verify(results)
    assert lines[-1] == f"{results}: 0 damaged, 1 missing, 0 left over; a run of snakemake makes results again"


SMALL = [
    "parallelism.pp=1",
    "parallelism.tp=1",
    "parallelism.dp=1",
    "gpu=h200",
    "num_microbatches=2",
    "microbatch_size=1",
]


def test_what_plan_made_is_missed_and_made_again_by_plan(tmp_path, verify):
    """No run of snakemake made it, and none makes it again."""
    words = ["plan", *SMALL, "--method", "sequential+perseus", "--config-dir", str(CONFIG)]
    command = [*words, "--output", str(tmp_path / "plans"), "--force"]
    assert main(command) == 0
    (folder,) = (tmp_path / "plans").iterdir()
    assert verify(folder)[:2] == (0, [f"{folder}: all is sound"])
    for place in ("pipeline/iteration.parquet", "frontier/microbatch.parquet", "config/plan.yaml"):
        kept = (folder / place).rename(tmp_path / "kept")
        code, lines, _ = verify(tmp_path / "plans")
        assert (code, lines[0]) == (1, f"{folder / place}: missing: listed in manifest.json")
        assert lines[1].endswith("; `kareus plan`, with the words that planned it, makes a folder of plans again")
        kept.rename(folder / place)
    (folder / "pipeline/iteration.parquet").unlink()
    assert main(command) == 0
    assert verify(folder)[0] == 0


def test_what_python_saves_anew_is_listed_anew(tmp_path, verify):
    (workload,) = kareus.resolve(SMALL, CONFIG)
    for seed in (0, 7):
        folder = kareus.frontier(replace(workload, seed=seed)).save(tmp_path)
        assert verify(folder)[:2] == (0, [f"{folder}: all is sound"])
    (folder / "pipeline/iteration.parquet").unlink()
    assert verify(folder)[1][0].endswith(": missing: listed in manifest.json")


@pytest.mark.timeout(10)
def test_what_is_no_regular_file_is_not_read_and_not_removed(results, verify):
    os.mkfifo(results / WORKLOAD / "plan/pipe.json")
    plan = results / WORKLOAD / "plan/fastest.json"
    plan.unlink()
    plan.mkdir()
    (plan / "mine.txt").write_text("mine")
    page = results / WORKLOAD / "report/page.html"
    page.unlink()
    os.mkfifo(page)
    code, lines, _ = verify(results, "--repair")
    reason = "damaged: is no regular file; left where it is: remove it by hand"
    assert (code, lines[:-1]) == (1, [f"{plan}: {reason}", f"{page}: {reason}"])
    assert (plan / "mine.txt").read_text() == "mine"


def test_tensors_without_a_header_are_left_over(results, verify):
    (results / "training/checkpoints/iteration-00000004/rank-00000.json").unlink()
    _, lines, _ = verify(results)
    assert lines[0].endswith("rank-00000.safetensors: left over: its checkpoint was not completed")


def test_what_a_manifest_lists_and_is_not_there_is_missing(results, verify):
    (results / WORKLOAD / "report/data/costs.csv").unlink()
    code, lines, _ = verify(results)
    assert code == 1
    assert lines[0] == f"{results}/{WORKLOAD}/report/data/costs.csv: missing: listed in manifest.json"


@pytest.mark.parametrize("place", ["search/mlp/costs.parquet", "plan/fastest.json", "config/plan.yaml", "report/data"])
def test_what_a_campaign_made_and_is_not_there_is_missing(results, verify, place):
    path = results / WORKLOAD / place
    path.rename(results.parent / "elsewhere")
    for empty in (path.parent, path.parent.parent):
        if not any(empty.iterdir()):
            empty.rmdir()
    code, lines, _ = verify(results)
    assert code == 1
    missing = path if path.parent.exists() else results / WORKLOAD / place.split("/")[0]
    assert f"{missing}: missing: listed in mine/outputs.json" in lines


def test_files_that_no_run_made_again_stay_listed(results, verify):
    plan, table = (results / WORKLOAD / place for place in ("plan/fastest.json", "search/mlp/costs.parquet"))
    plan.unlink()
    table.unlink()
    write_outputs(results, "mine", [plan])
    _, lines, _ = verify(results)
    assert lines[:-1] == [f"{plan}: missing: listed in mine/outputs.json"]


def test_files_of_a_user_are_not_touched(results, verify):
    project = results.parent
    texts = {
        "config/config.yaml": "defaults: [_self_]\n",
        "config/workload.yaml": "seed: 1\n",
        "config/plan.yaml": "seed: 1\n",
        "config.yaml": "mine: true\n",
        "plan/tasks.json": "[1, 2]",
        "plan/broken.json": "{",
        "manifest.json": '{"name": "my web site"}',
        "outputs.json": "[]",
        "campaigns/spring/outputs.json": '["posters"]',
        "notes.json": '{"seal": "of a harbour"}',
        "numbers.json": '{"a": 1e999, "seal": "x"}',
        "undefined.json": '{"a": NaN, "seal": "x"}',
        "empty.parquet": "",
        "journal.jsonl": "Dear diary\n",
        f"results/{WORKLOAD}/config/workload.yaml": "seed: 1\n",  # of a version without seals
    }
    for name, text in texts.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    before = contents(project)
    assert verify(project, "--repair") == (0, [f"{project}: all is sound"], "")
    assert contents(project) == before


def test_a_configuration_that_is_no_text_any_more_is_found(results, verify):
    path = results / WORKLOAD / "config/plan.yaml"
    path.write_bytes(b"\xff" + path.read_bytes())
    code, lines, _ = verify(results)
    assert code == 1
    assert lines[0].startswith(f"{path}: damaged: ")
    assert lines[-1].startswith(f"{results}: 1 damaged, 0 missing")


def test_an_edited_copy_of_a_configuration_is_kept(results, verify):
    path = results / WORKLOAD / "config/plan.yaml"
    text = path.read_text().replace("seed: 1", "seed: 2")
    path.write_text(text)
    verify(results, "--repair")
    assert path.with_name("plan.yaml.damaged").read_text() == text


def test_leftovers_of_killed_commands_alone_are_removed(results, verify):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = results / WORKLOAD / f"plan/.edp.json.{ended.pid}-123.kareus.tmp"
    left.write_text("{")
    folder = results / WORKLOAD / f".report.{ended.pid}-123.old.kareus.tmp"
    folder.mkdir()
    (folder / "page.html").touch()
    reused = results / WORKLOAD / f"plan/.edp.json.{os.getpid()}-123.kareus.tmp"  # the number of a process that runs
    reused.write_text("{")
    written = temporary_of(results / WORKLOAD / "plan/edp.json")
    written.write_text("{")
    _, lines, _ = verify(results, "--repair")
    assert lines[-1].startswith(f"{results}: 0 damaged, 0 missing, 3 left over")
    assert not left.exists()
    assert not reused.exists()
    assert not folder.exists()
    assert written.exists()
    assert verify(results)[0] == 0


NUMBERED = [
    ".work.2000000000.tmp/",
    ".x.99999999999999999999999.tmp",
    ".x.99999999999999999999999-99999999999999999999999.kareus.tmp",
    ".x.kareus.tmp",
]


@pytest.mark.parametrize("name", NUMBERED)
def test_what_is_only_named_like_a_temporary_is_left(results, verify, name):
    path = results / WORKLOAD / name
    if name.endswith("/"):
        path.mkdir()
        path /= "mine.txt"
    path.write_text("mine")
    assert verify(results, "--repair")[0] == 0
    assert path.read_text() == "mine"


def table_of_ours():
    return pl.DataFrame({"method": ["kareus", "sequential"], '"content_hash":"': ["kareus", "x"]})


TABLES_OF_USERS = {
    "filtered": lambda: table_of_ours().filter(pl.col("method") == "kareus"),
    "grouped": lambda: table_of_ours().group_by("method").len(),
    "pivoted": lambda: pl.DataFrame({"kareus": [1.0], "kareus_version": ["kareus"]}),
    "of a column of ours": lambda: pl.DataFrame({"text": ['{"kareus":{"content_hash":"' + "0" * 64 + '"}}']}),
}
"""What a user may make of a table of ours."""


@pytest.mark.parametrize("name", TABLES_OF_USERS)
@pytest.mark.parametrize("place", ["results/small/pipeline", "mine"])
def test_a_table_that_a_user_made_of_ours_is_left(results, verify, name, place):
    path = results.parent / place / "best.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    TABLES_OF_USERS[name]().write_parquet(path)
    before = path.read_bytes()
    assert verify(results.parent, "--repair") == (0, [f"{results.parent}: all is sound"], "")
    assert path.read_bytes() == before


@given(st.binary(max_size=400), st.booleans(), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_no_bytes_that_repair_finds_are_lost(results, verify, content, is_parquet, is_framed):
    path = results / WORKLOAD / f"plan/any{'.parquet' if is_parquet else '.json'}"
    path.write_bytes(b"PAR1" + content + b"PAR1" if is_framed else content)
    before = sorted(contents(results).values())
    code, lines, error = verify(results, "--repair")
    assert (code, len(lines), error) in ((0, 1, ""), (1, 2, ""))
    assert sorted(contents(results).values()) == before


@pytest.mark.parametrize("text", ["[1, 2]", '"kareus_version"', '{"kareus_version": "1"}'])
def test_notes_among_plans_are_left(results, verify, text):
    (results / WORKLOAD / "plan/notes.json").write_text(text)
    assert verify(results, "--repair")[0] == 0
    assert (results / WORKLOAD / "plan/notes.json").read_text() == text


def test_an_edited_copy_of_a_plan_is_kept(results, verify):
    path = results / WORKLOAD / "plan/mine.json"
    text = (results / WORKLOAD / "plan/fastest.json").read_text().replace("1.0", "2.0")
    path.write_text(text)
    _, lines, _ = verify(results, "--repair")
    assert lines[0].endswith("; kept as mine.json.damaged")
    assert path.with_name("mine.json.damaged").read_text() == text


def test_nothing_behind_a_linked_folder_is_touched(results, tmp_path, verify):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("precious.txt", "values.yaml"):
        (outside / name).write_text("mine")
    (results / WORKLOAD / "report/l").symlink_to(outside)
    write_json(results / WORKLOAD / "report/manifest.json", sealed({"files": {"l/precious.txt": "0" * 64}}))
    listed = [f"{WORKLOAD}/report/l/values.yaml", f"{WORKLOAD}/report/l/missing.txt"]
    write_json(results / "campaigns/mine/outputs.json", sealed({"outputs": listed}))
    (results / ".l.1-1.kareus.tmp").symlink_to(outside)
    assert verify(results, "--repair")[0] == 0
    assert contents(outside) == {outside / name: b"mine" for name in ("precious.txt", "values.yaml")}


def test_nothing_outside_the_given_folder_is_touched(results, verify):
    plan = results / WORKLOAD / "config/plan.yaml"
    plan.write_text("seed: 1\n")
    folder = results / "campaigns/mine"
    _, lines, _ = verify(folder, "--repair")
    assert lines[0] == f"{plan}: damaged: has lost its seal; left where it is: not in {folder}"
    assert plan.read_text() == "seed: 1\n"


def test_links_are_not_followed(results, tmp_path, verify):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "manifest.json").write_text("{")
    (results / "linked").symlink_to(outside)
    page = results / WORKLOAD / "report/page.html"
    page.unlink()
    page.symlink_to(outside / "manifest.json")
    assert verify(results, "--repair")[0] == 0
    assert (outside / "manifest.json").exists()


def test_a_manifest_cannot_name_files_outside_its_folder(results, tmp_path, verify):
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    for name in ("../../../outside.txt", str(outside)):
        write_json(results / WORKLOAD / "report/manifest.json", sealed({"files": {name: "0" * 64}}))
        code, lines, _ = verify(results, "--repair")
        assert code == 1
        assert "manifest.json: damaged" in lines[0]
        assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    ("lock", "folder"),
    [
        (".snakemake/kareus.lock", "results"),
        (".snakemake/kareus.lock", "."),
        ("results/training/lock", "results"),
        ("results/training/lock", "results/training"),
        ("results/training/lock", "results/training/checkpoints"),
    ],
)
def test_a_folder_with_a_running_job_is_refused(results, verify, lock, folder):
    path = results.parent / lock
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, error = verify(results.parent / folder, "--repair")
    assert code == 2
    assert "lock: another run" in error
    assert len(error.splitlines()) == 1
    assert verify(results.parent / folder)[0] == 0


def test_a_folder_that_is_not_there_is_refused(tmp_path, verify):
    code, _, error = verify(tmp_path / "none")
    assert code == 2
    assert "no such folder" in error


@pytest.mark.parametrize("place", ["search/mlp/costs.parquet", "plan/fastest.json"])
def test_a_folder_that_was_planned_alone_is_checked_as_one_of_results(results, tmp_path, verify, place):
    alone = (results / WORKLOAD).rename(tmp_path / "alone")
    assert verify(alone) == (0, [f"{alone}: all is sound"], "")
    path = alone / place
    path.write_bytes(path.read_bytes()[:20])
    code, lines, _ = verify(alone)
    assert code == 1 and lines[0].startswith(f"{path}: damaged: ")


@pytest.mark.parametrize("content", [{}, {"notes.txt": "notes", "mine.json": "{}"}])
def test_a_folder_with_nothing_to_check_is_not_called_sound(tmp_path, verify, content):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    code, lines, error = verify(tmp_path)
    assert (code, lines) == (2, [])
    assert "nothing in it is of Kareus, so nothing was checked" in error


def test_a_report_may_be_handed_on_and_verified_alone(results, verify):
    assert verify(results / WORKLOAD / "report")[0] == 0
    document = json.loads((results / WORKLOAD / "report/manifest.json").read_text())
    assert set(document["files"]) == {"page.html", "data/costs.csv"}
