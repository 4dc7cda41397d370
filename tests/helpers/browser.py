"""Headless Chromium: a page with a probe in it, which does what a reader does and writes down what it sees."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason='chromium not found: "apt-get install chromium"')
DARK, LIGHT = "--blink-settings=preferredColorScheme=0", "--blink-settings=preferredColorScheme=1"
TOOLS = """
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const one = (selector, within = document) => within.querySelector(selector);
const soon = async (holds) => {
  for (let i = 0; i < 400 && !holds(); i++) await new Promise((go) => setTimeout(go, 25));
  return holds();
};
const isOpen = (box) => !box.closest("details:not([open])");
const drawn = () => soon(() => all("[data-figure]").filter(isOpen).every((box) => box.dataset.drawn !== undefined));
const clickOn = (mark) => {
  const at = mark.getBoundingClientRect();
  const where = { clientX: at.x + at.width / 2, clientY: at.y + at.height / 2, bubbles: true, view: window };
  for (const type of ["mousemove", "mousedown", "mouseup", "click"]) mark.dispatchEvent(new MouseEvent(type, where));
};
const tipOf = async (mark) => {
  const at = mark.getBoundingClientRect();
  const where = { clientX: at.x + at.width / 2, clientY: at.y + at.height / 2, bubbles: true, view: window };
  for (const type of ["pointerover", "pointermove", "mouseover", "mousemove"])
    mark.dispatchEvent(new (type.startsWith("p") ? PointerEvent : MouseEvent)(type, where));
  await new Promise((go) => setTimeout(go, 50));
  return one("#vg-tooltip-element")?.innerText ?? null;
};
const marksOf = (figure, name) => all(`[data-figure="${figure}"] .${name}_marks > *`);
"""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0"),
)


def browse(folder: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page, with `folder` for the browser's own files; fails if it says anything on the console but `probed`."""
    command = [CHROMIUM or "", *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    said = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert all('"probed"' in line for line in said), said
    return ran


def probe(folder: Path, page: str, script: str, *flags: str, width: int | None = None) -> Any:
    """What `script` returns in a page: the body of a function that may wait, after all that is open was drawn.

    Args:
        folder: for files.
        page: the page as text.
        script: uses `TOOLS`.
        flags: of Chromium.
        width: of a frame around the page, narrower than a window can be.
    """
    run = (
        f"{TOOLS}\nconst seen = await (async () => {{ await drawn();\n{script} }})();\n"
        "const output = document.createElement('output');\noutput.id = 'seen';\n"
        "output.textContent = JSON.stringify(seen);\n"
        "if (parent === window) document.body.append(output); else parent.postMessage(output.textContent, '*');\n"
        "console.log('probed');"
    )
    before, end, after = page.rpartition("</body>")
    probed = f'{before}<script type="module">{run}</script>{end}{after}'
    (folder / "page.html").write_text(probed, encoding="utf-8")
    (folder / "frame.html").write_text(
        f'<!doctype html><body style="margin:0"><iframe src="page.html" width="{width}" height="900" style="border:0">'
        '</iframe><output id="seen"></output>'
        "<script>onmessage = (e) => { document.getElementById('seen').textContent = e.data; };</script>",
        encoding="utf-8",
    )
    ran = browse(folder, folder / ("frame.html" if width else "page.html"), "--dump-dom", *flags)
    (text,) = re.findall(r'<output id="seen">(.*?)</output>', ran.stdout, flags=re.DOTALL)
    return json.loads(html.unescape(text))
