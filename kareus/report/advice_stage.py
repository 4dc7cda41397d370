"""The stage `report-advice`: answer the question of a campaign, and write the answer with its tables and its page."""

import argparse
from pathlib import Path

from kareus.artifacts.outputs import add_force, check_report_folder
from kareus.errors import printable_lines
from kareus.workload.arguments import add_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question and the output."""
    text = (
        "the question as a campaign holds it, such as model=llama3.1-8b gpus=8 global_batch=128 tokens=1e11 "
        "deadline=30d tp=1,2"
    )
    add_overrides(parser, text)
    text = "folder for page.html, summary.txt, advice.json, the tables (Parquet) and data/ (CSV, Parquet)"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Answer, write, and print the answer."""
    check_report_folder(arguments.output, force=arguments.force)
    from kareus.adviser.advice import answer  # noqa: PLC0415 - the GPU model and the solver, for which errors need not wait
    from kareus.adviser.question import question_of  # noqa: PLC0415 - as above
    from kareus.report.advice_page import advice_text, write_folder  # noqa: PLC0415

    advice = answer(question_of(arguments.overrides, arguments.config_dir))
    write_folder(arguments.output, advice)
    print(printable_lines(advice_text(advice)), end="")  # noqa: T201 - the answer of the command
