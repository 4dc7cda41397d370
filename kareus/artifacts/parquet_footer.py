"""The key-value metadata of a Parquet file, read without a reader of Parquet, which may crash on damaged bytes.

A Parquet file ends with its metadata, the length of that in four bytes, and `PAR1`
(https://parquet.apache.org/docs/file-format/). The metadata is a struct in Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). All but field 5 of it, the list of
keys and values, is passed over.
"""

from collections.abc import Iterator

MAGIC = b"PAR1"
"""First and last bytes of every Parquet file whose footer is not encrypted."""
_LENGTH = 4
"""Bytes of the length of the metadata, which precede the last magic bytes."""
_KEY_VALUES = 5
"""Field of the metadata."""
_KEY, _VALUE = 1, 2
"""Fields of an item of the list."""
_MOST_NESTED = 16
"""Levels of structs and lists that metadata may have; Parquet has fewer than ten."""
_MOST_VARINT = 10
"""Bytes of the longest number."""
_BOOLEANS, _NUMBERS, _BINARY, _LISTS, _STRUCT = (1, 2), (4, 5, 6), 8, (9, 10), 12
"""Types of Thrift's compact protocol."""
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of a value of other types: of a boolean field, whose value is its type, of a byte, of a number with a point."""


class FooterError(Exception):
    """The metadata cannot be parsed."""


def key_values(content: bytes) -> dict[str, bytes]:
    """Return the key-value metadata of a Parquet file.

    Args:
        content: the bytes of the whole file.

    Raises:
        FooterError: this is no Parquet file, or a damaged one.
    """
    end = len(content) - len(MAGIC) - _LENGTH
    start = end - int.from_bytes(content[end:][:_LENGTH], "little")
    if not content.startswith(MAGIC) or not content.endswith(MAGIC) or start < len(MAGIC):
        raise FooterError("it does not begin and end as a Parquet file")
    reader, pairs = _Reader(content[start:end]), dict[str, bytes]()
    for field, kind in reader.fields():
        if field == _KEY_VALUES and kind in _LISTS:
            pairs |= dict(_pair(reader) for _ in reader.items())
        else:
            reader.skip(kind)
    return pairs


def _pair(reader: "_Reader") -> tuple[str, bytes]:
    texts = {_KEY: b"", _VALUE: b""}
    for field, kind in reader.fields():
        if field in texts and kind == _BINARY:
            texts[field] = reader.binary()
        else:
            reader.skip(kind)
    return texts[_KEY].decode(errors="replace"), texts[_VALUE]


class _Reader:
    """Reads bytes in Thrift's compact protocol, one value after the other. Its functions raise `FooterError`."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        taken = self._content[self._place : self._place + count]
        if len(taken) < count:
            raise FooterError("its metadata is cut off")
        self._place += count
        return taken

    def number(self) -> int:
        """Return the next number, in 7 bits a byte, the lowest first."""
        value = 0
        for place in range(_MOST_VARINT):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
                return value
        raise FooterError("a number in its metadata has no end")

    def binary(self) -> bytes:
        """Return the next string of bytes."""
        return self.take(self.number())

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; who takes one reads or skips its value."""
        field = 0
        while header := self.take(1)[0]:
            delta = header >> 4
            field = field + delta if delta else self.number() >> 1  # a number with a sign, which no field has
            yield field, header & 0x0F

    def items(self) -> Iterator[int]:
        """Yield the type of each item of a list; whoever takes a type has to read or skip its item."""
        header = self.take(1)[0]
        count = header >> 4
        for _ in range(self.number() if count == 0x0F else count):  # noqa: PLR2004 - stands for a longer list
            yield header & 0x0F

    def skip(self, kind: int, level: int = 0) -> None:
        """Pass over the value of a field."""
        if level > _MOST_NESTED:
            raise FooterError("its metadata is nested too deeply")
        if kind in _FIXED:
            self.take(_FIXED[kind])
        elif kind in _NUMBERS:
            self.number()
        elif kind == _BINARY:
            self.binary()
        elif kind in _LISTS:
            for item in self.items():
                self.take(1) if item in _BOOLEANS else self.skip(item, level + 1)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, level + 1)
        else:  # maps are the only other type, and Parquet has none
            raise FooterError(f"its metadata has a value of type {kind}, which Parquet does not have")
