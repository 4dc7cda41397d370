"""Absurd numbers: refused in one line, or worked with; never a traceback, a hang, or an answer that is no number."""

import re
from collections.abc import Iterator
from functools import partial

from attacks.commands import REFUSED, broken_promise, neither_done_nor_refused, refusal_missing
from attacks.rows import Row, Try, row
from attacks.surfaces.references import COLUMNS, WORKLOAD
from attacks.surfaces.series import FLEET
from attacks.target import SMALL, Target, workload_in
from attacks.tiny import resolving, training, workload_below

TRAINED = (
    "--clip nan", "--clip inf", "--clip 0", "--clip -1", "--weight-decay 1e38", "--weight-decay nan",
    "--weight-decay -1", "--learning-rate -1", "--learning-rate nan", "--learning-rate inf", "--learning-rate 1e38",
    "--final-rate nan", "--final-rate 1e308", "--seed 1e30", f"--seed {10**30}",
   "--seed -1", f"--warmup {10**30}", "--warmup -1",
    "--keep 0", "--keep -1", "--checkpoint-every -1", "--iterations 0", f"--iterations -{10**30}",
)  # fmt: skip
"""Options of a training of one iteration, none of which can be meant."""
RESOLVED = (
    "gpu.gpus_per_node=1000000000", "gpu.gpus_per_node=-1", "model.num_layers=200000000", f"model.num_layers={10**30}",
    "model.hidden_size=1000000000000", "model.vocab_size=9223372036854775807", "parallelism.pp=100000000",
    "parallelism.dp=1000000000000", "num_microbatches=1000000000", "sequence_length=1000000000000", "seed=1e30",
    f"seed={10**30}", "seed=-1", "memory_reserve_gib=-1e308", "memory_reserve_gib=nan", "pipeline.deadlines=100000000",
    "gpu.search_frequencies.stride_mhz=0", "gpu.search_frequencies.maximum_mhz=100000000000", "space.sm_max=1000000000",
    "space.sm_stride=0", "search.draws=1000000000000", "protocol.window_s=1e300", "protocol.window_s=1e-300",
    "testbed.time_noise=1e300", "gpu.static_power_w=1e308", "model.norm_epsilon=1e-320",
    "microbatch_size=range(1,100000000)", "seed=range(0,1e9)", "parallelism.layers_per_stage=[2,99999999999]",
)  # fmt: skip
"""Overrides of `kareus resolve`."""
EMULATED = (
    "emulation.deadlines=100000", "emulation.deadlines=10000000000", "emulation.pipelines=1000000000000000000",
    f"emulation.pipelines={10**30}", "emulation.num_microbatches=100000000", "emulation.stragglers=[1e300]",
    "emulation.stragglers=[1e308]", "emulation.power_caps=[1e-300W]", "emulation.power_caps=[1e308W]",
)  # fmt: skip
"""Overrides of `kareus emulate`, for the small campaign's workload."""
SELECTED = (
    "deadline=1e300s", "deadline=1e-300s", "deadline=1e999s", "straggler=1e308x", "straggler=0.000001x",
    "energy=1e300kJ", "power=1e-300W", "power=1e308MW", "cost=1e300perkWh",
   "cost=1e308perkWh+1e308perGPUh", "cost=1e-320perkWh",
    "cost=0perkWh+0perGPUh", "deadline=...s", "edp --tokens 1e308", "edp --tokens 1e-308", "edp --tokens nan",
    "edp --tokens -1", "cost=1e300perkWh --tokens 1e300",
)  # fmt: skip
"""Selectors, and tokens to train on."""
ROWS = {
    "a time of 1e300": "1e300,500", "a time of 1e-308": "1e-308,500", "an energy of 1e-308": "0.9,1e-308",
    "an energy of 1e308": "0.9,1e308", "both 5e-324": "5e-324,5e-324", "both 1e308": "1e308,1e308",
}  # fmt: skip
"""Time and energy of one of two rows of reference data."""
HOURS = {
    "prices of 1e300": "0,1e300\n1,1e300\n", "prices of -1e300": "0,-1e300\n1,-1e300\n",
    "prices of 1e-308": "0,1e-308\n1,1e-308\n", "a price of 1e308 among others": "0,0.1\n1,1e308\n",
    "a price of -1e308 and one of 1e308": "0,-1e308\n1,1e308\n", "no price": "0,0\n1,0\n",
}  # fmt: skip
"""Series of prices."""
NO_NUMBER = re.compile(r"(?<![\w=.'-])-?(nan|inf|Infinity)(?![\w'])")
"""What is printed instead of a number, unless it quotes the input."""


def attacks(target: Target) -> Iterator[Row]:
    """Try every number."""
    folder = target.planned()
    tries = [Try(f"train {options}", partial(_trained, target, options)) for options in target.some([*TRAINED])]
    tries += [Try(f"resolve {text}", partial(_kareus, target, "resolve", text)) for text in target.some([*RESOLVED])]
    tries += [
        Try(f"emulate {text}", partial(_kareus, target, "emulate", *_with(text))) for text in target.some([*EMULATED])
    ]
    workload = workload_in(folder)
    tries += [
        Try(f"select {text}", partial(_kareus, target, "select", str(workload), *text.split()))
        for text in target.some([*SELECTED])
    ]
    tries += [Try(f"{c}: {name}", partial(_reference, target, c, name)) for name in ROWS for c in ("validate", "fit")]
    tries += [Try(f"emulate: {name}", partial(_series, target, name)) for name in target.some([*HOURS])]
    yield row("absurd numbers in options, overrides, selectors and CSVs", tries, target.jobs)


def _with(text: str) -> list[str]:
    """The small campaign's fleet with one override."""
    key = text.partition("=")[0]
    fleet = [*SMALL.split(), *FLEET, "emulation.power_caps=[]"]
    return [*(own for own in fleet if own.partition("=")[0] != key), text]


def _kareus(target: Target, *arguments: str) -> str:
    done = target.kareus(target.planned(), *arguments, limit_s=120)
    failure = neither_done_nor_refused(done)
    found = NO_NUMBER.search(done.output) if done.code == 0 else None
    return failure or (f"answers {found[0]}" if found else "")


def _trained(target: Target, options: str) -> str:
    folder = target.folder()
    resolved = target.kareus(folder, *resolving(1, folder / "tiny"), "--config-dir", target.source / "config")
    assert resolved.code == 0, resolved.output
    line = training(workload_below(folder / "tiny"), 1, folder / "run", *options.split())
    return refusal_missing(target.kareus(folder, *line))


def _reference(target: Target, command: str, name: str) -> str:
    folder = target.planned()
    rows = f"{WORKLOAD},sequential,0,{ROWS[name]}\n{WORKLOAD},sequential,1,1.1,450\n"
    (folder / "reference.csv").write_text(f"{COLUMNS},method,point,iteration_time_s,total_energy_j\n{rows}")
    done = target.kareus(folder, command, "--reference", "reference.csv")
    found = NO_NUMBER.search(done.output) if done.code == 0 else None
    return neither_done_nor_refused(done) or (f"answers {found[0]}" if found else "")


def _series(target: Target, name: str) -> str:
    folder = target.planned()
    (folder / "prices.csv").write_text(f"hour,price_per_kwh\n{HOURS[name]}")
    hours = "emulation.series=prices.csv", "emulation.iterations=10"
    done = target.kareus(folder, "emulate", *SMALL.split(), *FLEET, "emulation.power_caps=[]", *hours)
    if done.code not in (0, REFUSED):
        return broken_promise(done) or f"exit code {done.code}"
    found = NO_NUMBER.search(done.output) if done.code == 0 else None
    return neither_done_nor_refused(done) or (f"answers {found[0]}" if found else "")
