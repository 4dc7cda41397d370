"""Gradient clipping by the norm of the whole model."""

import math

import pytest
import torch
import torch.distributed as dist
from helpers.worlds import spawn
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.errors import KareusError
from kareus.training.optimizer import clip, gradient_norm


@given(st.floats(0.01, 100))
def test_alone_it_clips_as_torch_does(largest):
    values = [torch.arange(6.0), torch.full((2, 2), -3.0)]
    parameters = [torch.nn.Parameter(torch.zeros_like(value)) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = value.clone()
    expected = torch.nn.utils.clip_grad_norm_(parameters, largest)
    ours = [value.clone() for value in values]
    norm = gradient_norm(ours, [], tp=None, pp=None, dp=None)
    clip(ours, norm, largest)
    assert norm == pytest.approx(float(expected))
    for parameter, gradient in zip(parameters, ours, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_norm_takes_as_many_operations_for_many_tensors() -> None:
    counts = []
    for tensors in (2, 40):
        gradients = [torch.full((n % 3,), -3.0) for n in range(3 * tensors)]
        with Counting() as operations:
            norm = gradient_norm(gradients, [], tp=None, pp=None, dp=None)
            clip(gradients, norm, 1.0)
        counts.append(operations.count)
        whole = torch.cat(gradients)
        assert norm == pytest.approx(3 * math.sqrt(3 * tensors), rel=1e-6)
        assert whole.norm() == pytest.approx(1.0, rel=1e-5)
    assert counts[0] == counts[1]


class Counting(TorchDispatchMode):
    """Counts the operations that PyTorch is asked for."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += 1
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_refused(bad):
    with pytest.raises(KareusError, match="gradient: its norm is"):
        clip([torch.ones(1)], torch.tensor(bad), 1.0)


def check_norms(rank):
    """Two ranks that share every layer hold 1, 2, 3, 4 divided and 5 alike; as two stages they hold two fives."""
    everyone = dist.group.WORLD
    shard, alike = [torch.tensor([2.0 * rank + 1, 2.0 * rank + 2])], [torch.tensor(5.0)]
    layer = gradient_norm(shard, alike, tp=everyone, pp=None, dp=None)
    torch.testing.assert_close(layer, torch.tensor([1.0, 2, 3, 4, 5]).norm())
    stages = gradient_norm(shard, alike, tp=None, pp=everyone, dp=None)
    torch.testing.assert_close(stages, torch.tensor([1.0, 2, 3, 4, 5, 5]).norm())
    replicas = gradient_norm(shard, [], tp=None, pp=None, dp=everyone)
    torch.testing.assert_close(replicas, torch.tensor([1.0, 2, 3, 4]).norm())


def test_the_norm_is_that_of_the_whole_model_on_every_rank(tmp_path):
    spawn(2, check_norms, tmp_path)


def test_the_norm_of_empty_shards_stays_on_their_device():
    empty = [torch.empty(0, device="meta")]
    assert gradient_norm(empty, empty, tp=None, pp=None, dp=None).device.type == "meta"
