"""The picture of imports: every room has its place, no arrow runs back up, and nothing imports evidence."""

import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
FACE = {"kareus", "kareus.__main__"}
"""The package itself, which every module may ask for its version, and `python -m kareus`."""


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("kareus", cache_dir=None)


@pytest.fixture(scope="module")
def floors():
    """Floor of each room, the top one first, as the contract of layers declares them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {room: n for n, layer in enumerate(layers) for room in layer.split(" : ")}


def test_every_room_has_a_floor(imports, floors):
    assert imports.find_children("kareus") - FACE == set(floors)


def test_no_arrow_between_rooms_runs_back_up(imports, floors):
    """Imports for types only count, too: a picture of imports draws them."""
    pairs = {(above(importer), above(imported)) for importer, imported in arrows(imports)}
    up = sorted((a, b) for a, b in pairs if a != b and a in floors and b in floors and floors[a] >= floors[b])
    assert not up


def test_the_face_of_the_package_imports_no_room(imports):
    """It is imported by every room, and would tie them all into one knot."""
    assert not imports.find_modules_directly_imported_by("kareus")


def arrows(imports):
    for importer in imports.modules:
        for imported in imports.find_modules_directly_imported_by(importer):
            yield importer, imported


def above(module):
    """The room of a module."""
    return ".".join(module.split(".")[:2])
