"""Plan files, read by `kareus check-plan`; one that is accepted must be the plan that was written."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import flipped, json_text, mutated, mutated_document
from attacks.surfaces.calls import call
from attacks.target import workload_in


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that checks a drawn plan."""
    plan = workload_in(folder) / "plan/fastest.json"
    content = plan.read_bytes()
    document = json.loads(content)

    def attempt(number: int) -> str:
        chance = random.Random(f"documents {seed} {number}")
        way = chance.randrange(3)
        text = flipped(content, chance) if way == 0 else mutated(content, chance)
        if way == 2:  # noqa: PLR2004
            text = json_text(mutated_document(document, chance), chance)
        plan.write_bytes(text)
        called = call("check-plan", plan)
        if called.failure or called.code:
            return called.failure
        return "" if json.loads(text) == document else "accepted, though it is not the plan that was written"

    return attempt
