"""Bytes that operators move are at most a fifth more than is recorded, and linear in the number of tokens."""

from dataclasses import replace
from typing import Any

import pytest
from helpers import moved_bytes
from helpers.builders import CONFIG, small_model
from helpers.moved_bytes import Movement, movements
from helpers.trainings import tiny_workload
from helpers.worlds import GPT

from kareus.workload.compose import compose

VOCABULARY = 264
"""More than there are tokens, so that no two of them are the same, as with real vocabularies."""
QWEN = small_model(name="tiny-qwen", qk_norm=True, vocab_size=VOCABULARY)
FOUR_SEQUENCES: dict[str, Any] = {"microbatch_size": 8, "sequence_length": 64}
"""As many for each nanobatch as real workloads have."""
WORKLOADS = {
    "context": tiny_workload(cp=2, tp=2, model=QWEN, **FOUR_SEQUENCES),
    "shared": tiny_workload(tp=2, sequence_parallel=True, model=QWEN, **FOUR_SEQUENCES),
    "gpt": tiny_workload(model=replace(GPT, vocab_size=VOCABULARY), **FOUR_SEQUENCES),
}


def found_with(lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Movement]]:
    monkeypatch.setattr(moved_bytes, "LENGTHS", lengths)
    return list(movements(WORKLOADS))


def test_bytes_of_eager_operators_are_linear_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_bytes, "_interpreted", lambda found: [0] * len(found))
    found = found_with((8, 16), monkeypatch)
    assert found == found_with((16, 24), monkeypatch)
    assert {name for name, _ in found} == set(WORKLOADS)


@pytest.mark.acceptance
def test_bytes_of_kernels_are_linear_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    found = found_with((8, 16), monkeypatch)
    assert found == found_with((16, 24), monkeypatch)
    assert all(one.moved for _, one in found)


def test_workloads_compute_once_what_they_have_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def interpreted(found: list[Any]) -> list[int]:
        counts.append(len(found))
        return [0] * len(found)

    monkeypatch.setattr(moved_bytes, "_interpreted", interpreted)
    bare = tiny_workload(tp=2, model=QWEN, **FOUR_SEQUENCES)
    list(movements({"bare": bare}))
    list(movements({"bare": bare, "shared": WORKLOADS["shared"]}))
    assert counts[0] == counts[1] > 0, "sequence parallelism has the same operators, on shares of the tokens"


OTHERS = ("sequence_length=1024", "parallelism.cp=1", "parallelism.layers_per_stage=null")
COUNTED = {
    "llama": ("model=llama3.2-3b", "parallelism=tp8"),
    "qwen": ("model=qwen3-1.7b", "parallelism=cp2tp4"),
    "mpt": ("model=mpt-7b", "parallelism=tp8", "parallelism.tp=4", *OTHERS),
}
"""The default workload, Qwen's with context parallelism, and blocks unlike Llama's."""


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_no_operator_moves_a_fifth_more_than_is_recorded() -> None:
    pytest.importorskip("triton")
    shares = ("false", "true")
    named = {
        f"{name} {shared}": (*overrides, f"parallelism.sequence_parallel={shared}")
        for name, overrides in COUNTED.items()
        for shared in shares
    }
    named["gpt2"] = ("model=gpt2-xl", "parallelism=tp8", "parallelism.tp=1", *OTHERS)
    workloads = {name: compose(overrides, CONFIG)[0].workload for name, overrides in named.items()}
    found = list(movements(workloads))
    assert {name for name, _ in found} == set(workloads)
    assert all(one.moved <= 1.2 * one.recorded and one.recorded <= 1.2 * one.needed for _, one in found)
