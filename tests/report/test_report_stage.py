import dataclasses
from xml.sax.saxutils import escape

import pytest
from helpers.figures import save_empty
from helpers.report_tables import SIMULATED, WORKLOAD, write_inputs

from kareus.artifacts.outputs import check_report_folder
from kareus.cli import main
from kareus.report import page
from kareus.report.drawing import save
from kareus.report.workload.searches import search_figure


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Files of figures are tested in test_downloads.py."""
    monkeypatch.setattr(page, "save", save_empty)


def arguments(paths, folder, workload=WORKLOAD):
    many = {
        "--candidates": paths.candidates,
        "--rounds": paths.rounds,
        "--proposals": paths.proposals,
        "--plans": paths.plans,
        "--runs": paths.runs,
    }
    one = {"--config": paths.config, "--iteration": paths.iteration, "--microbatch": paths.microbatch}
    words = ["stage", "report", "--title", workload, "--output", folder]
    words += [word for option, path in one.items() for word in (option, path)]
    words += [word for option, files in many.items() for word in (option, *files)]
    return [str(word) for word in words]


def test_the_command_writes_both_and_prints_the_summary(tmp_path, capsys):
    out = tmp_path / "report"
    assert main(arguments(write_inputs(tmp_path), out)) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "data",
        "figures",
        "manifest.json",
        "page.html",
        "plans",
        "summary.txt",
        "timelines",
    ]
    text = (out / "summary.txt").read_text(encoding="utf-8")
    assert "kareus" in text
    assert capsys.readouterr().out == text
    check_report_folder(out, force=False)  # so that the next report may replace this one


def test_a_workload_without_partitions_has_a_report_too(tmp_path, capsys):
    paths, out = write_inputs(tmp_path), tmp_path / "report"
    assert main(arguments(dataclasses.replace(paths, candidates=[], rounds=[], proposals=[]), out)) == 0
    assert "kareus" in capsys.readouterr().out
    assert (out / "page.html").is_file()


def test_mixed_testbeds_leave_nothing_behind(tmp_path, capsys):
    paths, out = write_inputs(tmp_path / "one"), tmp_path / "report"
    foreign = write_inputs(tmp_path / "two", testbed=dataclasses.replace(SIMULATED, gpu="H200"))
    assert main(arguments(dataclasses.replace(paths, rounds=foreign.rounds), out)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kareus stage report: inputs of one stage come from different testbeds")
    assert not out.exists()


def test_the_command_replaces_no_file_of_the_users(tmp_path, capsys):
    paths, mine = write_inputs(tmp_path), tmp_path / "v"
    mine.mkdir()
    for name in ("summary.txt", "manifest.json"):
        (mine / name).write_text("mine")
    assert main(arguments(paths, mine)) == 2
    assert f"{mine}: the folder has files" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in mine.iterdir()} == {"summary.txt": "mine", "manifest.json": "mine"}


@pytest.mark.parametrize("command", ["report", "report-fleets"])
@pytest.mark.parametrize("title", ["\x1b[31mevil", "a\nb", "a\u202eb", "", "x" * 256])
def test_a_title_that_does_not_print_is_refused_early(command, title, tmp_path, capsys):
    words = arguments(write_inputs(tmp_path), tmp_path / "report", workload=title)
    if command == "report-fleets":
        files = [f"--{name}={tmp_path / name}" for name in ("fleet", "stragglers", "power-caps", "hours", "config")]
        words = ["stage", command, f"--title={title}", f"--output={tmp_path / 'report'}", *files]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "must have 1 to 255 characters, all of which print; give another title." in said.err
    assert (said.out + said.err).replace("\n", "").isprintable()
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("title", ["\u30e2\u30c7\u30eb", "caf\u00e9 50 % $x$ <b>"])
def test_letters_that_a_font_lacks_are_drawn_without_a_warning(title, tmp_path, recwarn):
    save(search_figure([]), title, tmp_path)
    assert not recwarn.list
    assert escape(title) in (tmp_path / "figures/search.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("tokens", ["0", "-1", "nan", "1e30"])
def test_a_run_of_no_tokens_is_refused_early(tokens, tmp_path, capsys):
    words = [*arguments(write_inputs(tmp_path), tmp_path / "report"), f"--tokens={tokens}"]
    assert main(words) == 2
    assert "--tokens" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_a_report_that_is_interrupted_does_not_stand_in_the_way_of_the_next(tmp_path, monkeypatch, capsys):
    paths, out = write_inputs(tmp_path), tmp_path / "report"
    with monkeypatch.context() as patch:
        patch.setattr(page, "page_html", interrupted)
        assert main(arguments(paths, out)) == 130
        assert not out.exists()
    assert main(arguments(paths, out)) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(page, "page_html", interrupted)
        assert main(arguments(paths, out)) == 130
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert main(arguments(paths, out)) == 0
    capsys.readouterr()


def interrupted(_):
    raise KeyboardInterrupt
