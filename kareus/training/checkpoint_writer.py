"""Writing checkpoints while the training goes on: state is copied to host memory, from which a thread writes it.

The copy takes as much host memory as the state itself; on CUDA it is pinned, made once, and filled behind what the
current stream has been given, so that the next iteration need not wait for it. Writing and hashing leave Python's
interpreter to the training. What the thread raises, the training raises at its next look.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from kareus.training.checkpoint import Checkpoint, RankCheckpoints, StateSlice, save


class CheckpointWriter:
    """Writes one checkpoint of a rank at a time."""

    def __init__(self, files: RankCheckpoints) -> None:
        """Write the files of this rank."""
        self._files = files
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._copies: dict[StateSlice, Tensor] = {}
        self._writing: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def start(self, checkpoint: Checkpoint) -> None:
        """Begin to write a checkpoint; what it refers to may change as soon as this returns.

        Raises:
            KareusError: the checkpoint before could not be written.
        """
        self.wait()
        copied = self._copy(checkpoint.tensors)
        event = None
        if any(tensor.is_cuda for tensor in checkpoint.tensors.values()):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._writing = self._thread.submit(_write, self._files, replace(checkpoint, tensors=copied), event)

    def check(self) -> None:
        """Raise what a checkpoint that has ended raised.

        Raises:
            KareusError: it could not be written.
        """
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written, if there is one, is there.

        Raises:
            KareusError: it could not be written.
        """
        if self._writing is not None:
            self._writing.result()

    def _copy(self, tensors: Mapping[StateSlice, Tensor]) -> dict[StateSlice, Tensor]:
        """Copy tensors to host memory, into that of the checkpoint before."""
        for each, tensor in tensors.items():
            if each not in self._copies:
                self._copies[each] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[each].copy_(tensor, non_blocking=True)
        return self._copies


def _write(files: RankCheckpoints, checkpoint: Checkpoint, copied: torch.cuda.Event | None) -> None:
    if copied is not None:
        copied.synchronize()  # the tensors are on their way from the GPU
    save(files, checkpoint)
