"""What CUDA is told by the environment, which it reads once, when it starts."""

import os

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Variable with the number of queues to a GPU."""


def prepare_cuda() -> None:
    """Number GPUs as the driver does and begin kernels in the order of their launches; call it before CUDA starts.

    For this process and those that it starts. A plan says beside which operator a collective is launched, and kernels
    that fill a GPU leave no room for one that begins after them. With one queue to the GPU, kernels of all streams
    begin in the order of their launches (NVIDIA/Megatron-LM, issue 533), as those of several NCCL communicators have
    to on all ranks (NVIDIA/nccl, issue 195). Whoever has set another number of queues keeps it.
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.setdefault(QUEUES, "1")
