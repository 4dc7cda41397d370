"""Checkpoints: exact, found again after any kill, and refused when they cannot be right."""

import dataclasses
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kareus.errors import ArtifactError
from kareus.training.checkpoint import (
    Checkpoint,
    RankCheckpoints,
    last_whole,
    load,
    prune,
    random_state,
    restore_random_state,
    save,
)
from kareus.training.checkpoint_files import agreed, damage, holdings
from kareus.training.data.batches import DataPosition
from kareus.training.state import from_parts, to_parts

DATA = DataPosition(samples=7, source="0123456789abcdef")


def place(folder, rank=0, ranks=1, run="a", subject="model"):
    return RankCheckpoints(folder=folder, rank=rank, ranks=ranks, run=run, subject=subject)


def checkpoint(iteration=1, **changes):
    values = {
        "iteration": iteration,
        "model": {"weight": torch.full((3,), float(iteration))},
        "optimizer": {"state": {}, "param_groups": []},
        "random": {"cpu": torch.get_rng_state()},
        "data": DATA,
    }
    return Checkpoint(**(values | changes))


def latest(place):
    """The last checkpoint that all ranks have, as each of them finds it from its own files."""
    candidates = agreed([holdings(place.folder, rank, place.ranks, place.subject) for rank in range(place.ranks)])
    return candidates[0] if candidates else None


def resumed(folder, ranks=1):
    """What all ranks go on from: the iteration that each rank loads, or what it is told."""
    shared = defaultdict(dict)
    everyone = threading.Barrier(ranks)

    def share(rank, name, value):
        shared[name][rank] = json.loads(json.dumps(value))
        everyone.wait(30)
        return [shared[name][each] for each in range(ranks)]

    def one(rank):
        try:
            found = last_whole(place(folder, rank, ranks), functools.partial(share, rank))
        except ArtifactError as error:
            return str(error)
        return None if found is None else found.iteration

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))


def file(folder, iteration, rank=0, suffix=".json"):
    return folder / f"iteration-{iteration:08d}" / f"rank-{rank:05d}{suffix}"


def trained(model, optimizer, iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_to_the_very_same_weights(tmp_path, dtype):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.95))
    trained(model, optimizer, 3)
    extra = torch.randn(5).to(dtype)
    save(
        place(tmp_path),
        Checkpoint(
            iteration=3,
            model={**model.state_dict(), "extra": extra},
            optimizer=optimizer.state_dict(),
            random=random_state(),
            data=DATA,
        ),
    )
    trained(model, optimizer, 3)

    torch.manual_seed(1)
    other = torch.nn.Linear(4, 4)
    resumed = torch.optim.AdamW(other.parameters(), lr=0.5)
    found = load(place(tmp_path), latest(place(tmp_path)))
    assert (found.iteration, found.data) == (3, DATA)
    weights = dict(found.model)
    assert torch.equal(weights.pop("extra"), extra)
    other.load_state_dict(weights)
    resumed.load_state_dict(found.optimizer)
    restore_random_state(found.random)
    trained(other, resumed, 3)
    assert resumed.param_groups[0]["betas"] == (0.9, 0.95)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_state_of_any_nesting_comes_back():
    state = {0: [1, None, True, "x", (2.5, float("inf"))], "t": {"a.b": torch.arange(3), "a": {"b": torch.ones(2)}}}
    tensors, plain = to_parts(state)
    back = from_parts(tensors, json.loads(json.dumps(plain, allow_nan=False)))
    assert back[0] == state[0]
    assert torch.equal(back["t"]["a.b"], state["t"]["a.b"])
    assert torch.equal(back["t"]["a"]["b"], state["t"]["a"]["b"])


def test_tied_weights_are_saved_though_they_share_memory():
    weight = torch.ones(2)
    tensors, _ = to_parts({"embedding": weight, "head": weight})
    assert tensors["embedding"].data_ptr() != tensors["head"].data_ptr()


def test_what_json_and_tensors_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="a/b: object cannot be part of a checkpoint"):
        to_parts({"a": {"b": object()}})


def test_a_checkpoint_counts_once_all_ranks_have_written_it(tmp_path):
    for iteration in (10, 20):
        for rank in (1, 0):
            assert latest(place(tmp_path, rank, 2)) == (iteration - 10 or None)
            save(place(tmp_path, rank, 2), checkpoint(iteration))
    assert latest(place(tmp_path, 0, 2)) == 20
    assert load(place(tmp_path, 1, 2), 20).model["weight"].tolist() == [20.0] * 3


def test_files_of_two_starts_do_not_make_one_checkpoint(tmp_path):
    for rank in range(2):
        save(place(tmp_path, rank, 2), checkpoint(10))
    save(place(tmp_path, 1, 2), checkpoint(20))  # rank 0 was killed before it wrote its own
    save(place(tmp_path, 0, 2, run="b"), checkpoint(20))
    assert latest(place(tmp_path, 0, 2, run="b")) == 10
    save(place(tmp_path, 1, 2, run="b"), checkpoint(20))
    assert latest(place(tmp_path, 0, 2, run="c")) == 20


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert latest(place(tmp_path / "none")) is None


def spoil_tensors(folder):
    path = folder / "iteration-00000001" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")


def lose_tensors(folder):
    (folder / "iteration-00000001" / "rank-00000.safetensors").unlink()


@pytest.mark.parametrize("spoil", [spoil_tensors, lose_tensors])
def test_tensors_other_than_those_written_are_refused(tmp_path, spoil):
    save(place(tmp_path), checkpoint())
    spoil(tmp_path)
    with pytest.raises(ArtifactError) as refused:
        load(place(tmp_path), 1)
    folder = tmp_path / "iteration-00000001"
    assert str(refused.value).startswith(f"{folder}/rank-00000.safetensors: ")
    assert "\n" not in str(refused.value)
    (said,) = resumed(tmp_path)
    assert said == (
        f"{tmp_path}: none of the checkpoints is whole: {refused.value} Restore a copy of it, or begin in a new folder."
    )


@pytest.mark.parametrize("text", ["", "{}", '{"header": {"run": 1}, "state": 0}', "[1]", "\0", "[" * 10**5])
def test_a_header_that_is_none_is_refused_in_one_line(tmp_path, text):
    save(place(tmp_path), checkpoint())
    file(tmp_path, 1).write_text(text)
    (said,) = resumed(tmp_path)
    assert "rank-00000.json: not" in said
    assert "\n" not in said


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_pass_over_a_checkpoint_damaged_on_one(tmp_path, caplog, rank, suffix):
    for iteration in (10, 20, 30):
        for each in range(2):
            save(place(tmp_path, each, 2), checkpoint(iteration))
    for iteration in (20, 30):
        path = file(tmp_path, iteration, rank, suffix)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        assert str(path) in damage(path)
    assert resumed(tmp_path, 2) == [10, 10]
    assert [record.getMessage().count(f"rank-{rank:05d}{suffix}: ") for record in caplog.records] == [1, 1]
    assert all(m.endswith("Going on from the checkpoint before it.") for m in caplog.messages)


def test_an_incomplete_checkpoint_is_passed_over_and_named(tmp_path, caplog):
    for each in range(2):
        save(place(tmp_path, each, 2), checkpoint(10))
    save(place(tmp_path, 1, 2), checkpoint(20))
    assert resumed(tmp_path, 2) == [10, 10]
    (message,) = caplog.messages
    assert message == (
        f"{tmp_path}/iteration-00000020: not all ranks had written it. Going on from the checkpoint before it."
    )


@pytest.mark.parametrize("lost", [[0, 1], [1]])
def test_a_new_start_without_whole_checkpoint_is_logged_once(tmp_path, caplog, lost):
    for iteration in (10, 20):
        for each in range(2):
            save(place(tmp_path, each, 2), checkpoint(iteration))
        for each in lost:
            file(tmp_path, iteration, each).unlink()
    assert resumed(tmp_path, 2) == [None, None]
    assert caplog.messages == [
        f"{tmp_path}: files are missing of iteration-00000010, iteration-00000020, which were never finished or have "
        "lost them. Beginning at iteration 0."
    ]


def test_a_later_checkpoint_without_json_is_named_when_skipped(tmp_path, caplog):
    for iteration in (10, 20):
        save(place(tmp_path), checkpoint(iteration))
    file(tmp_path, 20).unlink()
    assert resumed(tmp_path) == [10]
    assert caplog.messages == [
        f"{tmp_path}/iteration-00000020: not all ranks had written it. Going on from the checkpoint before it."
    ]


def test_a_training_that_begins_says_nothing_of_checkpoints(tmp_path, caplog):
    assert resumed(tmp_path, 2) == [None, None]
    assert caplog.messages == []


def test_ranks_with_local_files_agree_on_a_common_checkpoint(tmp_path):
    """As on machines without a shared filesystem."""
    for each in range(2):
        for iteration in (10, 20):
            save(place(tmp_path / str(each), each, 2), checkpoint(iteration))
    shutil.rmtree(tmp_path / "1/iteration-00000020")
    own = [holdings(tmp_path / str(each), each, 2, "model") for each in range(2)]
    assert agreed(own) == [10]


def test_exchanged_or_renamed_files_are_refused(tmp_path):
    for iteration in (10, 20):
        for each in range(2):
            save(place(tmp_path, each, 2), checkpoint(iteration))
    for suffix in (".json", ".safetensors"):
        one, other = (file(tmp_path, 20, each, suffix) for each in range(2))
        one.rename(tmp_path / "aside")
        other.rename(one)
        (tmp_path / "aside").rename(other)
    shutil.copytree(tmp_path / "iteration-00000010", tmp_path / "iteration-00000090")
    assert "was written as rank 1 of iteration 20; files of checkpoints cannot be" in damage(file(tmp_path, 20))
    assert "was written as rank 0 of iteration 10" in damage(file(tmp_path, 90))
    assert resumed(tmp_path, 2) == [10, 10]


def test_an_older_checkpoint_is_neither_read_nor_overwritten(tmp_path):
    save(place(tmp_path), checkpoint(1))
    save(place(tmp_path), checkpoint(2))
    path = file(tmp_path, 2)
    old = json.loads(path.read_text())
    del old["seal"], old["header"]["rank"]
    old["header"]["schema_version"] = 2
    path.write_text(json.dumps(old))
    (said,) = resumed(tmp_path)
    assert said.startswith(f"{path}: version 2, this Kareus reads 3; resume with the version that wrote it")


def changed(content, number):
    """A copy of `content` with one flipped bit, or cut."""
    draw = random.Random(number)
    at = draw.randrange(len(content))
    if number % 10 == 0:
        return content[:at]
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def equal(one, other):
    """Whether two checkpoints hold the same, bit for bit."""
    one_parts, other_parts = (to_parts(dict(c.model) | {"o": c.optimizer, "r": dict(c.random)}) for c in (one, other))
    return (
        one_parts[1] == other_parts[1]
        and all(torch.equal(tensor, other_parts[0][name]) for name, tensor in one_parts[0].items())
        and (one.iteration, one.data) == (other.iteration, other.data)
    )


@pytest.mark.parametrize(("suffix", "changes"), [(".json", 1_500), (".safetensors", 300)])
def test_any_changed_byte_is_refused_or_makes_no_difference(tmp_path, suffix, changes):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trained(model, optimizer, 1)
    save(place(tmp_path), checkpoint(model=model.state_dict(), optimizer=optimizer.state_dict()))
    whole, path = load(place(tmp_path), 1), file(tmp_path, 1, suffix=suffix)
    content = path.read_bytes()
    for number in range(changes):
        path.write_bytes(changed(content, number))
        said = damage(path)
        try:
            assert equal(load(place(tmp_path), 1), whole)
            assert said is None
        except ArtifactError as error:
            assert "\n" not in str(error)
            assert said is not None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"subject": "another"}, "of another model, parallelism, chunks of its stages, sequence length or seed"),
        ({"ranks": 2}, "written by 1 ranks"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, other, said):
    save(place(tmp_path), checkpoint())
    with pytest.raises(ArtifactError, match=said):
        latest(place(tmp_path, **other))


def test_pruning_keeps_last_complete_and_unfinished_checkpoints(tmp_path):
    for iteration in (1, 2, 3):
        save(place(tmp_path), checkpoint(iteration))
    (tmp_path / "iteration-00000004").mkdir()
    prune(place(tmp_path), 3, keep=2)
    assert sorted(p.name[-1] for p in tmp_path.iterdir()) == ["2", "3", "4"]


def test_pruning_does_not_count_what_was_passed_over(tmp_path):
    for iteration in (1, 2, 3, 9):
        save(place(tmp_path), checkpoint(iteration))
    prune(place(tmp_path), 3, keep=2)
    assert sorted(p.name[-1] for p in tmp_path.iterdir()) == ["2", "3", "9"]


SAVING = """
import sys
import torch
from pathlib import Path
from test_checkpoint import checkpoint, place
from kareus.training.checkpoint import save
for iteration in range(1, 100_000):
    save(place(Path(sys.argv[1])), checkpoint(iteration, model={"weight": torch.full((200_000,), float(iteration))}))
"""


def test_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    saving = subprocess.Popen([sys.executable, "-c", SAVING, str(tmp_path)], env=environment)
    while latest(place(tmp_path)) is None:
        time.sleep(0.02)
    for _ in range(3):
        saving.send_signal(signal.SIGSTOP)  # a process that is stopped here and killed later never gets further
        found = latest(place(tmp_path))
        assert torch.equal(load(place(tmp_path), found).model["weight"], torch.full((200_000,), float(found)))
        saving.send_signal(signal.SIGCONT)
        time.sleep(0.03)
    saving.kill()
    saving.wait()
    found = latest(place(tmp_path))
    assert torch.equal(load(place(tmp_path), found).model["weight"], torch.full((200_000,), float(found)))
    assert dataclasses.replace(load(place(tmp_path), found), model={}).data == DATA
