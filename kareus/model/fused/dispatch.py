"""The choice of a fused operator's implementation: its definition in PyTorch's operations, or its Triton kernel."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton interprets its kernels on CPUs, to test them."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_WITHOUT_MEMORY = "meta"
_stood_in_for: ContextVar[str] = ContextVar("device that tensors without memory stand in for", default=_WITHOUT_MEMORY)


@contextmanager
def without_memory_as(device: str) -> Iterator[None]:
    """Within this, tensors without memory, on PyTorch's `meta`, run what tensors on a device of this type do.

    Elsewhere they run what a GPU's do.
    """
    token = _stood_in_for.set(device)
    try:
        yield
    finally:
        _stood_in_for.reset(token)


def cpu() -> str:
    """Device of values that are worked out on a CPU, or of the tensors without memory that stand in for one's."""
    return _WITHOUT_MEMORY if _stood_in_for.get() == "cpu" else "cpu"


def device_type(tensor: Tensor) -> str:
    """Type of the device whose implementation an operator of this tensor runs."""
    kind = tensor.device.type
    return _stood_in_for.get() if kind == _WITHOUT_MEMORY else kind


def fused(definition: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run the function of the same module and name in `kareus.model.kernels` where kernels run, else `definition`.

    The first argument, or its first tensor, is on the device that decides; `inspect.unwrap` gives the definition.
    """
    module, name = definition.__module__.rpartition(".")[2], definition.__name__

    @cache
    def implementation(device: str) -> Callable[..., Result]:
        if not _kernels_run_on(device):
            return definition
        kernels = import_module(f"kareus.model.kernels.{module}")  # PyTorch for CPUs comes without Triton
        launch: Callable[..., Result] = getattr(kernels, name)
        return launch

    @wraps(definition)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        return implementation(_device(arguments[0]))(*arguments, **options)

    return run


@cache
def _kernels_run_on(device: str) -> bool:
    """Whether Triton's kernels run on devices of this type; warn once of a GPU on which they do not."""
    if device == "cpu" and not INTERPRETED:
        return False  # a training on CPUs says so; tracing, which computes nothing, comes here too
    if find_spec("triton") is None:
        logger.warning(
            "%s: no Triton, so that memory-bound operators move several times the bytes that are planned; install the "
            "PyTorch for this GPU, which brings Triton along.",
            device,
        )
        return False
    return True


def _device(argument: Any) -> str:
    return device_type(argument if isinstance(argument, Tensor) else argument[0])
