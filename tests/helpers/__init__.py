"""What tests of several rooms share: workloads, mock devices, processes and oracles."""
