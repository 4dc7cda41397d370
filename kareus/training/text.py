"""Text files as token files: tokenised once, kept in a folder, and used again while nothing changed.

A file is read and encoded in pieces, so that memory does not grow with it. Pieces end where a line does, between two
characters that are no white space, and each is encoded after the last line before it: where tokens end at line ends, as
with the tokenizers of Llama, Qwen, GPT-2 and Gemma, the ids are those of the whole file. They may differ by a token at
an end of a piece where tokens span lines, or where a megabyte has no such line end and a piece ends amid a line.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kareus.artifacts.locks import exclusive_lock
from kareus.artifacts.records import content_hash
from kareus.errors import ArtifactError, ConfigError
from kareus.training.tokenizers import Tokenizer, files_of, open_tokenizer
from kareus.training.tokens import SCHEMA_VERSION, TokenFile, open_tokens, write_tokens

_PIECE_CHARACTERS = 1 << 20
"""Read at once; a piece has less than twice as many."""
_LINE_END = re.compile(r"(?<=\S)\n(?=\S)")


def tokenised(paths: Sequence[Path], tokenizer: str, folder: Path, *, check_content: bool = True) -> TokenFile:
    """Open the token file of text files, each a document, in the order of their names; make it if it is missing.

    Processes that ask at once wait for the first of them.

    Args:
        paths: text files, or folders whose `*.txt` are taken.
        tokenizer: as `open_tokenizer` takes it.
        folder: where token files are kept.
        check_content: as for `open_tokens`.

    Raises:
        ConfigError: there are no texts, or no such tokenizer.
        ArtifactError: a text cannot be read.
    """
    texts = text_files(paths)
    sources = [*texts, *files_of(tokenizer)]
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in sources]
    target = folder / f"tokens-{content_hash((SCHEMA_VERSION, tokenizer, states))}.bin"
    with exclusive_lock(folder / "lock"):
        if not target.with_name(f"{target.name}.json").exists():
            chosen = open_tokenizer(tokenizer)
            write_tokens(target, _documents(texts, chosen), vocab_size=chosen.vocab_size, tokenizer=tokenizer)
    return open_tokens(target, check_content=check_content)


def text_files(paths: Sequence[Path]) -> list[Path]:
    """Return the text files that `paths` name, in the order of their names.

    Raises:
        ConfigError: there are none, or one is missing.
    """
    texts = sorted({text for path in paths for text in (path.rglob("*.txt") if path.is_dir() else [path])})
    if not texts:
        raise ConfigError(
            f"{', '.join(map(str, paths)) or 'text'}: no text files there; name files or folders of *.txt."
        )
    missing = [text for text in texts if not text.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]}: no such file; name text files, or folders of *.txt.")
    return texts


def _documents(texts: Sequence[Path], tokenizer: Tokenizer) -> Iterator[list[int]]:
    for text in texts:
        before = ""
        for piece in _pieces(text):
            yield tokenizer.encode(piece, before)
            before = piece[piece.rfind("\n", 0, -1) + 1 :]
        yield [tokenizer.end_of_text]


def _pieces(path: Path) -> Iterator[str]:
    """A text file, in pieces that end at line ends."""
    rest = ""
    try:
        with path.open(encoding="utf-8") as handle:
            while block := handle.read(_PIECE_CHARACTERS):
                text = rest + block
                ends = [line_end.end() for line_end in _LINE_END.finditer(text)] or [len(text)]
                rest = text[ends[-1] :]
                yield text[: ends[-1]]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ArtifactError(f"{path}: cannot be read ({reason}); give a text file in UTF-8.") from error
    if rest:
        yield rest
