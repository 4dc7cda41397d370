"""Key-value metadata of Parquet files, against Polars's reader, and of bytes that are none."""

import contextlib
import functools
import io

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing.parametric import dataframes

from kareus.artifacts.parquet_footer import FooterError, key_values

FRAMES = dataframes(max_cols=20, max_size=5, excluded_dtypes=[pl.Decimal, pl.Categorical, pl.Enum])
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@functools.cache
def sound() -> bytes:
    """The bytes of a table with metadata."""
    written = io.BytesIO()
    pl.DataFrame({"method": ["kareus"], "nested": [[{"a": 1}]]}).write_parquet(written, metadata={"kareus": "x"})
    return written.getvalue()


@given(FRAMES, st.dictionaries(KEYS, KEYS, max_size=20))
def test_keys_and_values_are_those_that_were_written(frame, metadata):
    written = io.BytesIO()
    frame.write_parquet(written, metadata=metadata)
    expected = pl.read_parquet_metadata(io.BytesIO(written.getvalue()))
    assert {key: value.decode() for key, value in key_values(written.getvalue()).items()} == expected
    assert metadata.keys() <= expected.keys()


@given(st.data())
def test_damaged_metadata_is_parsed_or_refused(data):
    content = bytearray(sound())
    for place in data.draw(st.lists(st.integers(4, len(content) - 1), min_size=1, max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FooterError):
        key_values(bytes(content))


@given(st.binary(max_size=500))
def test_bytes_between_the_marks_are_parsed_or_refused(content):
    framed = b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1"
    with contextlib.suppress(FooterError):
        key_values(framed)
    if not content.startswith(b"PAR1"):
        with pytest.raises(FooterError):
            key_values(content)


def test_metadata_of_endless_structs_is_refused():
    content = b"\x1c" * 100_000
    with pytest.raises(FooterError, match="nested too deeply"):
        key_values(b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1")
