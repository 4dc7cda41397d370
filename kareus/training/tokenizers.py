"""Tokenizers: bytes, or a tokenizer file of the Hugging Face library, imported only when chosen."""

from pathlib import Path
from typing import Any, Protocol

from kareus.artifacts.files import read_json
from kareus.artifacts.records import suggest
from kareus.errors import ConfigError

BYTES = "bytes"
"""Name of the tokenizer that needs no file."""

_END_OF_TEXT = ("<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "</s>", "<eos>")
"""Tokens that end a document, for tokenizers without a configuration that names one: Llama 3, Qwen and GPT-2, chat
variants, Llama 2, Gemma."""

_CONFIG = "tokenizer_config.json"


class Tokenizer(Protocol):
    """Turns documents into token ids."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; all ids are below it."""

    @property
    def end_of_text(self) -> int:
        """Id of the token that ends a document."""

    def encode(self, text: str, after: str = "") -> list[int]:
        """Return the ids of `text` where it follows `after`, without special tokens."""


class ByteTokenizer:
    """Every byte of UTF-8 is a token."""

    vocab_size = 257
    end_of_text = 256

    def encode(self, text: str, after: str = "") -> list[int]:
        """Return the bytes of `text`, whatever it follows."""
        return list(text.encode())


class FileTokenizer:
    """A `tokenizer.json` of the Hugging Face tokenizers library."""

    def __init__(self, path: Path) -> None:
        """Read `path`.

        Raises:
            ConfigError: it is missing or no tokenizer, or has no token that ends a document.
        """
        self._tokenizer = _load(path)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        names = (*_named_end(path), *_END_OF_TEXT)
        ends = [end for name in names if (end := self._tokenizer.token_to_id(name)) is not None]
        if not ends:
            raise ConfigError(
                f"{path}: has no token that ends a document; name it as `eos_token` in {_CONFIG} beside it "
                f"(looked for: {', '.join(names)})."
            )
        self.end_of_text: int = ends[0]

    def encode(self, text: str, after: str = "") -> list[int]:
        """Ids of `text`; tokens at its start may depend on what is before it, so that is encoded too."""
        ids: list[int] = self._ids(after + text)
        return ids[len(self._ids(after)) :] if after else ids

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def files_of(name: str) -> list[Path]:
    """Files that decide the ids of the tokenizer `name`, those that exist."""
    path = _path(name)
    return [] if name == BYTES else [file for file in (path, path.with_name(_CONFIG)) if file.is_file()]


def open_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer `name`: `bytes`, or the path of a `tokenizer.json` or of a folder that has one.

    Raises:
        ConfigError: there is no such file, or it is no tokenizer.
        ArtifactError: the `tokenizer_config.json` in its folder is not JSON.
    """
    check_tokenizer(name)
    return ByteTokenizer() if name == BYTES else FileTokenizer(_path(name))


def check_tokenizer(name: str) -> None:
    """Check that the file of the tokenizer `name` is there.

    Raises:
        ConfigError: it is not.
    """
    if name != BYTES and not _path(name).is_file():
        raise ConfigError(
            f"tokenizer={name}: no such file; {suggest(name, [BYTES])}, or the path of a model's tokenizer.json."
        )


def _path(name: str) -> Path:
    path = Path(name).expanduser()
    return path / "tokenizer.json" if path.is_dir() else path


def _named_end(path: Path) -> tuple[str, ...]:
    """Return the token that ends a document by the model's own configuration, if it names one."""
    config = path.with_name(_CONFIG)
    if not config.is_file():
        return ()
    described = read_json(config)
    named = described.get("eos_token") if isinstance(described, dict) else None
    named = named.get("content") if isinstance(named, dict) else named
    return (named,) if isinstance(named, str) else ()


def _load(path: Path) -> Any:
    try:
        import tokenizers  # noqa: PLC0415 - only who names a file needs the library
    except ImportError:
        raise ConfigError(f"tokenizer={path}: needs the package tokenizers; `pip install tokenizers`.") from None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise ConfigError(f"{path}: not a tokenizer ({' '.join(str(error).split())}); give another file.") from error
