"""Running a plan for real: partitioned overlap, clocks, pipeline and training."""
