"""The documentation site: built strictly, with reference pages that follow the code."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.browser import needs_chromium, probe

from kareus.cli import EVERY
from kareus.errors import described_in
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


def test_every_key_of_the_configuration_has_a_meaning(site):
    page = (site / "reference/configuration.html").read_text()
    rows = re.findall(
        r"<tr>\s*<td><code>([^<]+)</code></td>\s*<td><code>(.*?)</code></td>\s*<td>(.*?)</td>", page, re.S
    )
    assert {"microbatch_size", "model.hidden_size", "gpu.coefficients.contention", "search.draws"} <= {
        r[0] for r in rows
    }
    assert {"search.ensemble_size", "testbed.cuda.pool", "emulation.power_caps", "select"} <= {r[0] for r in rows}
    assert [key for key, default, meaning in rows if not default or not meaning] == []


def test_pages_that_messages_name_are_there_and_are_said_to_be_in_the_repository():
    """A wheel has none of them; sentences that are no messages are docstrings, which stand alone."""
    named, bare = [], []
    for path in (ROOT / "kareus").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="described_in"), args=[ast.Constant(value=page)]):
                    named.append(page)
                case ast.Expr(value=ast.Constant() as alone):
                    alone.value = None
                case ast.Constant(value=str(text)) if re.search(r"\bdocs/[\w/]+\.md", text):
                    bare.append((path.name, text))
    assert len(named) > 5
    assert [page for page in named if not (ROOT / "docs" / page).is_file()] == []
    assert bare == []
    assert described_in("trust.md") == "docs/trust.md in Kareus' repository"


@needs_chromium
def test_commands_and_answers_are_read_whole_on_a_telephone(site):
    """Those of the first page, whose answer has lines of 200 letters."""
    script = 'return all("pre > code").map((block) => [block.scrollWidth, block.clientWidth]);'
    widths = probe(site, (site / "index.html").read_text(), script, width=400)
    assert len(widths) > 4
    assert [pair for pair in widths if pair[0] > pair[1]] == []


def test_the_site_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert re.findall(r'src="(https?://[^"]+)"', text) == []
        assert re.findall(r'<link[^>]+href="(https?://[^"]+)"', text) == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_search_works_without_a_server(site):
    address = f"{(site / 'index.html').as_uri()}?q=straggler"
    command = ["chromium", "--headless", "--no-sandbox", "--virtual-time-budget=8000", "--dump-dom", address]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.search(r"\d+ matching documents", page)
