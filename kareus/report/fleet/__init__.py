"""The report on the emulated fleets of a workload."""
