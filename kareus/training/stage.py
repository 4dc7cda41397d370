"""Command `train`: train a workload, by a plan or without, on all its ranks.

A call on the command line starts the ranks of this machine; a process that torchrun started is one of them. A plan of
the simulated testbed is played back, unless a communicator is given.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from kareus.artifacts.outputs import add_force, check_folder, check_outputs, table
from kareus.device.cuda import prepare_cuda
from kareus.errors import ConfigError
from kareus.launch.heartbeats import Patience
from kareus.launch.machine import check_machine
from kareus.launch.processes import is_rank, launch
from kareus.launch.start_store import GOES_ON
from kareus.launch.torch_version import check_torch_version
from kareus.model.weight_files import check_weight_files
from kareus.plans.check_stage import read_checked_plan, workload_folder
from kareus.plans.document import Plan
from kareus.plans.locate import plan_path, workload_path
from kareus.runtime.engine_checks import check_captures, check_runs, check_trains
from kareus.testbed.config import TestbedKind
from kareus.training.checkpoint_files import iterations_in
from kareus.training.job import TrainingJob, planned_job, unplanned_job
from kareus.training.metrics import check_metrics
from kareus.training.settings import MOST_ITERATIONS, LearningRateSchedule, OptimizerSettings, TrainingSettings
from kareus.training.simulated import PLAYED_BACK, play_back_training
from kareus.training.tables import ITERATIONS
from kareus.training.text import text_files
from kareus.training.tokenizers import check_tokenizer
from kareus.training.tokens import open_tokens
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)

COMMUNICATORS = ("gloo", "nccl", "mscclpp")
CLOCKS = ("planned", "dry", "default")
_LOGGED = "TORCH_CPP_LOG_LEVEL"
"""Variable of PyTorch, whose store warns with a stack of a loss that `kareus.launch.watch` says in a line."""
_OPTIONS = {
    "iterations": "--iterations",
    "seed": "--seed",
    "peak": "--learning-rate",
    "final": "--final-rate",
    "warmup_iterations": "--warmup",
    "weight_decay": "--weight-decay",
    "largest_norm": "--clip",
    "checkpoint_every": "--checkpoint-every",
    "keep": "--keep",
    "heartbeat_s": "--heartbeat",
    "stall_s": "--stall",
}
"""Options of numbers by the fields of records, which errors of ranges name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `train`."""
    text = "plan file, or the folder of a workload that has one plan; none trains sequentially, see --workload"
    parser.add_argument("plan", type=Path, nargs="?", help=text)
    parser.add_argument("--folder", type=Path, help="results folder of the workload (default: the one the plan is in)")
    parser.add_argument(
        "--workload", type=Path, help="resolved workload (YAML), or the folder of one, to train without a plan"
    )
    parser.add_argument(
        "--iterations", type=int, required=True, help="iterations in all, those before a resumption too"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of checkpoints and measurements")
    parser.add_argument("--metrics", type=Path, help="folder for TensorBoard event files (needs tensorboard)")
    _add_learning(parser)
    _add_running(parser)
    add_force(parser)


def _add_learning(parser: argparse.ArgumentParser) -> None:
    """Declare what is learned from what and how, and what is kept of it."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", default="synthetic", help="`synthetic`, a token file (*.bin), or texts: a file or folder"
    )
    data.add_argument("--tokenizer", default="bytes", help="of texts: `bytes` (default) or a tokenizer.json")
    data.add_argument("--weights", type=Path, help="Hugging Face checkpoint to begin with (default: drawn)")
    data.add_argument("--seed", type=int, help="of weights and of the order of the data (default: the workload's)")
    optimizer = parser.add_argument_group("optimizer")
    optimizer.add_argument("--learning-rate", type=float, default=3e-4, help="largest rate (default: 3e-4)")
    optimizer.add_argument("--final-rate", type=float, help="rate that it falls to (default: a tenth)")
    optimizer.add_argument("--warmup", type=int, default=0, metavar="N", help="iterations to reach it (default: 0)")
    optimizer.add_argument("--weight-decay", type=float, default=0.1, help="of AdamW (default: 0.1)")
    optimizer.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient (default: 1)")
    checkpoints = parser.add_argument_group("checkpoints")
    checkpoints.add_argument(
        "--checkpoint-every", type=int, default=0, metavar="N", help="iterations between them (default: 0, at the end)"
    )
    checkpoints.add_argument("--keep", type=int, default=2, help="checkpoints to keep (default: 2)")
    checkpoints.add_argument("--export", type=Path, help="folder for a Hugging Face checkpoint of the trained weights")


def _add_running(parser: argparse.ArgumentParser) -> None:
    """Declare how ranks run, and how long one waits for another."""
    failures = parser.add_argument_group("failures of ranks")
    failures.add_argument(
        "--heartbeat",
        type=float,
        default=Patience().heartbeat_s,
        metavar="S",
        help="seconds of silence of a rank that end all, where there are several (default: 60)",
    )
    failures.add_argument(
        "--stall",
        type=float,
        default=Patience().stall_s,
        metavar="S",
        help="seconds without progress of a rank that end all, where there are several (default: 1800)",
    )
    device = parser.add_argument_group("device")
    device.add_argument(
        "--communicator",
        choices=COMMUNICATORS,
        help="gloo trains on CPUs (default: as the plan was measured, else nccl; a simulated plan is played back)",
    )
    device.add_argument(
        "--cuda-graphs", action="store_true", help="launch the blocks of an instruction by one CUDA graph (GPUs only)"
    )
    device.add_argument(
        "--clocks",
        choices=CLOCKS,
        help="dry prints what would be set (default: planned, or default where the workload was measured so)",
    )
    device.add_argument(
        "--strict-clocks",
        action="store_true",
        help="end where the driver refuses a clock (default: go on at its own clock, and try again)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Train as one rank, or start all ranks."""
    arguments.plan = arguments.plan and plan_path(arguments.plan)
    arguments.workload = arguments.workload and workload_path(arguments.workload)
    check_folder(arguments.output, force=arguments.force)
    for folder in (arguments.export, arguments.metrics):
        if folder is not None:
            check_folder(folder, force=arguments.force)
    check_outputs(arguments, [(arguments.output / PLAYED_BACK, table(ITERATIONS))])
    prepare_cuda()
    os.environ.setdefault(_LOGGED, "ERROR")
    if not is_rank(os.environ):
        settings, simulated = _settings(arguments), _simulated(arguments)
        if simulated:
            home = workload_folder(arguments.plan, arguments.folder)
            play_back_training(*simulated, home, settings, force=arguments.force)
            return
        job = _job(arguments)
        workload = job.workload
        communicator = arguments.communicator or job.communicator
        check_runs(workload)
        check_trains(workload.model, workload.sequence_length, "cpu" if communicator == "gloo" else "cuda")
        if settings.cuda_graphs:
            check_captures(workload, communicator)
        check_machine(workload, communicator)
        check_inputs(settings)
        if workload.parallelism.gpus > 1:
            logger.info("starting %d ranks on this machine", workload.parallelism.gpus)
            launch(sys.argv[1:], workload.parallelism.gpus)
            return
    check_torch_version()  # a rank that torchrun started
    from kareus.training.rank import train  # noqa: PLC0415 - imports torch, which starting ranks does not need

    try:
        train(lambda: _job_and_settings(arguments), arguments.communicator, _patience(arguments))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(GOES_ON) from None


def _simulated(arguments: argparse.Namespace) -> tuple[Plan, Workload] | None:
    """Return the plan and its workload if it is to be played back, else None."""
    if arguments.plan is None or arguments.workload is not None or arguments.communicator is not None:
        return None
    plan, workload = read_checked_plan(arguments.plan, arguments.folder)
    return (plan, workload) if workload.testbed.kind is TestbedKind.SIMULATED else None


def _patience(arguments: argparse.Namespace) -> Patience:
    """Return the timeouts of `arguments`, or the default ones where a number is out of range.

    `_settings` refuses such a number later, when ranks watch each other, so that only one of them prints the error.
    """
    try:
        return Patience(heartbeat_s=arguments.heartbeat, stall_s=arguments.stall)
    except ConfigError:
        return Patience()


def _job_and_settings(arguments: argparse.Namespace) -> tuple[TrainingJob, TrainingSettings]:
    """Return what is to be trained and how.

    Raises:
        KareusError: the plan or workload cannot be read, or a number is out of range.
    """
    _check_subject(arguments)
    settings = _settings(arguments)
    return _job(arguments), settings


def _job(arguments: argparse.Namespace) -> TrainingJob:
    _check_subject(arguments)
    return planned_job(arguments.plan, arguments.folder) if arguments.plan else unplanned_job(arguments.workload)


def _check_subject(arguments: argparse.Namespace) -> None:
    if (arguments.plan is None) == (arguments.workload is None):
        raise ConfigError("give a plan, or --workload and a resolved workload; not both.")


def _settings(arguments: argparse.Namespace) -> TrainingSettings:
    """Return the settings of `arguments`. They do not depend on the workload and are checked before it is read.

    Raises:
        ConfigError: a number is out of range, a timeout too; the message names its option.
    """
    try:
        settings = _checked_settings(arguments)
        Patience(heartbeat_s=arguments.heartbeat, stall_s=arguments.stall)
    except ConfigError as error:
        name, equals, rest = str(error).partition("=")
        raise ConfigError(f"{_OPTIONS[name]} {rest}" if equals and name in _OPTIONS else str(error)) from error
    return settings


def _checked_settings(arguments: argparse.Namespace) -> TrainingSettings:
    rate = arguments.learning_rate
    return TrainingSettings(
        iterations=arguments.iterations,
        data=arguments.data,
        tokenizer=arguments.tokenizer,
        output=arguments.output,
        weights=arguments.weights,
        seed=arguments.seed,
        checkpoint_every=arguments.checkpoint_every,
        keep=arguments.keep,
        export=arguments.export,
        metrics=arguments.metrics,
        replace_export=arguments.force,
        optimizer=OptimizerSettings(weight_decay=arguments.weight_decay, largest_norm=arguments.clip),
        learning_rate=LearningRateSchedule(
            peak=rate,
            final=rate / 10 if arguments.final_rate is None else arguments.final_rate,
            warmup_iterations=arguments.warmup,
            # a larger number of iterations is out of range in itself
            decay_iterations=min(MOST_ITERATIONS, max(0, arguments.iterations - arguments.warmup)),
        ),
        cuda_graphs=arguments.cuda_graphs,
        clocks=arguments.clocks,
        strict_clocks=arguments.strict_clocks,
    )


def check_inputs(settings: TrainingSettings) -> None:
    """Check that data, tokenizer and first weights are there, and the package that writes metrics.

    A training that has checkpoints goes on from them and does not read its first weights again.

    Raises:
        KareusError: one is missing, or is something else.
    """
    if settings.data != "synthetic":
        _check_data(Path(settings.data), settings.tokenizer)
    if settings.metrics is not None:
        check_metrics(settings.metrics)
    if settings.weights is not None and not iterations_in(settings.output / "checkpoints"):
        check_weight_files(settings.weights)


def _check_data(path: Path, tokenizer: str) -> None:
    if path.suffix == ".bin":
        open_tokens(path, check_content=False)
        return
    text_files([path])
    check_tokenizer(tokenizer)
