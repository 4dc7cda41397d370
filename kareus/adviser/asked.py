"""A question as a list of texts `key=value`, the form in which a campaign holds it and its stage takes it."""

from collections.abc import Sequence
from pathlib import Path

from kareus.adviser.goals import goals_of
from kareus.adviser.question import Question, ask
from kareus.errors import ConfigError

GOALS = (
    "least", "tokens", "deadline", "max_power", "max_node_power", "max_gpu_power", "price", "gpu_price", "carbon",
)  # fmt: skip
KEYS = ("gpus", "global_batch", "sequence_length", "trainer", *GOALS)
"""Options of `kareus advise` as keys; all other keys are overrides and constraints of layouts."""


def asked(texts: Sequence[str], config_dir: Path) -> Question:
    """Return the question that texts ask, such as `model=llama3.1-8b`, `gpus=8`, `global_batch=128`, `tp=1,2`.

    Raises:
        ConfigError: a key is missing or given twice, or a value cannot be used.
    """
    given: dict[str, str] = {}
    overrides = list[str]()
    for text in texts:
        key, _, value = text.partition("=")
        if key not in KEYS:
            overrides.append(text)
        elif key in given:
            raise ConfigError(f"{text}: {key} is given twice; give it once.")
        else:
            given[key] = value
    for key in ("gpus", "global_batch"):
        if not given.get(key):
            raise ConfigError(f"question: {key} is missing; give it, such as {key}=64.")
    goals: dict[str, str] = {key: value for key, value in given.items() if key in GOALS}
    tokens, price = goals.pop("tokens", None), goals.pop("price", None)
    length = given.get("sequence_length")
    return ask(
        overrides,
        gpus=given["gpus"],
        global_batch=_whole("global_batch", given["global_batch"]),
        sequence_length=None if length is None else _whole("sequence_length", length),
        goals=goals_of(tokens=None if tokens is None else _tokens(tokens), price_of_energy=price, **goals),
        config_dir=config_dir,
        trainer=given.get("trainer"),
    )


def _whole(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{key}={value}: must be a whole number.") from None


def _tokens(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"tokens={value}: must be a number, such as 1e11.") from None
