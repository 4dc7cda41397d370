"""The wheel: built from a checkout, installed into an empty environment, and used in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("kareus", "snakemake_logger_plugin_kareus")
PARTS = ("Snakefile", "config", "workflow", "profiles", "envs")
BUILD = (*PACKAGES, *PARTS, "pyproject.toml", "setup.py", "README.md", "LICENSE")
CONFIG_JSON = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}
"""A file as the Hugging Face hub has it for Llama 3.2 1B."""


def files_of(*places: str) -> set[str]:
    """Files of the checkout, without what Python caches."""
    found = (path for place in places for path in (ROOT / place, *(ROOT / place).rglob("*")) if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network, of a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("built")
    for name in files_of(*BUILD):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", folder, folder / "source"], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_has_what_a_checkout_has(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_of(*PACKAGES) | {f"kareus/shipped/{name}" for name in files_of(*PARTS)}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of an environment with the wheel, and of what it depends on; the checkout is not in it.

    The dependencies are those of this environment, by a path file: what an editable install adds there does not count.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--no-compile", "--ignore-installed", wheel], check=True)
    return folder / "bin"


def ran(program: Path, *arguments: str, cwd: Path, code: int = 0) -> str:
    """What a program of the environment prints, in a folder and with nothing of this checkout around it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    done = subprocess.run(
        [program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_an_empty_folder_is_enough_for_a_first_answer(installed, tmp_path):
    where = "import kareus, kareus.artifacts.shipped as s; print(kareus.__file__, s.config_folder(), sep='\\n')"
    package, config = ran(installed / "python", "-c", where, cwd=tmp_path).split()
    assert Path(package).is_relative_to(installed.parent)
    assert Path(config).is_relative_to(installed.parent)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_JSON))
    asked = [
        "advise",
        "model=./config.json",
        "gpu=h200",
        "--gpus",
        "1",
        "--global-batch",
        "2",
        "tp=1",
        "recompute=none",
    ]
    assert "kareus export" in ran(installed / "kareus", *asked, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.acceptance
def test_a_folder_is_advised_in_and_planned_in(installed, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_JSON))
    asked = ["advise", "model=./config.json", "gpu=h200", "--gpus", "8", "--global-batch", "64"]
    said = ran(installed / "kareus", *asked, cwd=tmp_path)
    assert "kareus export" in said
    assert "next: cd plans" in ran(installed / "kareus", "init", "plans", cwd=tmp_path)
    snakemake = ("-m", "snakemake")
    said = ran(installed / "python", *snakemake, "-n", "--logger-kareus-show=snakemake", cwd=tmp_path / "plans")
    assert "solve_pipeline" in said
    plan = "results/llama3.2-3b_pp2-tp8_mbs8_seq4096_a100/plan/fastest.json"
    ran(installed / "python", *snakemake, plan, cwd=tmp_path / "plans")
    assert "fastest" in ran(installed / "kareus", "results", cwd=tmp_path / "plans")
