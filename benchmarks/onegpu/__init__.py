"""What one GPU can show of Kareus' code for GPUs: machine, instruments, numerics and costs, as tables of Markdown."""
