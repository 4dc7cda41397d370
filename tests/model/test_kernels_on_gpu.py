"""The kernels that only a GPU has, beside what the CPU computes."""

import pytest
import torch

from onegpu import numerics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("case", numerics.ATTENTION, ids=lambda case: case.name)
def test_flash_attention_is_the_cpus(case: numerics.Attending) -> None:
    (row,) = numerics.attention(torch.device("cuda", 0), [case]).rows
    assert row[-1] == "yes", row


@pytest.mark.parametrize(("elements", "targets"), [(8192, 8192), (8192, 50_000), (50_000, 9_000), (33, 100)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_loopback_moves_what_the_cpu_does(elements: int, targets: int, adds: bool, dtype: torch.dtype) -> None:
    from kareus.model.communicators.loopback import _copy_all  # noqa: PLC0415 - beside what follows
    from kareus.model.communicators.loopback_kernel import move  # noqa: PLC0415 - there is no Triton for CPUs

    source, target = torch.randn(elements).to(dtype), torch.randn(targets).to(dtype)
    there = target.cuda()
    move(source.cuda(), there, 12, adds)
    _copy_all([(source, target)], adds=adds)
    assert torch.equal(there.cpu(), target)
