"""Opening the testbed that a configuration names."""

from kareus.gpu_model.gpu import Gpu
from kareus.testbed.config import TestbedConfig
from kareus.testbed.protocol import Testbed


def open_testbed(config: TestbedConfig, gpu: Gpu, predecessor_power_w: float, seed: int) -> Testbed:
    """Return the testbed of `config.kind`; only that kind is imported.

    Args:
        config: which testbed, and its instruments.
        gpu: the GPU that is measured, or simulated.
        predecessor_power_w: power of what ran on a simulated GPU before each measurement.
        seed: of the noise of a simulated testbed.

    Raises:
        DeviceError: real GPUs are asked for and there are none, or others.
    """
    if config.cuda is not None:
        from kareus.device import nvml  # noqa: PLC0415
        from kareus.testbed.cuda.testbed import CudaTestbed  # noqa: PLC0415

        return CudaTestbed(config.cuda, gpu, nvml.open_devices())
    from kareus.testbed.simulated.testbed import SimulatedTestbed  # noqa: PLC0415

    return SimulatedTestbed(config=config, gpu=gpu, predecessor_power_w=predecessor_power_w, seed=seed)
