"""Recipes of CONTRIBUTING.md, followed in a temporary folder: what they add is there, by data alone."""

import ast
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.errors import ConfigError
from kareus.interchange import table
from kareus.plans import selectors
from kareus.workload.architectures import Architecture
from kareus.workload.compose import compose
from kareus.workload.expert_architectures import ALL_ARCHITECTURES

RECIPES = dict(
    re.findall(r"### Add a ([A-Za-z ]+)\n\n(.*?)(?=\n###|\Z)", (CONFIG.parent / "CONTRIBUTING.md").read_text(), re.S)
)
MOST_LINES = 15
LLAMA = {
    "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 32000,
}  # fmt: skip


def block(recipe: str) -> str:
    (code,) = re.findall(r"```[a-z]+\n(.*?)```", RECIPES[recipe], re.S)
    return code


@pytest.fixture
def config(tmp_path) -> Path:
    return Path(shutil.copytree(CONFIG, tmp_path / "config"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_short(recipe):
    assert len([line for line in RECIPES[recipe].splitlines() if line and not line.startswith("```")]) <= MOST_LINES


def test_a_family_is_a_row(tmp_path, monkeypatch):
    name, text = block("model family").split(": ", 1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": json.loads(name), "n_layers": 4, **LLAMA}))
    monkeypatch.setitem(ALL_ARCHITECTURES, json.loads(name), architecture(text))
    model = compose([f"model={path}", "parallelism.tp=1", "parallelism.pp=2"], CONFIG)[0].workload.model
    assert (model.num_layers, model.qkv_bias, model.norm_epsilon) == (4, True, 1e-5)


def architecture(text: str) -> Architecture:
    """Return the row that a line of code makes, of literals alone."""
    call = ast.parse(text.strip(), mode="eval").body
    assert isinstance(call, ast.Call)
    assert ast.unparse(call.func) == "Architecture"
    return Architecture(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})


def test_a_gpu_is_a_file(config, capsys):
    (config / "gpu/h900.yaml").write_text(block("GPU"))
    assert main(["predict", "gpu=h900", "--config-dir", str(config)]) == 0
    assert "H900-SXM5-100GB" in capsys.readouterr().out


def test_a_trainer_is_a_file_and_a_table(config, tmp_path, monkeypatch, caplog):
    tables = Path(shutil.copytree(table.FOLDER, tmp_path / "tables"))
    (tables / "newcomer.yaml").write_text(block("trainer"))
    numbers = yaml.safe_load((config / "software/nanotron.yaml").read_text()) | {"name": "newcomer"}
    (config / "software/newcomer.yaml").write_text(yaml.safe_dump(numbers))
    monkeypatch.setattr(table, "FOLDER", tables)
    for cached in (table.table_of, table._content, table._trainer):
        cached.cache_clear()
    file = tmp_path / "train.yaml"
    file.write_text("newcomer: {layers_at_once: 4, gpus: 16}\n")
    arguments = ["from", str(file), "model=llama3.2-3b", "sequence_length=4096", "num_microbatches=8"]
    caplog.set_level("INFO")
    code = main([*arguments, "--config-dir", str(config)])
    for cached in (table.table_of, table._content, table._trainer):
        cached.cache_clear()
    assert code == 0
    assert "software=newcomer" in caplog.text
    assert "microbatch_size=4" in caplog.text


def test_a_selector_is_a_member_and_two_lines(tmp_path):
    member, minimised, formula = block("selector").splitlines()
    source = Path(selectors.__file__).read_text()
    for place, line in (("COST = ", member), ("Goal.COST: ", minimised), ('measures = {"time_s": ', formula)):
        assert source.count(place) == 1
        source = source.replace(place, f"measures = {{{line} {place[12:]}" if "{" in place else f"{line}\n    {place}")
    path = tmp_path / "more_selectors.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    more = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = more  # in which dataclasses look for their annotations
    spec.loader.exec_module(more)
    plans = pl.DataFrame({"time_s": [1.0, 2.0, 3.0], "energy_j": [100.0, 20.0, 10.0]})  # 100, 80, 90 J s2
    assert more.select(more.parse_selector("ed2p"), plans, gpus=8) == 1
    assert more.select(more.parse_selector("edp"), plans, gpus=8) == 2
    with pytest.raises(ConfigError, match="allowed: fastest, min-energy, edp, ed2p, "):
        more.parse_selector("nonsense")


def test_a_page_has_a_line_in_the_navigation():
    nav = (CONFIG.parent / "mkdocs.yml").read_text()
    pages = [page.relative_to(CONFIG.parent / "docs") for page in (CONFIG.parent / "docs").rglob("*.md")]
    assert [str(page) for page in pages if f": {page}" not in nav] == []
