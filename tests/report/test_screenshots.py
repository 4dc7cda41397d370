"""Pages as they look: at three widths, light and dark, each part of them drawn, and nothing said on the console."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.campaign_results import CAMPAIGN_NAME, write_campaign
from helpers.report_tables import WORKLOAD
from PIL import Image
from test_browser import CHROMIUM, DARK, LIGHT

from kareus.cli import main

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason='chromium not found: install it with "apt-get install chromium"'
)
WIDTHS = (390, 768, 1280)
HEIGHT = 2400
PAPER = {LIGHT: (255, 255, 255), DARK: (20, 23, 27)}
BANDS = 6
"""Parts of a page, from its top, in each of which there must be something."""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = write_campaign(tmp_path_factory.mktemp("screenshots") / "results")
    assert main(["stage", "report-campaign", CAMPAIGN_NAME, "--results", str(folder.parents[2])]) == 0
    return folder


def photographed(page: Path, folder: Path, scheme: str) -> Image.Image:
    """All widths beside each other, after checking that the console says nothing."""
    frames = "".join(
        f'<iframe src="{page.as_uri()}" width="{width}" height="{HEIGHT}" style="border:0;float:left"></iframe>'
        for width in WIDTHS
    )
    (folder / "frames.html").write_text(f'<!doctype html><body style="margin:0">{frames}</body>', encoding="utf-8")
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=4000", "--enable-logging=stderr", "--v=0"),
        *(scheme, f"--window-size={sum(WIDTHS)},{HEIGHT}", f"--screenshot={folder / 'seen.png'}"),
        (folder / "frames.html").as_uri(),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert [line for line in ran.stderr.splitlines() if "CONSOLE" in line] == []
    return Image.open(folder / "seen.png").convert("RGB")


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", f"workloads/{WORKLOAD}/page.html"], ids=["campaign", "workload"])
def test_a_page_is_drawn_at_every_width_and_in_both_schemes(report, tmp_path, name, scheme):
    seen = np.asarray(photographed(report / name, tmp_path, scheme))
    assert seen.shape == (HEIGHT, sum(WIDTHS), 3)
    left = 0
    for width in WIDTHS:
        part = seen[:, left : left + width]
        assert tuple(part[2, 2]) == PAPER[scheme], width
        for band in np.array_split(part, BANDS):
            assert (band != np.array(PAPER[scheme])).any(axis=2).mean() > 0.005, (width, "an empty band")
        left += width
