"""NVLink domains of several nodes: which ranks links connect, and what groups across nodes cost."""

from dataclasses import replace

import pytest
from helpers.builders import a100
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.gpu_model.network import placement_of

TRAY, DOMAIN = 4, 72
RACK = replace(a100(), gpus_per_node=TRAY, nvlink_domain=DOMAIN, node_gb_per_s=200.0, link_gb_per_s=900.0)


@given(gpus=st.integers(1, 20_000))
def test_without_a_domain_links_end_at_the_node(gpus: int) -> None:
    assert a100().linked_gpus(gpus) == 8


@given(trays=st.integers(1, 18))
def test_a_job_that_a_domain_has_room_for_is_in_it(trays: int) -> None:
    gpus = TRAY * trays
    assert placement_of(range(gpus), RACK.linked_gpus(gpus)).nodes == 1


@given(gpus=st.integers(DOMAIN + 1, 20_000))
def test_larger_jobs_have_no_more_of_a_domain_than_there_is(gpus: int) -> None:
    linked = RACK.linked_gpus(gpus)
    assert DOMAIN / 4 < linked <= DOMAIN
    assert linked % TRAY == 0
    if linked != DOMAIN:  # taken only where it makes domains alike
        assert gpus % linked == 0


@pytest.mark.parametrize(
    ("gpus", "linked"), [(128, 64), (256, 64), (2048, 64), (144, 72), (1152, 72), (80, 40), (76, 72)]
)
def test_domains_have_equal_parts_of_a_job(gpus: int, linked: int) -> None:
    assert RACK.linked_gpus(gpus) == linked


def test_a_domain_has_whole_nodes() -> None:
    with pytest.raises(ConfigError, match="nvlink_domain=70: must be a multiple of gpus_per_node"):
        replace(RACK, nvlink_domain=70)
    with pytest.raises(ConfigError, match="nvlink_domain=2: must be from 4"):
        replace(RACK, nvlink_domain=2)
