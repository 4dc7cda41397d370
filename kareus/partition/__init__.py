"""The operator graph of a block, forward and backward, and the partitions found in it."""
