"""Checkpoints: bits flipped, files cut, swapped among ranks, folders renamed.

A training that starts from one must come to the very weights and losses of one that nobody disturbed, or refuse.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attacks.commands import neither_done_nor_refused
from attacks.pool import fuzzed
from attacks.rows import Row, Try, row
from attacks.target import Target
from attacks.tiny import resolving, trained, training, workload_below

LAST = "iteration-00000002"


def attacks(target: Target) -> Iterator[Row]:
    """Fuzz checkpoints of one rank; rearrange those of two."""
    yield fuzzed(target, "checkpoints flipped, truncated or edited, then resumed", "checkpoints", 1500)
    folder = target.folder("two-ranks")
    resolved = target.kareus(folder, *resolving(2, folder / "tiny"), "--config-dir", target.source / "config")
    assert resolved.code == 0, resolved.output
    workload = workload_below(folder / "tiny")
    for output, iterations in (("begun", 2), ("other", 2)):
        done = target.kareus(folder, *training(workload, iterations, folder / output))
        assert done.code == 0, done.output
    shutil.copytree(folder / "begun", folder / "whole")
    assert target.kareus(folder, *training(workload, 3, folder / "whole")).code == 0
    tries = [Try(name, partial(_rearranged, target, folder, workload, name)) for name in REARRANGED]
    yield row("checkpoints of two ranks rearranged, then resumed", target.some(tries), target.jobs)


def _rearranged(target: Target, folder: Path, workload: Path, name: str) -> str:
    output = folder / name.replace(" ", "-")
    shutil.copytree(folder / "begun", output)
    REARRANGED[name](output / "checkpoints", folder / "other/checkpoints")
    done = target.kareus(folder, *training(workload, 3, output))
    failure = neither_done_nor_refused(done)
    if failure or done.code:
        return failure
    if not (output / "checkpoints/iteration-00000003").is_dir():
        return "exit code 0, and nothing was trained"
    same = trained(output, 3) == trained(folder / "whole", 3)
    return "" if same else "other weights or losses, silently"


def _swap(one: Path, other: Path) -> None:
    between = one.with_suffix(".between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def _swapped(*suffixes: str) -> Callable[[Path, Path], None]:
    def rearrange(own: Path, _: Path) -> None:
        for suffix in suffixes:
            _swap(own / LAST / f"rank-00000{suffix}", own / LAST / f"rank-00001{suffix}")

    return rearrange


def _copied(suffix: str, source: str) -> Callable[[Path, Path], None]:
    return lambda own, _: _copy(own / source / f"rank-00001{suffix}", own / LAST)


def _of_another_start(*suffixes: str) -> Callable[[Path, Path], None]:
    def rearrange(own: Path, other: Path) -> None:
        for suffix in suffixes:
            _copy(other / LAST / f"rank-00001{suffix}", own / LAST)

    return rearrange


def _copy(path: Path, folder: Path) -> None:
    shutil.copy(path, folder)


def _renamed(name: str) -> Callable[[Path, Path], None]:
    return lambda own, _: (own / LAST).rename(own / name) and None


def _earlier_as_later(own: Path, _: Path) -> None:
    shutil.copytree(own / "iteration-00000001", own / "iteration-00000005")


def _without(suffix: str) -> Callable[[Path, Path], None]:
    return lambda own, _: (own / LAST / f"rank-00001{suffix}").unlink()


REARRANGED: dict[str, Callable[[Path, Path], None]] = {
    "all files of ranks swapped": _swapped(".json", ".safetensors"),
    "tensors of ranks swapped": _swapped(".safetensors"),
    "json of ranks swapped": _swapped(".json"),
    "rank 1 of an earlier iteration": _copied(".json", "iteration-00000001"),
    "json of rank 1 of another start": _of_another_start(".json"),
    "all of rank 1 of another start": _of_another_start(".json", ".safetensors"),
    "folder renamed to a later iteration": _renamed("iteration-00000009"),
    "folder renamed to an iteration between": _renamed("iteration-00000001b"),
    "folder with a name beyond 64 bits": _renamed(f"iteration-{10**30}"),
    "an earlier folder copied as a later one": _earlier_as_later,
    "json of rank 1 missing": _without(".json"),
    "tensors of rank 1 missing": _without(".safetensors"),
}
"""What is done to a folder of checkpoints; the other one is of another start of the same training."""
