"""Garbage is collected after an iteration's launches, and not between them."""

import gc

import pytest

from kareus.runtime.pipeline import collected_afterwards


class Cycle:
    """An object that only a collection frees."""

    def __init__(self, freed: list[int]) -> None:
        self.itself = self
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append(1)


def test_garbage_is_collected_on_leaving() -> None:
    freed: list[int] = []
    with collected_afterwards():
        assert not gc.isenabled()
        Cycle(freed)
        assert not freed
    assert gc.isenabled()
    assert freed


def test_an_error_leaves_collection_on() -> None:
    with pytest.raises(ValueError, match="stop"), collected_afterwards():
        raise ValueError("stop")
    assert gc.isenabled()


def test_collection_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collected_afterwards():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
