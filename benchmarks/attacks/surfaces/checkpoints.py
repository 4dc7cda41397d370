"""Checkpoints with flipped bits, cut, or with other values: a training from one goes on exactly, or is refused."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import flipped, mutated_document
from attacks.surfaces.calls import call
from attacks.tiny import resolving, trained, training, workload_below


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that goes on from a checkpoint with drawn damage."""
    resolved = call(*resolving(1, folder / "tiny"))
    workload, begun, whole = workload_below(folder / "tiny"), folder / "begun", folder / "whole"
    assert resolved.code == 0, resolved.output
    first = call(*training(workload, 2, begun))
    assert first.code == 0, first.output
    shutil.copytree(begun, whole)
    assert call(*training(workload, 3, whole)).code == 0
    expected = trained(whole, 3)

    def attempt(number: int) -> str:
        chance = random.Random(f"checkpoints {seed} {number}")
        again = folder / f"again-{number}"
        shutil.copytree(begun, again)
        path = again / "checkpoints/iteration-00000002" / chance.choice(("rank-00000.json", "rank-00000.safetensors"))
        path.write_bytes(_spoilt(path, chance))
        called = call(*training(workload, 3, again))
        failure = called.failure
        if not failure and called.code == 0 and trained(again, 3) != expected:
            failure = f"other weights or losses, silently, from a damaged {path.name}"
        shutil.rmtree(again)
        return failure

    return attempt


def _spoilt(path: Path, chance: random.Random) -> bytes:
    content, way = path.read_bytes(), chance.random()
    if path.suffix == ".json" and way < 0.3:  # noqa: PLR2004
        return json.dumps(mutated_document(json.loads(content), chance)).encode(errors="surrogatepass")
    return flipped(content, chance) if way < 0.8 else content[: chance.randrange(len(content))]  # noqa: PLR2004
