"""Arguments of all commands that describe workloads: the overrides, and the folder of the Hydra groups."""

import argparse
from pathlib import Path

from kareus.workload.resolve import CONFIG_DIR

SWEEPS = (
    "Hydra overrides and sweeps, such as gpu=h200 software=megatron-core precision=fp8 microbatch_size=8,16 (default: "
    "the default workload)"
)
"""What the overrides of most commands are."""


def add_overrides(parser: argparse.ArgumentParser, text: str = SWEEPS) -> None:
    """Declare `overrides` and `--config-dir`; `text` is the help of the overrides."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--config-dir", type=Path, default=CONFIG_DIR, help="Hydra groups (default: config)")
