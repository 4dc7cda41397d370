"""Opening the testbed that a configuration names."""

from kareus.testbed.protocol import Testbed
from kareus.workload.config import MeasurementProtocol, TestbedConfig
from kareus.workload.gpu import Gpu


def open_testbed(config: TestbedConfig, gpu: Gpu, protocol: MeasurementProtocol, seed: int) -> Testbed:
    """Return the testbed of `config.kind`; today every kind is simulated."""
    from kareus.testbed.simulated.testbed import SimulatedTestbed  # noqa: PLC0415 - only the kind in use is imported

    return SimulatedTestbed(config=config, gpu=gpu, predecessor_power_w=protocol.predecessor_power_w, seed=seed)
