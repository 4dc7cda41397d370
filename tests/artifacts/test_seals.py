import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.records import MOST_NESTED, parse_json
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ConfigError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(st.text().filter(lambda key: key != "seal"), values, max_size=4)


@given(documents)
def test_a_sealed_document_is_read_back_unchanged(document):
    assert unsealed(parse_json(json.dumps(sealed(document)))) == document


@given(documents, st.randoms(use_true_random=False))
def test_no_flipped_bit_gives_another_document(document, random):
    text = bytearray(json.dumps(sealed(document)).encode())
    text[random.randrange(len(text))] ^= 1 << random.randrange(8)
    try:
        read = unsealed(parse_json(text.decode()))
    except (ConfigError, UnicodeDecodeError):
        return
    assert read == document


@pytest.mark.parametrize("document", [None, [], "text", {}, {"time_s": 1.0}, {"seal": 3}])
def test_what_has_no_fitting_seal_is_refused(document):
    with pytest.raises(ConfigError, match="seal"):
        unsealed(document)


@pytest.mark.parametrize("text", ["9" * 400, "-9223372036854775809", "[" * 100_000, '{"a": NaN}', '{"a": 1e999}'])
def test_json_that_no_table_can_hold_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as refused:
        parse_json(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_json_nested_beyond_pythons_recursion_is_refused():
    """Between what the parser bears and what checking a seal bears there is no gap that ends in a traceback."""
    depth = MOST_NESTED
    assert unsealed(parse_json(json.dumps(sealed({"a": parse_json("[" * (depth - 1) + "]" * (depth - 1))}))))
    for deeper in (depth, 300, 900, 1500):
        with pytest.raises(ConfigError, match="nested too deeply"):
            unsealed(parse_json('{"seal": "x", "a": ' + "[" * deeper + "]" * deeper + "}"))
