"""Measured kernels for tests."""

import numpy as np

from kareus.evidence.kernels.rows import KernelKind, Kernels


def one_kernel(
    *,
    gpu="h200",
    software="VLLM 1",
    number_format="bfloat16",
    time_s=1e-3,
    power_w=500.0,
    limit_w=700.0,
    routing="",
    **sizes,
):
    """A row of attention if it has a sequence length, of experts if they are routed to, else of a GEMM."""
    return Kernels(
        kind=KernelKind.EXPERTS if routing else KernelKind.ATTENTION if "seq_len" in sizes else KernelKind.GEMM,
        lines=np.array([2]),
        gpu=np.array([gpu]),
        number_format=np.array([number_format]),
        software=np.array([software]),
        collective=np.array([""]),
        routing=np.array([routing]),
        sizes={name: np.array([size]) for name, size in sizes.items()},
        time_s=np.array([time_s]),
        power_w=np.array([power_w]),
        power_limit_w=np.array([limit_w]),
    )
