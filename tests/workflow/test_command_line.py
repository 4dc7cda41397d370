"""What every command does alike: one line on standard error for whatever a user can act on."""

from pathlib import Path

import pytest

from kareus.cli import main


def test_a_folder_that_cannot_be_written_is_answered_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["resolve", "--output", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"kareus resolve: {file}/llama3.2-3b_pp2-tp8_mbs8_seq4096_a100/config: Not a directory; check the path, its "
        "permissions and the space on its disk.\n"
    )


def test_a_file_in_the_place_of_a_folder_is_named_and_not_its_temporary_sibling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workloads.parquet").mkdir()
    assert main(["resolve", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"kareus resolve: {tmp_path}/workloads.parquet: Is a directory; check the path, its permissions and the space "
        "on its disk.\n"
    )
