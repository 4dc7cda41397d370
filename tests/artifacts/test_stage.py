"""The adapter between command lines and stage functions, with a stage of two inputs."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.artifacts.stage import InputTable, OutputTable, TableStage
from kareus.artifacts.tables import Column, TableSchema, read_provenance, read_table, write_table
from kareus.errors import ArtifactError, StageInputError

NUMBERS = TableSchema(name="numbers", version=1, meaning="", columns=(Column("n", pl.Int64, ""),), key=("n",))


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorSlice:
    factor: int


def multiply(config: FactorSlice, numbers: pl.DataFrame, others: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    if numbers.is_empty():
        raise StageInputError("numbers", "no rows.")
    for name, own in others.items():
        if own.is_empty():
            raise StageInputError("others", "no rows.", name)
    return {"products": pl.concat([numbers, *others.values()]) * config.factor}


def check_names(_config: FactorSlice, names: list[str]) -> None:
    if len(names) != len(set(names)):
        raise StageInputError("others", "a folder twice.")


STAGE: TableStage[FactorSlice] = TableStage(
    config=FactorSlice,
    inputs=(
        InputTable(option="numbers", schema=NUMBERS, help="numbers", config_hash=lambda _: "made"),
        InputTable(option="others", schema=NUMBERS, help="more", check_folders=check_names),
    ),
    outputs=(OutputTable(option="products", schema=NUMBERS, help="products"),),
    compute=multiply,
    subject=lambda _: "subject",
)


def written(path: Path, *numbers: int, config_hash: str = "made", subject: str = "subject") -> Path:
    path.parent.mkdir(exist_ok=True)
    origin = Provenance(config_hash=config_hash, subject=subject)
    write_table(path, NUMBERS.frame([{"n": n} for n in numbers]), NUMBERS, origin)
    return path


def multiplied(folder: Path, numbers: Path, *others: Path) -> Path:
    """Run the stage by its command line."""
    (folder / "config.yaml").write_text(to_yaml(FactorSlice(factor=3)))
    parser = argparse.ArgumentParser()
    STAGE.add_arguments(parser)
    given = [f"--config={folder / 'config.yaml'}", f"--numbers={numbers}", f"--products={folder / 'products.parquet'}"]
    STAGE.run(parser.parse_args([*given, "--others", *map(str, others)]))
    return folder / "products.parquet"


def test_a_stage_reads_computes_and_hands_on_the_subject(tmp_path):
    others = [written(tmp_path / name / "n.parquet", n) for name, n in (("a", 2), ("b", 3))]
    products = multiplied(tmp_path, written(tmp_path / "n.parquet", 1), *others)
    assert read_table(products, NUMBERS)["n"].to_list() == [3, 6, 9]
    origin = read_provenance(products, NUMBERS)
    assert (origin.subject, origin.config_hash) == ("subject", content_hash(FactorSlice(factor=3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subject": "other"}, "n.parquet: made for another workload"),
        ({"config_hash": "other"}, "n.parquet: made with another configuration"),
    ],
)
def test_an_input_of_another_origin_is_refused(tmp_path, changes, message):
    with pytest.raises(ArtifactError, match=message):
        multiplied(tmp_path, written(tmp_path / "n.parquet", 1, **changes))


def test_errors_about_an_input_name_its_file(tmp_path):
    with pytest.raises(ArtifactError) as raised:
        multiplied(tmp_path, written(tmp_path / "n.parquet"))
    assert str(raised.value) == f"{tmp_path / 'n.parquet'}: no rows."
    full, empty = written(tmp_path / "a" / "n.parquet", 2), written(tmp_path / "b" / "n.parquet")
    with pytest.raises(ArtifactError) as raised:
        multiplied(tmp_path, written(tmp_path / "n.parquet", 1), full, empty)
    assert str(raised.value) == f"{empty}: no rows."


def test_errors_about_a_set_of_inputs_name_the_option(tmp_path):
    full = written(tmp_path / "a" / "n.parquet", 2)
    with pytest.raises(ArtifactError) as raised:
        multiplied(tmp_path, written(tmp_path / "n.parquet", 1), full, full)
    assert str(raised.value) == "--others: a folder twice."
