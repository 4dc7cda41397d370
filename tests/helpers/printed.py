"""The commands and the code that README.md and docs/ print, block by block."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    place: str
    """Page and line."""
    language: str
    text: str
    answer: str = ""
    """What the page says that a block of shell prints: the block of text right after it, if there is one."""


@dataclass(frozen=True)
class Command:
    """One command of a block, as printed: with its continuation lines and its here-document."""

    text: str

    @property
    def name(self) -> str:
        """The command on one line, without comments and here-document, quoted as a shell would."""
        first = re.sub(r"\\\n\s*", "", self.text).split("\n")[0]
        return shlex.join(shlex.split(first, comments=True))


def blocks(language: str) -> Iterator[Block]:
    """All blocks of a language."""
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(rf"^```{language}\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.M | re.S):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(f"{page.relative_to(ROOT).as_posix()}:{line}", language, found[1], found[2] or "")


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block of shell."""
    lines = iter(block.text.splitlines())
    for line in lines:
        text = line
        while text.endswith("\\"):
            text += "\n" + next(lines)
        heredoc = re.search(r"<<'(\w+)'", text)
        if heredoc:
            for content in lines:
                text += "\n" + content
                if content == heredoc[1]:
                    break
        if text.strip() and not text.startswith("#"):
            yield Command(text)
