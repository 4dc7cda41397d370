"""Pages as they look: at two widths, light and dark, each part of them drawn, and nothing said on the console."""

from pathlib import Path

import numpy as np
import pytest
from helpers.browser import DARK, LIGHT, browse, needs_chromium
from helpers.campaign_results import CAMPAIGN_NAME, write_campaign
from helpers.figures import save_empty
from helpers.report_tables import WORKLOAD
from PIL import Image

from kareus.cli import main
from kareus.report import page
from kareus.report.theme import PAPER

pytestmark = needs_chromium
WIDTHS = (400, 1280)
HEIGHT = 2400
BANDS = 6
"""Parts of a page, from its top, in each of which there must be something."""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = write_campaign(tmp_path_factory.mktemp("screenshots") / "results")
    with pytest.MonkeyPatch.context() as patch:  # files of figures are tested elsewhere
        patch.setattr(page, "save", save_empty)
        assert main(["stage", "report-campaign", CAMPAIGN_NAME, "--results", str(folder.parents[2])]) == 0
    return folder


def photographed(pages: list[Path], folder: Path, flag: str) -> Image.Image:
    """All pages at all widths beside each other."""
    frames = "".join(
        f'<iframe src="{page.as_uri()}" width="{width}" height="{HEIGHT}" style="border:0;float:left"></iframe>'
        for page in pages
        for width in WIDTHS
    )
    (folder / "frames.html").write_text(f'<!doctype html><body style="margin:0">{frames}</body>', encoding="utf-8")
    size = f"--window-size={len(pages) * sum(WIDTHS)},{HEIGHT}"
    browse(folder, folder / "frames.html", flag, size, f"--screenshot={folder / 'seen.png'}")
    return Image.open(folder / "seen.png").convert("RGB")


@pytest.mark.parametrize(("scheme", "flag"), [("light", LIGHT), ("dark", DARK)])
def test_pages_are_drawn_at_every_width_and_in_both_schemes(report, tmp_path, scheme, flag):
    pages = [report / "index.html", report / f"workloads/{WORKLOAD}/page.html"]
    seen = np.asarray(photographed(pages, tmp_path, flag))
    paper = np.array([int(PAPER[scheme][i : i + 2], 16) for i in (1, 3, 5)])
    left = 0
    for width in WIDTHS * len(pages):
        part = seen[:, left : left + width]
        assert (part[2, 2] == paper).all(), width
        for band in np.array_split(part, BANDS):
            assert (band != paper).any(axis=2).mean() > 0.005, (width, "an empty band")
        left += width
