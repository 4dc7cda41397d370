"""`kareus init` and where commands find their configuration: in the current folder, else with the package."""

import filecmp
from pathlib import Path

import pytest
from helpers.preloaded import would_run

from kareus.artifacts.shipped import config_folder
from kareus.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def laid_out(tmp_path, monkeypatch, capsys) -> Path:
    """A folder of `kareus init`, below the current one."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "plans"]) == 0
    assert "next: cd plans && snakemake -n" in capsys.readouterr().out
    return tmp_path / "plans"


def test_a_new_folder_has_what_a_checkout_has(laid_out):
    for name in ("Snakefile", "config/config.yaml", "config/gpu/h200.yaml", "workflow/rules/common.smk"):
        assert filecmp.cmp(laid_out / name, ROOT / name, shallow=False)
    for name in ("profiles/default/profile.yaml", "workflow/report/page.rst", "envs/kareus.yaml"):
        assert filecmp.cmp(laid_out / name, ROOT / name, shallow=False)
    assert {path.name for path in laid_out.iterdir()} == {"Snakefile", "config", "workflow", "profiles", "envs"}


def test_laying_out_again_changes_nothing(laid_out, capsys):
    (laid_out / "config/campaign/mine.yaml").write_text("workloads: [microbatch_size=4]\n")
    assert main(["init", "plans"]) == 0
    assert capsys.readouterr().out == "plans: has all of it already\n"
    assert (laid_out / "config/campaign/mine.yaml").exists()


def test_changed_files_are_replaced_only_by_force(laid_out, capsys):
    changed = laid_out / "config/config.yaml"
    changed.write_text("# mine\n")
    (laid_out / "Snakefile").unlink()
    assert main(["init", "plans"]) == 2
    assert "config/config.yaml; give a new folder, or --force" in capsys.readouterr().err
    assert changed.read_text() == "# mine\n"
    assert not (laid_out / "Snakefile").exists()
    assert main(["init", "plans", "--force"]) == 0
    assert "1 files written, 1 files replaced" in capsys.readouterr().out
    assert filecmp.cmp(changed, ROOT / "config/config.yaml", shallow=False)
    assert filecmp.cmp(laid_out / "Snakefile", ROOT / "Snakefile", shallow=False)


@pytest.mark.parametrize(
    ("folder", "said"), [("a{b}", "without braces"), ("no/../where", "there is no folder"), ("file", "is a file")]
)
def test_folders_that_cannot_be_laid_out_are_refused(folder, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["init", folder]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_configuration_is_that_of_the_folder_else_of_the_package(laid_out, monkeypatch, capsys):
    assert config_folder() == ROOT / "config"
    assert main(["resolve", "gpu=mine"]) == 2
    assert "gpu=mine: unknown option" in capsys.readouterr().err
    (laid_out / "config/gpu/mine.yaml").write_text((ROOT / "config/gpu/a100-sxm4-40gb.yaml").read_text())
    monkeypatch.chdir(laid_out)
    assert config_folder() == Path("config")
    assert main(["resolve", "gpu=mine"]) == 0


def test_a_configuration_of_another_program_is_not_ours(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("defaults: [db: mysql]\n")
    monkeypatch.chdir(tmp_path)
    assert config_folder() == ROOT / "config"
    assert main(["resolve"]) == 0


def test_nobody_is_told_to_write_into_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["campaign", "mine"]) == 2
    assert "lay out a folder with kareus init FOLDER and write its config/campaign/mine.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_snakemake_runs_in_the_folder(laid_out):
    jobs = would_run(laid_out)
    assert jobs["solve_pipeline"] == 1
