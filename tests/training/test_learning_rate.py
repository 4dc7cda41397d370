"""Learning rates of iterations."""

import pytest
import torch

from kareus.errors import ConfigError
from kareus.training.settings import LearningRateSchedule

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
