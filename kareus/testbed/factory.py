"""Opening the testbed that a configuration names."""

from kareus.testbed.protocol import Testbed
from kareus.workload.config import MeasurementProtocol, TestbedConfig
from kareus.workload.gpu import Gpu


def open_testbed(config: TestbedConfig, gpu: Gpu, protocol: MeasurementProtocol, seed: int) -> Testbed:
    """Return the testbed of `config.kind`; only that kind is imported.

    Raises:
        DeviceError: real GPUs are asked for and there are none, or others.
    """
    if config.cuda is not None:
        from kareus.device import nvml  # noqa: PLC0415
        from kareus.testbed.cuda.testbed import CudaTestbed  # noqa: PLC0415

        return CudaTestbed(config.cuda, gpu, nvml.open_devices())
    from kareus.testbed.simulated.testbed import SimulatedTestbed  # noqa: PLC0415

    return SimulatedTestbed(config=config, gpu=gpu, predecessor_power_w=protocol.predecessor_power_w, seed=seed)
