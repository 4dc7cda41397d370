import dataclasses
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.records import canonical_json, content_hash, from_plain, suggest, to_plain
from kareus.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    colour: Colour = Colour.RED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    ratio: float
    inner: Inner
    many: tuple[Inner, ...] = ()
    table: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    note: str | None = None


inners = st.builds(Inner, size=st.integers(), colour=st.sampled_from(Colour))
outers = st.builds(
    Outer,
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    inner=inners,
    many=st.lists(inners, max_size=3).map(tuple),
    table=st.dictionaries(st.integers(min_value=0), st.lists(st.integers(), max_size=3).map(tuple), max_size=3),
    note=st.none() | st.text(),
)


@given(outers)
def test_a_record_survives_the_way_through_plain_data(record):
    assert from_plain(Outer, to_plain(record)) == record


@given(outers, outers)
def test_equal_content_and_equal_hash_go_together(one, other):
    assert (canonical_json(one) == canonical_json(other)) == (content_hash(one) == content_hash(other))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ratio": 1.0, "inner": {"sise": 1}}, "file.inner.sise: unknown key; perhaps you meant size."),
        ({"ratio": 1.0, "inner": {}}, "file.inner.size: missing; give it a value."),
        ({"ratio": 1.0, "inner": {"size": 1.5}}, "file.inner.size: expected int, got 1.5."),
        ({"ratio": float("inf"), "inner": {"size": 1}}, "file.ratio: expected a finite number, got inf."),
        ({"ratio": float("nan"), "inner": {"size": 1}}, "file.ratio: expected a finite number, got nan."),
        ({"ratio": 10**309, "inner": {"size": 1}}, f"file.ratio: expected a finite number, got {10**309}."),
        ({"ratio": 1.0, "inner": {"size": True}}, "file.inner.size: expected int, got True."),
        (
            {"ratio": 1.0, "inner": {"size": 1, "colour": "bleu"}},
            "file.inner.colour: 'bleu' is not known; perhaps you meant blue.",
        ),
        ({"ratio": 1.0, "inner": {"size": 1}, "many": [{"size": "x"}]}, "file.many[0].size: expected int, got 'x'."),
        ({"ratio": 1.0, "inner": {"size": 1}, "many": "ab"}, "file.many: expected a list, got 'ab'."),
        ({"ratio": 1.0, "inner": 3}, "file.inner: expected keys and values, got 3."),
    ],
)
def test_a_wrong_record_is_refused_by_the_path_of_what_is_wrong(data, message):
    with pytest.raises(ConfigError) as caught:
        from_plain(Outer, data, "file")
    assert str(caught.value) == message


def test_integers_are_accepted_as_floats():
    assert from_plain(Outer, {"ratio": 2, "inner": {"size": 1}}).ratio == 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    factor: float
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rich:
    kind: Colour
    factor: float
    first: int | None = None
    second: int | None = None
    third: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Either:
    way: Plain | Rich


@pytest.mark.parametrize("way", [Plain(factor=2.0, length=3), Rich(kind=Colour.RED, factor=2.0)])
def test_one_of_several_records_is_read_though_most_of_its_keys_have_their_defaults(way):
    plain = {key: value for key, value in to_plain(way).items() if value is not None}
    assert from_plain(Either, {"way": plain}) == Either(way=way)


@pytest.mark.parametrize(
    ("name", "allowed", "said"),
    [
        ("h100", ("a100", "h100-sxm5", "h100-hbm2e"), "perhaps you meant h100-sxm5 or h100-hbm2e"),
        ("perseus", ("kareus", "sequential+perseus"), "perhaps you meant sequential+perseus"),
        ("karues", ("kareus", "sequential+perseus"), "perhaps you meant kareus"),
        ("h200", ("b200", "a100"), "allowed: a100, b200"),
        ("llama", ("llama-1", "llama-2", "mpt"), "perhaps you meant llama-1 or llama-2"),
        ("H100", ("a100", "h100-sxm5", "h100-hbm2e"), "perhaps you meant h100-sxm5 or h100-hbm2e"),
        ("a100-80gb", ("a100-sxm4-40gb", "a100-sxm4-80gb"), "perhaps you meant a100-sxm4-80gb"),
        ("l", ("l1", "l2", "l3", "l4", "l5", "m"), "perhaps you meant l1 or l2 or l3 or l4 or l5"),
        ("l", ("l1", "l2", "l3", "l4", "l5", "l6", "m"), "allowed: l1, l2, l3, l4, l5, l6, m"),
        ("", ("a", "b"), "allowed: a, b"),
    ],
)
def test_names_that_have_what_was_typed_in_them_are_offered_first(name, allowed, said):
    assert suggest(name, allowed) == said
