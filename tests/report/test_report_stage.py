import dataclasses

from report_tables import SIMULATED, WORKLOAD, write_inputs

from kareus.cli import main


def arguments(paths, folder, workload=WORKLOAD):
    many = {
        "--candidates": paths.candidates,
        "--rounds": paths.rounds,
        "--proposals": paths.proposals,
        "--plans": paths.plans,
        "--runs": paths.runs,
    }
    one = {"--config": paths.config, "--iteration": paths.iteration, "--microbatch": paths.microbatch}
    words = ["report", "--title", workload, "--output", folder]
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
        "summary.txt",
        "timelines",
    ]
    text = (out / "summary.txt").read_text(encoding="utf-8")
    assert "kareus" in text
    assert capsys.readouterr().out == text


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
    assert line.startswith("kareus report: inputs of one stage come from different testbeds")
    assert not out.exists()
