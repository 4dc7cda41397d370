"""Learning rate and gradient clipping."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError, KareusError
from kareus.training.clipping import clip, gradient_norm
from kareus.training.learning_rate import LearningRateSchedule

SCHEDULE = LearningRateSchedule(peak=1.0, final=0.1, warmup_iterations=4, decay_iterations=10)


def test_the_rate_rises_to_its_peak_falls_as_a_cosine_and_stays():
    assert [SCHEDULE.at(i) for i in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert SCHEDULE.at(9) == pytest.approx(0.55)
    assert SCHEDULE.at(14) == SCHEDULE.at(1000) == 0.1


@pytest.mark.parametrize("iteration", [0, 1, 5, 9, 10, 30])
def test_the_decay_is_that_of_torch(iteration):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.1)
    for _ in range(min(iteration, 10)):
        optimizer.step()
        cosine.step()
    assert SCHEDULE.at(4 + iteration) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_a_schedule_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="final=2: must be from 0 to peak"):
        LearningRateSchedule(peak=1, final=2, warmup_iterations=0, decay_iterations=1)
    with pytest.raises(ConfigError, match="warmup_iterations=-1"):
        LearningRateSchedule(peak=1, final=0, warmup_iterations=-1, decay_iterations=1)


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_refused(bad):
    with pytest.raises(KareusError, match="gradient: its norm is"):
        clip([torch.ones(1)], torch.tensor(bad), 1.0)


SHARING = """
import os
import sys
import torch
import torch.distributed as dist
from kareus.training.clipping import gradient_norm
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
everyone = dist.group.WORLD
shard, alike = [torch.tensor([2.0 * rank + 1, 2.0 * rank + 2])], [torch.tensor(5.0)]
# Two ranks that share every layer hold 1, 2, 3, 4 divided and 5 alike; as two stages they hold two fives.
layer = gradient_norm(shard, alike, tp=everyone, pp=None, dp=None)
torch.testing.assert_close(layer, torch.tensor([1.0, 2, 3, 4, 5]).norm())
stages = gradient_norm(shard, alike, tp=None, pp=everyone, dp=None)
torch.testing.assert_close(stages, torch.tensor([1.0, 2, 3, 4, 5, 5]).norm())
replicas = gradient_norm(shard, [], tp=None, pp=None, dp=everyone)
torch.testing.assert_close(replicas, torch.tensor([1.0, 2, 3, 4]).norm())
dist.barrier()
os._exit(0)  # as training ends: gloo's threads may abort an interpreter that takes its time to
"""


def test_the_norm_is_that_of_the_whole_model_on_every_rank(tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-c", SHARING, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
