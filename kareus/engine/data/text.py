"""Text files as token files: tokenised once, kept beside where the user says, and used again while nothing changed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kareus.artifacts.files import exclusive_lock, read_text
from kareus.artifacts.records import content_hash
from kareus.engine.data.tokenizers import Tokenizer, open_tokenizer
from kareus.engine.data.tokens import TokenFile, open_tokens, write_tokens
from kareus.errors import ConfigError


def tokenised(paths: Sequence[Path], tokenizer: str, folder: Path) -> TokenFile:
    """Open the token file of text files, each a document, in the order of their names; make it if it is missing.

    Processes that ask at once wait for the first of them.

    Args:
        paths: text files, or folders whose `*.txt` are taken.
        tokenizer: as `open_tokenizer` takes it.
        folder: where token files are kept.

    Raises:
        ConfigError: there are no texts, or no such tokenizer.
        ArtifactError: a text cannot be read.
    """
    texts = sorted({text for path in paths for text in (path.rglob("*.txt") if path.is_dir() else [path])})
    if not texts:
        raise ConfigError(
            f"{', '.join(map(str, paths)) or 'text'}: no text files there; name files or folders of *.txt."
        )
    missing = [text for text in texts if not text.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]}: no such file; name text files, or folders of *.txt.")
    states = [(str(text.resolve()), text.stat().st_size, text.stat().st_mtime_ns) for text in texts]
    target = folder / f"tokens-{content_hash((tokenizer, states))}.bin"
    with exclusive_lock(folder / "lock"):
        if not target.with_name(f"{target.name}.json").exists():
            chosen = open_tokenizer(tokenizer)
            write_tokens(target, _documents(texts, chosen), vocab_size=chosen.vocab_size, tokenizer=tokenizer)
    return open_tokens(target)


def _documents(texts: Sequence[Path], tokenizer: Tokenizer) -> Iterator[list[int]]:
    for text in texts:
        yield [*tokenizer.encode(read_text(text)), tokenizer.end_of_text]
