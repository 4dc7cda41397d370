"""The order of recommendation: fast layouts first, and of those that are as fast the small ones."""

from hypothesis import given
from hypothesis import strategies as st

from kareus.adviser.order import TIED_SHARE, recommended

LAYOUTS = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(1.0, 80.0)), min_size=1, max_size=12)


def test_of_layouts_as_fast_the_one_with_least_memory_is_first() -> None:
    assert recommended([1.0, 1.0 + TIED_SHARE / 2, 1.0 + 2 * TIED_SHARE], [60.0, 30.0, 10.0]) == [1, 0, 2]


@given(LAYOUTS)
def test_every_layout_is_recommended_once(layouts: list[tuple[float, float]]) -> None:
    times_s, memory_gib = zip(*layouts, strict=True)
    assert sorted(recommended(times_s, memory_gib)) == list(range(len(layouts)))


@given(LAYOUTS)
def test_nothing_is_recommended_before_what_is_clearly_faster_and_smaller(layouts: list[tuple[float, float]]) -> None:
    times_s, memory_gib = zip(*layouts, strict=True)
    order = recommended(times_s, memory_gib)
    for place, one in enumerate(order):
        for later in order[place + 1 :]:
            assert times_s[one] <= times_s[later] * (1 + TIED_SHARE)
            assert not (times_s[later] <= times_s[one] and memory_gib[later] < memory_gib[one])
