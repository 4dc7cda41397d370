"""The benchmark of bytes that operators move: what computes on a few tokens stands for any number of them."""

from dataclasses import replace
from typing import Any

import pytest
from helpers.builders import small_model
from helpers.trainings import tiny_workload
from helpers.worlds import GPT

from movement import operators
from movement.operators import Movement, movements

VOCABULARY = 264
"""More than there are tokens, so that no two of them are the same, as with real vocabularies."""
QWEN = small_model(name="tiny-qwen", qk_norm=True, vocab_size=VOCABULARY)
FOUR_SEQUENCES: dict[str, Any] = {"microbatch_size": 8, "sequence_length": 64}
"""As many for each nanobatch as the workloads of the benchmark have."""
WORKLOADS = {
    "context": tiny_workload(cp=2, tp=2, model=QWEN, **FOUR_SEQUENCES),
    "shared": tiny_workload(tp=2, sequence_parallel=True, model=QWEN, **FOUR_SEQUENCES),
    "gpt": tiny_workload(model=replace(GPT, vocab_size=VOCABULARY), **FOUR_SEQUENCES),
}


def found_with(lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Movement]]:
    monkeypatch.setattr(operators, "LENGTHS", lengths)
    return list(movements(WORKLOADS))


def test_bytes_of_eager_operators_are_linear_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_interpreted", lambda found: [0] * len(found))
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

    monkeypatch.setattr(operators, "_interpreted", interpreted)
    bare = tiny_workload(tp=2, model=QWEN, **FOUR_SEQUENCES)
    list(movements({"bare": bare}))
    list(movements({"bare": bare, "shared": WORKLOADS["shared"]}))
    assert counts[0] == counts[1] > 0, "sequence parallelism has the same operators, on shares of the tokens"
