"""Command `advise`: which layout and which plan for a model on so many GPUs, and the commands to go on with."""

import argparse
import dataclasses
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from kareus.artifacts.outputs import add_force, check_folder, check_not_results
from kareus.cli.parser import steps_beside_answer
from kareus.errors import printable
from kareus.workload.arguments import add_overrides

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question and the output."""
    add_overrides(
        parser,
        "model=... gpu=... software=... precision=..., and constraints of layouts: tp, pp, dp, cp, ep, chunks, "
        "microbatch_size, recompute, sharding, sequence_parallel, shards, schedule, such as tp=8 pp=2,4 recompute=none",
    )
    text = (
        "file of your trainer that has model, software, GPUs and batch (see kareus help from); its layout is compared"
    )
    parser.add_argument("--from", dest="files", action="append", type=Path, metavar="FILE", help=text)
    parser.add_argument("--gpus", help="GPUs of the job, such as 64; 16,64; or a range: 16..256")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences of an iteration")
    parser.add_argument(
        "--sequence-length", type=int, metavar="N", help="tokens of a sequence (default: as configured)"
    )
    parser.add_argument("--tokens", type=float, help="tokens of the whole training, such as 1e11")
    parser.add_argument("--deadline", metavar="TIME", help="time for the whole training, such as 30d or 12h")
    parser.add_argument("--max-power", metavar="POWER", help="cap on the mean power of all GPUs, such as 35kW")
    parser.add_argument("--max-node-power", metavar="POWER", help="cap on the mean power of the GPUs of a node")
    parser.add_argument("--max-gpu-power", metavar="POWER", help="power limit of every GPU, such as 500W")
    parser.add_argument(
        "--price", metavar="PRICE", help="of energy, such as 0.12perkWh or 120EURperMWh, or a CSV file of a grid"
    )
    parser.add_argument("--gpu-price", metavar="PRICE", help="of a GPU, such as 2.5perGPUh")
    parser.add_argument("--carbon", metavar="GRAMS", help="of energy, such as 400gperkWh, or a CSV file of a grid")
    parser.add_argument(
        "--least",
        choices=("time", "energy", "cost", "edp"),
        help="what the plan has the least of (default: cost with prices, energy with a deadline, else time)",
    )
    text = "what runs the plan, and so what layouts are ranked by: kareus (Kareus' engine), megatron-core, torchtitan, "
    text += "nanotron, hugging-face (default: that of the software)"
    parser.add_argument("--trainer", metavar="NAME", help=text)
    text = "CSV file of layouts with the times that you measured, such as of those that an answer asks for, or oom"
    parser.add_argument("--measured", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    text = "folder for tables (Parquet), answer (JSON) and the page, which has all layouts (default: all is printed)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=text)
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Ask, answer, print, and write where there is a folder for it."""
    if arguments.output is not None:
        check_folder(arguments.output, force=arguments.force)
        check_not_results(arguments.output)
    from kareus.adviser.advice import answer  # noqa: PLC0415 - the GPU model and the solver, for which errors need not wait
    from kareus.adviser.from_files import asked_of  # noqa: PLC0415 - as above
    from kareus.adviser.goals import goals_of  # noqa: PLC0415
    from kareus.adviser.lines import answer_lines, short_lines  # noqa: PLC0415
    from kareus.adviser.measured import with_measured  # noqa: PLC0415
    from kareus.adviser.plain import plain  # noqa: PLC0415
    from kareus.adviser.question import ask  # noqa: PLC0415
    from kareus.workload.overrides import check_given_once  # noqa: PLC0415 - Hydra, which is slow to import

    check_given_once(arguments.overrides)
    asked = asked_of(
        arguments.files or [],
        arguments.overrides,
        gpus=arguments.gpus,
        global_batch=arguments.global_batch,
        sequence_length=arguments.sequence_length,
        config_dir=arguments.config_dir,
    )
    with steps_beside_answer(__name__):
        for line in asked.left_out:
            logger.info("%s", printable(line))
    question = ask(
        asked.overrides,
        gpus=asked.gpus,
        global_batch=asked.global_batch,
        sequence_length=asked.sequence_length,
        goals=goals_of(
            least=arguments.least,
            tokens=arguments.tokens,
            deadline=arguments.deadline,
            max_power=arguments.max_power,
            max_node_power=arguments.max_node_power,
            max_gpu_power=arguments.max_gpu_power,
            price_of_energy=arguments.price,
            gpu_price=arguments.gpu_price,
            carbon=arguments.carbon,
        ),
        config_dir=arguments.config_dir,
        trainer=arguments.trainer,
        job=asked.job,
        files=arguments.files or (),
        given=asked.given,
    )
    if arguments.output is not None:
        from kareus.report.advice_page import check_same_question  # noqa: PLC0415 - only where a page is written

        check_same_question(arguments.output, question, force=arguments.force)
    with steps_beside_answer("kareus.adviser.advice"):
        advice = answer(question if arguments.measured is None else with_measured(question, arguments.measured))
    if arguments.output is not None:
        advice = dataclasses.replace(advice, output=arguments.output)
    columns = shutil.get_terminal_size((0, 0)).columns or None  # a pipe has none, unless COLUMNS is set
    lines: Sequence[str] = (
        [json.dumps(plain(advice), allow_nan=False)]
        if arguments.json
        else [*(answer_lines(advice, columns) if arguments.output is None else short_lines(advice))]
    )
    print("\n".join(map(printable, lines)))  # noqa: T201 - the answer of the command
    if arguments.output is not None:
        from kareus.report.advice_page import write_folder  # noqa: PLC0415 - only where a page is written

        page = write_folder(arguments.output, advice)
        if not arguments.json:
            logger.info("page   %s", page)
