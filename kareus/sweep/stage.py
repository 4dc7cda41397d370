"""Command `sweep`: measure a partition over and over under the windows and cooldowns of a sweep."""

import argparse
import logging
from pathlib import Path

from kareus.artifacts.outputs import add_force, check_files, check_folder, table
from kareus.artifacts.provenance import check_subject
from kareus.artifacts.tables import read_provenance, write_table
from kareus.partition.config import subject_of
from kareus.partition.read import find_partition
from kareus.partition.tables import PARTITIONS
from kareus.profile.bench import open_bench
from kareus.profile.programs import default_partition_program
from kareus.profile.tables import TRIALS
from kareus.sweep.config import resolve_sweep
from kareus.sweep.measure import run_sweep
from kareus.workload.arguments import add_overrides

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the overrides, the inputs, the store and the output."""
    add_overrides(parser, "Hydra overrides that give one sweep, such as sweep=cooldown sweep.trials=20 gpu=h200")
    parser.add_argument("--partitions", type=Path, required=True, help="partitions of the workload (Parquet)")
    parser.add_argument("--store", type=Path, required=True, help="folder of the measurement store")
    parser.add_argument("--trials", type=Path, required=True, help="table to write (Parquet)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure what the store does not have, and write it."""
    check_files(arguments, [(arguments.trials, table(TRIALS))])
    check_folder(arguments.store, force=arguments.force)
    swept = resolve_sweep(arguments.overrides, arguments.config_dir)
    workload, sweep = swept.workload, swept.sweep
    subject = subject_of(workload)
    check_subject(subject, {str(arguments.partitions): read_provenance(arguments.partitions, PARTITIONS)})
    partition = find_partition(arguments.partitions, sweep.partition)
    program = default_partition_program(partition, workload.testbed.default_collective_sm_count)
    bench = open_bench(workload)
    content = (partition, sweep.frequency_mhz, sweep.settle_s)
    with bench.shelf(arguments.store, partition.name, content, TRIALS) as shelf:
        rows = run_sweep(swept, program, bench.testbed, shelf)
    provenance = bench.provenance(subject)
    write_table(arguments.trials, TRIALS.frame(rows), TRIALS, provenance)
    label = bench.testbed.identity.label
    logger.info("%s: %d trials of %s [%s]", arguments.trials, len(rows), partition.name, label)
