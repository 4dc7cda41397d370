"""The costs of a fleet from those of one pipeline, by hand."""

import dataclasses

import pytest
from helpers.fleets import fleet

from kareus.emulate.fleet import Scale, fleet_columns, reduction_s, scale_of
from kareus.pipeline.solver.frontier import PlannedIteration

SCALE = Scale(
    pipelines=4,
    pipeline_gpus=16,
    reduction_s=2.5,
    exposed_s=2.0,
    blocking_power_w=80.0,
    least_waiting_w=80.0,
    static_power_w=50.0,
)
PLAN = PlannedIteration(time_s=8.0, energy_j=20_000.0, deadline_s=8.5, lower_bound_j=19_000.0, points=(1, 0))


def test_an_exposed_reduction_is_in_every_cost():
    """Each pipeline draws 16 x 80 W for 2 s more, 2,560 J; static power is drawn by 64 GPUs for 10 s."""
    columns = fleet_columns(SCALE, PLAN)
    assert (columns["time_s"], columns["pipeline_time_s"], columns["reduction_s"]) == (10, 8, 2.5)
    assert columns["energy_j"] == 4 * 22_560
    assert columns["static_energy_j"] == 32_000
    assert columns["dynamic_energy_j"] == 4 * 22_560 - 32_000
    assert columns["power_w"] == 9_024
    assert columns["lower_bound_j"] == 4 * 21_560
    assert columns["gap"] == pytest.approx(1_000 / 21_560)
    assert columns["points"] == (1, 0)


@pytest.mark.parametrize("layers", [(1, 3), (3, 1)])
def test_the_stage_with_the_most_gradients_decides(layers):
    """A layer has 7 x 64 / 8 values of matrices and 16 of norms; each of two stages has a table of 984 x 8."""
    one = fleet().workload
    model = dataclasses.replace(
        one.model, hidden_size=8, intermediate_size=8, num_attention_heads=8, num_key_value_heads=8, head_dim=1
    )
    tiny = dataclasses.replace(
        one,
        model=dataclasses.replace(model, vocab_size=8 * 984),
        parallelism=dataclasses.replace(one.parallelism, pp=2, layers_per_stage=layers),
    )
    final_norm = 8 if layers[1] == 3 else 0
    parameters = 3 * (56 + 16) + 984 * 8 + final_norm
    assert reduction_s(tiny, 2) == pytest.approx(2 * 1 / 2 * parameters * 4 / 6.25e9)


def test_a_fleet_has_the_powers_of_its_gpus():
    one = fleet("gpu.static_power_w=61", "emulation.gradient_reduction=exposed")
    scale = scale_of(one)
    assert (scale.static_power_w, scale.blocking_power_w) == (61, one.workload.gpu.blocking_power_w)
    assert scale.blocking_power_w != scale.static_power_w
    assert scale.exposed_s == scale.reduction_s == reduction_s(one.workload, 4)
    assert scale_of(fleet()).exposed_s == 0
