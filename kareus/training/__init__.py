"""Trains a workload by a plan or without: data, optimizer, checkpoints and the loop around the runtime."""
