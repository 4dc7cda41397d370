"""The documentation site: built strictly, with reference pages that follow the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kareus.cli import EVERY
from kareus.export.catalogue import CAMPAIGN_CATALOGUE, CATALOGUE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def headings(page: Path) -> set[str]:
    return set(re.findall(r'<h2 id="[^"]*">([^<]+)<', page.read_text()))


def test_every_command_is_described(site):
    assert headings(site / "reference/commands.html") == set(EVERY)


def test_every_table_is_described(site):
    assert headings(site / "reference/tables.html") == {
        "workloads",
        "campaign",
        "measurements",
        "looks",
        *(e.schema.name for e in (*CATALOGUE, *CAMPAIGN_CATALOGUE)),
    }


def test_fields_of_the_configuration_have_their_meaning(site):
    text = (site / "reference/configuration.html").read_text()
    assert "Sequences of one microbatch." in text
    assert {"Model", "Gpu", "Workload"} <= headings(site / "reference/configuration.html")


def test_the_site_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'(?:src|href)="(https?://[^"]+)"[^>]*>', page.read_text())
        assert [address for address in fetched if re.search(r"\.(js|css|woff2?|png|svg)$", address)] == []
