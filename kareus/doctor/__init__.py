"""What this machine can do: its GPUs and who may set their clocks, the software beside Kareus, Slurm."""
