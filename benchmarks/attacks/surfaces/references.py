"""Reference data as CSV, read by `kareus validate` and `kareus fit`."""

import random
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import mutated, mutated_table
from attacks.surfaces.calls import call

COLUMNS = "model,cp,tp,pp,num_microbatches,microbatch_size,seq_len"
WORKLOAD = "qwen3-1.7b,1,8,2,2,2,4096"
FRONTIERS = (
    f"{COLUMNS},method,point,iteration_time_s,total_energy_j,stage0_mhz,stage1_mhz\n"
    f"{WORKLOAD},sequential,0,0.9,500,F1410;F1410;B1410;B1410,F1410;B1410;F1410;B1410\n"
    f"{WORKLOAD},sequential,1,1.1,450,,\n"
)
REDUCTIONS = (
    f"{COLUMNS},table,metric,sequential+perseus,nanobatching+perseus,kareus\n"
    f"{WORKLOAD},end_to_end,time_reduction_pct,0.1,2.3,6.5\n"
)


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that validates, or fits, with a drawn file."""

    def attempt(number: int) -> str:
        chance = random.Random(f"references {seed} {number}")
        path, text = folder / "reference.csv", FRONTIERS if chance.random() < 0.7 else REDUCTIONS  # noqa: PLR2004
        path.write_bytes(mutated_table(text, chance) if chance.random() < 0.6 else mutated(text.encode(), chance))  # noqa: PLR2004
        command = ("fit",) if chance.random() < 0.2 else ("validate", *["--json"] * chance.randrange(2))  # noqa: PLR2004
        failure = call(*command, "--reference", path.name).failure
        return f"{command[0]}: {failure}" if failure else ""

    return attempt
