"""Pictures of docs/research/fidelity-data.md are those of the files that ship, predicted by the GPU model of today."""

import re
from pathlib import Path

import pytest
from helpers.builders import CONFIG

import fidelity_pictures
from kareus.evidence import shipped_files
from kareus.evidence.page_figures import comparison_figure
from kareus.evidence.validation import validate_file

ROOT = Path(__file__).parents[2]
RERUN = "run make refitted"


def texts(svg):
    return re.findall(r">([^<>]+)</(?:text|title)>", svg)


def found(name):
    return validate_file(name, shipped_files()[name], (), CONFIG)


@pytest.mark.parametrize("name", ["kernel_nccl", "training_power"])
def test_pictures_of_small_files_are_of_today(name):
    drawn = fidelity_pictures.picture(comparison_figure(found(name), f"fidelity_{name}"))
    assert texts((ROOT / f"docs/pictures/fidelity_{name}.svg").read_text()) == texts(drawn), RERUN


@pytest.mark.acceptance
def test_all_pictures_are_of_today():
    for figure in fidelity_pictures.figures([found(name) for name in shipped_files()]):
        drawn = fidelity_pictures.picture(figure)
        assert texts((ROOT / f"docs/pictures/{figure.name}.svg").read_text()) == texts(drawn), RERUN


def test_every_picture_is_shown_and_labelled_simulated():
    page = (ROOT / "docs/research/fidelity-data.md").read_text()
    pictures = sorted((ROOT / "docs/pictures").glob("fidelity_*.svg"))
    assert len(pictures) == 10
    for picture in pictures:
        assert f"](../pictures/{picture.name})" in page
        assert any("simulated testbed" in text for text in texts(picture.read_text()))
