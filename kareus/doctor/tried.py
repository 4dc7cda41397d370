"""Versions of other software that Kareus was tried with, in one place; a test holds pyproject.toml to them."""

import re
from dataclasses import dataclass

from kareus.launch.torch_version import OLDEST, TOO_NEW

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A distribution, and the range of its versions that was tried."""

    distribution: str
    oldest: Version | None
    """First version that was tried; None where none was."""
    too_new: Version | None
    """First version that was not tried; None where no upper bound is known."""
    needed_for: str
    is_required: bool = False
    """Whether Kareus does not run, train or measure without it."""

    @property
    def range(self) -> str:
        """The range in pip's words; empty where nothing was tried."""
        lower = f">={text_of(self.oldest)}" if self.oldest else ""
        return lower + (f",<{text_of(self.too_new)}" if self.too_new else "")

    def has(self, version: str) -> bool:
        """Whether a version is within the range; False where it has no number."""
        begins = re.match(r"\d+(?:\.\d+)*", version)
        if begins is None or self.oldest is None:
            return False
        numbers = tuple(int(part) for part in begins[0].split("."))
        return self.oldest <= numbers and (self.too_new is None or numbers < self.too_new)


def text_of(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


TRIED = (
    Tried(
        distribution="torch", oldest=OLDEST, too_new=TOO_NEW, needed_for="tracing models, training", is_required=True
    ),
    Tried(distribution="zeus", oldest=(0, 15), too_new=None, needed_for="setting clocks", is_required=True),
    Tried(distribution="nvidia-ml-py", oldest=(12, 570), too_new=None, needed_for="reading GPUs", is_required=True),
    Tried(distribution="triton", oldest=(3, 6), too_new=None, needed_for="fused kernels and loopbacks on GPUs"),
    Tried(distribution="mscclpp", oldest=None, too_new=None, needed_for="collectives whose SM count changes at once"),
    Tried(distribution="megatron-core", oldest=(0, 12), too_new=(0, 17), needed_for="plans in Megatron-LM"),
    Tried(distribution="torchtitan", oldest=(0, 3), too_new=(0, 4), needed_for="plans in torchtitan"),
    Tried(distribution="transformers", oldest=(4, 51), too_new=None, needed_for="plans in the Hugging Face Trainer"),
    Tried(distribution="accelerate", oldest=(1,), too_new=None, needed_for="plans in Accelerate"),
    Tried(distribution="pytorch-lightning", oldest=(2, 4), too_new=None, needed_for="plans in Lightning"),
)
"""All that is looked for, in the order of the table."""
