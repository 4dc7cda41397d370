"""Checkpoints: exact, found again after any kill, and refused when they cannot be right."""

import functools
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.worlds import fork

from kareus.errors import ArtifactError
from kareus.training.batches import DataPosition
from kareus.training.checkpoint import (
    Checkpoint,
    RankCheckpoints,
    StateSlice,
    last_whole,
    load,
    prune,
    random_state,
    restore_random_state,
    save,
)
from kareus.training.checkpoint_files import agreed, damage, header_file, holdings, read_header
from kareus.training.weight_slices import Box

DATA = DataPosition(samples=7, source="0123456789abcdef")


def place(folder, rank=0, ranks=1, run="a", subject="model"):
    return RankCheckpoints(folder=folder, rank=rank, ranks=ranks, run=run, subject=subject)


def part(first=0, count=3, state="weight"):
    """Rows of a weight of three."""
    return StateSlice(state, "model.norm.weight", Box((first,), (count,)))


def checkpoint(iteration=1, **changes):
    values = {
        "iteration": iteration,
        "tensors": {part(): torch.full((3,), float(iteration))},
        "random": {"cpu": torch.get_rng_state()},
        "data": DATA,
    }
    return Checkpoint(**(values | changes))


def latest(place):
    """The last checkpoint that all ranks have, as each of them finds it from its own files."""
    candidates = agreed([holdings(place.folder, rank, place.ranks, place.subject) for rank in range(place.ranks)])
    return candidates[0] if candidates else None


def last_iteration(place):
    found = latest(place)
    return None if found is None else found.iteration


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


def read(place, iteration, *parts):
    """Tensors that a rank gets of a checkpoint that all ranks have written."""
    found = read_header(header_file(place.folder, iteration, 0))
    targets = {each: torch.full(each.box.sizes, torch.nan) for each in parts}
    load(place, found, targets)
    return list(targets.values())


def test_random_numbers_go_on_where_they_were(tmp_path):
    torch.manual_seed(0)
    torch.randn(3)
    save(place(tmp_path), checkpoint(random=random_state()))
    expected = torch.randn(5)
    torch.manual_seed(1)
    found = latest(place(tmp_path))
    assert (found.iteration, found.data) == (1, DATA)
    restore_random_state(load(place(tmp_path), found, {}))
    assert torch.equal(torch.randn(5), expected)


def test_a_rank_reads_what_it_lacks_from_the_files_of_others(tmp_path):
    """Three ranks wrote, the first two of them the same row; ranks of another layout cut elsewhere."""
    values = torch.arange(3.0)
    for rank, (first, count) in enumerate([(0, 2), (1, 1), (2, 1)]):
        own = {
            part(first, count): values[first : first + count],
            part(first, count, "exp_avg"): torch.full((count,), 7.0),
        }
        save(place(tmp_path, rank, 3), checkpoint(tensors=own))
    (whole,) = read(place(tmp_path), 1, part())
    assert torch.equal(whole, values)
    last, moment = read(place(tmp_path, 4, 9), 1, part(1, 2), part(1, 2, "exp_avg"))
    assert (last.tolist(), moment.tolist()) == ([1.0, 2.0], [7.0, 7.0])


def test_a_rank_reads_no_other_file_than_its_own_if_that_has_all(tmp_path):
    for rank in range(2):
        save(place(tmp_path / str(rank), rank, 2), checkpoint())  # as on machines without a shared filesystem
    found = read_header(header_file(tmp_path / "0", 1, 0))
    target = torch.zeros(3)
    load(place(tmp_path / "1", 1, 2), found, {part(): target})
    assert target.tolist() == [1.0] * 3
    with pytest.raises(ArtifactError) as refused:
        load(place(tmp_path / "1", 0, 1), found, {part(): target})
    assert str(refused.value) == (
        f"{file(tmp_path / '1', 1, 0, '.safetensors')}: cannot be read from here; put the checkpoint where all ranks "
        "see it, or resume with the layout that wrote it."
    )


def test_what_no_file_of_a_checkpoint_has_is_named(tmp_path):
    save(place(tmp_path), checkpoint(tensors={part(0, 2): torch.ones(2)}))
    with pytest.raises(ArtifactError, match=r"lack the part of model.norm.weight \(weight\) that begins at \(2,\)"):
        read(place(tmp_path), 1, part())


def test_a_checkpoint_counts_once_all_ranks_have_written_it(tmp_path):
    for iteration in (10, 20):
        for rank in (1, 0):
            assert last_iteration(place(tmp_path, rank, 2)) == (iteration - 10 or None)
            save(place(tmp_path, rank, 2), checkpoint(iteration))
    assert last_iteration(place(tmp_path, 0, 2)) == 20
    assert read(place(tmp_path, 1, 2), 20, part())[0].tolist() == [20.0] * 3


def test_files_of_two_starts_do_not_make_one_checkpoint(tmp_path):
    for rank in range(2):
        save(place(tmp_path, rank, 2), checkpoint(10))
    save(place(tmp_path, 1, 2), checkpoint(20))  # rank 0 was killed before it wrote its own
    save(place(tmp_path, 0, 2, run="b"), checkpoint(20))
    assert last_iteration(place(tmp_path, 0, 2, run="b")) == 10
    save(place(tmp_path, 1, 2, run="b"), checkpoint(20))
    assert last_iteration(place(tmp_path, 0, 2, run="c")) == 20


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
    refused = damage(file(tmp_path, 1, suffix=".safetensors"))
    assert refused.startswith(f"{tmp_path}/iteration-00000001/rank-00000.safetensors: ")
    assert "\n" not in refused
    (said,) = resumed(tmp_path)
    assert said == (
        f"{tmp_path}: none of the checkpoints is whole: {refused} Restore a copy of it, or begin in a new folder."
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
    assert [found.iteration for found in agreed(own)] == [10]


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
    assert said.startswith(f"{path}: version 2, this Kareus reads 4; resume with the version that wrote it")


def changed(content, number):
    """A copy of `content` with one flipped bit, or cut."""
    draw = random.Random(number)
    at = draw.randrange(len(content))
    if number % 10 == 0:
        return content[:at]
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


@pytest.mark.parametrize(("suffix", "changes"), [(".json", 1_500), (".safetensors", 300)])
def test_any_changed_byte_is_refused_or_makes_no_difference(tmp_path, suffix, changes):
    parts = (part(), part(state="exp_avg"))
    save(place(tmp_path), checkpoint(tensors={each: torch.randn(3) for each in parts}))
    whole, header, path = read(place(tmp_path), 1, *parts), latest(place(tmp_path)), file(tmp_path, 1, suffix=suffix)
    content = path.read_bytes()
    for number in range(changes):
        path.write_bytes(changed(content, number))
        said = damage(path)
        (found,) = resumed(tmp_path)
        if said is None:
            assert (found, latest(place(tmp_path))) == (1, header)
            assert all(map(torch.equal, read(place(tmp_path), 1, *parts), whole))
        else:
            assert said in found
            assert "\n" not in found


def test_files_of_more_or_fewer_ranks_are_shared_out_to_be_checked(tmp_path, caplog):
    for iteration in (10, 20):
        for rank in range(4):
            save(place(tmp_path, rank, 4), checkpoint(iteration))
    assert resumed(tmp_path, 8) == [20] * 8
    spoilt = file(tmp_path, 20, 3, ".safetensors")
    spoilt.write_bytes(spoilt.read_bytes()[:-1] + b"\x01")
    for ranks in (1, 2, 3, 4, 8):
        caplog.clear()
        assert resumed(tmp_path, ranks) == [10] * ranks
        assert [f"{spoilt}: its bytes" in message for message in caplog.messages] == [True]
    for rank in range(2):
        save(place(tmp_path, rank, 2, run="b"), checkpoint(20))  # the files of ranks 2 and 3 are of another start
    assert resumed(tmp_path, 4) == [20] * 4


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"subject": "another"}, "of another model, sequence length or seed"),
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


def save_on_and_on(folder):
    for iteration in range(1, 100_000):
        tensors = {part(0, 200_000): torch.full((200_000,), float(iteration))}
        save(place(folder), checkpoint(iteration, tensors=tensors))


def check_last(folder):
    """The last checkpoint loads, whole."""
    found = latest(place(folder))
    (weight,) = read(place(folder), found.iteration, part(0, 200_000))
    assert torch.equal(weight, torch.full((200_000,), float(found.iteration)))
    assert found.data == DATA


def test_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    saving = fork(save_on_and_on, tmp_path)
    while latest(place(tmp_path)) is None:
        time.sleep(0.02)
    for _ in range(3):
        os.kill(saving.pid, signal.SIGSTOP)  # a process that is stopped here and killed later never gets further
        check_last(tmp_path)
        os.kill(saving.pid, signal.SIGCONT)
        time.sleep(0.03)
    saving.kill()
    saving.join()
    check_last(tmp_path)
