"""The loopback's kernel in Triton, without a GPU: what it computes, interpreted, and what the compiler makes of it."""

import os
import re
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from kareus.model.communicators import loopback_kernel  # noqa: E402
from kareus.model.kernels.sums import FMA  # noqa: E402

GENERATIONS = {"A100": 80, "H100": 90}
THREADS = 32
"""Of a warp."""

COMPUTE = """
import torch
from kareus.model.communicators.loopback_kernel import move
for elements, targets, dtype in ((5, 12, torch.float32), (8192, 20000, torch.float16), (16400, 9000, torch.float32)):
    source, target = torch.randn(elements).to(dtype), torch.randn(targets).to(dtype)
    repeated, copied = source.repeat(-(-targets // elements))[:targets], target.clone()
    summed = repeated + target
    move(source, copied, 3, False)
    move(source, target, 3, True)
    assert torch.equal(copied, repeated) and torch.equal(target, summed), (elements, targets)
"""


def test_the_kernel_computes_what_it_stands_for() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", COMPUTE], env=environment, check=True)


def compiled(kernel, signature, constants, capability, warps):
    """For sizes and addresses that 16 divides, as those of real models."""
    places = range(len(signature))
    signature |= dict.fromkeys(constants, "constexpr")
    attributes = {(place,): [["tt.divisibility", 16]] for place in places}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, THREADS), options={"num_warps": warps, **FMA})


def moving(capability, numbers="i32", dtype="bf16", adds=True):  # noqa: FBT002 - as the kernel takes it  # noqa: FBT002 - as the kernel takes it
    pointer = f"*{dtype}"
    signature = {"source": pointer, "target": pointer, "source_elements": numbers, "target_elements": numbers}
    constants = {"ADDS": adds, "BLOCK": loopback_kernel.BLOCK}
    return compiled(loopback_kernel._move, signature, constants, capability, loopback_kernel.WARPS)


def loads(program):
    return set(re.findall(r"ld\.global\S*", program.asm["ptx"]))


@pytest.mark.parametrize("capability", GENERATIONS.values(), ids=GENERATIONS)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_loopback_moves_sixteen_bytes_per_thread(dtype, adds, capability):
    program = moving(capability, dtype=dtype, adds=adds)
    assert loads(program) == {"ld.global.v4.b32"}
    assert ".reqntid 1024" in program.asm["ptx"]
    assert program.metadata.shared == 0


def test_addresses_beyond_31_bits_are_computed_in_64():
    assert "add.s64" in moving(90, numbers="i64").asm["ptx"]
    assert "setp.lt.s64" in moving(90, numbers="i64").asm["ptx"]
