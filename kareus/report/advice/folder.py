"""The folder of a campaign's advice: what `kareus advise` writes, the text of the answer, and a manifest."""

from pathlib import Path

from kareus.adviser.answers import Advice
from kareus.adviser.lines import answer_lines
from kareus.adviser.writing import ANSWER
from kareus.artifacts.files import write_text
from kareus.artifacts.manifest import write_manifest
from kareus.report.advice.page import PAGE, write_page
from kareus.report.contents import ADVICE_TABLES, SUMMARY, report_contents


def write_folder(folder: Path, advice: Advice) -> str:
    """Write an answer into a folder, and return its text."""
    write_page(folder, advice)
    text = "".join(f"{line}\n" for line in answer_lines(advice))
    write_text(folder / SUMMARY, text)
    tables = [f"{name}.parquet" for name in ADVICE_TABLES]
    contents = report_contents((PAGE, SUMMARY, ANSWER, *tables), (), ADVICE_TABLES)
    write_manifest(folder / "manifest.json", [folder / file for file in contents])
    return text
