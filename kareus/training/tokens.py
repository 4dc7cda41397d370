"""Token files: ids end to end, two or four bytes each, and a JSON file that describes them.

They are mapped into memory, so that reading a sample reads its pages only, and all processes of a node share them.
The JSON file is written last: without it a token file does not exist. It is sealed and has the hash of the ids, so that
a file that was damaged or edited is refused.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.artifacts.files import file_hash, read_json, write_atomically, write_json
from kareus.artifacts.records import from_plain, to_plain
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ArtifactError, ConfigError

SCHEMA_VERSION = 2

_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFileHeader:
    """Content of the JSON file."""

    schema_version: int
    dtype: str
    """`uint16` or `uint32`, least significant byte first."""
    tokens: int
    vocab_size: int
    """Number of ids; all ids are below it."""
    tokenizer: str
    """Origin of the ids, for readers only."""
    sha256: str
    """Hash of the token file."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """An open token file."""

    path: Path
    header: TokenFileHeader
    ids: NDArray[Any]
    """All of them, mapped."""


def write_tokens(path: Path, pieces: Iterable[Sequence[int]], *, vocab_size: int, tokenizer: str) -> None:
    """Write the ids of `pieces`, end to end, with the JSON file `<path>.json`; both are whole or absent.

    Raises:
        ArtifactError: an id is not below `vocab_size`.
    """
    dtype = "uint16" if vocab_size <= 1 << 16 else "uint32"
    path.with_name(f"{path.name}.json").unlink(missing_ok=True)
    written, digest = 0, hashlib.sha256()

    def write(temporary: Path) -> None:
        nonlocal written
        with temporary.open("wb") as handle:
            for piece in pieces:
                ids = np.asarray(piece, dtype=np.int64)
                _check(path, ids, vocab_size)
                content = ids.astype(_DTYPES[dtype]).tobytes()
                digest.update(content)
                handle.write(content)
                written += len(ids)

    write_atomically(path, write)
    header = TokenFileHeader(
        schema_version=SCHEMA_VERSION,
        dtype=dtype,
        tokens=written,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        sha256=digest.hexdigest(),
    )
    write_json(path.with_name(f"{path.name}.json"), sealed(to_plain(header)))


def open_tokens(path: Path, *, check_content: bool = True) -> TokenFile:
    """Map a token file.

    Args:
        path: of the token file; its JSON file is in the same folder.
        check_content: whether to hash all of it, which is no faster than SHA-256 and the disk are. Where several
            processes of a machine open it, one of them has to.

    Raises:
        ArtifactError: it or its JSON file is missing, of another version, not whole, or not as it was written.
    """
    described = path.with_name(f"{path.name}.json")
    header = _read_header(described)
    if header.schema_version != SCHEMA_VERSION or header.dtype not in _DTYPES:
        raise ArtifactError(
            f"{described}: version {header.schema_version} of {header.dtype}, this Kareus reads {SCHEMA_VERSION} of "
            f"{' or '.join(_DTYPES)}; write the token file again."
        )
    try:
        size, expected = path.stat().st_size, header.tokens * _DTYPES[header.dtype].itemsize
        if size != expected or header.tokens <= 0:
            raise ArtifactError(
                f"{path}: has {size} bytes, {described.name} says {expected}; write the token file again."
            )
        if check_content and file_hash(path) != header.sha256:
            raise ArtifactError(
                f"{path}: its SHA-256 is not the one that {described.name} says; write the token file again."
            )
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); write the token file again.") from error
    return TokenFile(path, header, np.memmap(path, dtype=_DTYPES[header.dtype], mode="r"))


def _read_header(path: Path) -> TokenFileHeader:
    content = read_json(path)
    try:
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version == 1:  # had no seal
            raise ConfigError(f"version 1, this Kareus reads {SCHEMA_VERSION}")
        return from_plain(TokenFileHeader, unsealed(content))
    except ConfigError as error:
        raise ArtifactError(f"{path}: {str(error).removesuffix('.')}; write the token file again.") from error


def read_ids(file: TokenFile, start: int, end: int) -> NDArray[np.int64]:
    """Ids from `start` up to `end`, [end - start].

    Raises:
        ArtifactError: one is not below the vocabulary's size.
    """
    ids = file.ids[start:end].astype(np.int64)
    _check(file.path, ids, file.header.vocab_size)
    return ids


def _check(path: Path, ids: NDArray[np.int64], vocab_size: int) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        wrong = ids.max() if ids.max() >= vocab_size else ids.min()
        raise ArtifactError(
            f"{path}: has the id {wrong}, the vocabulary ends at {vocab_size}; write it with the model's tokenizer."
        )
