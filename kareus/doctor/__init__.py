"""The doctor of a machine: its GPUs and who may set their clocks, the software beside Kareus, Slurm."""
