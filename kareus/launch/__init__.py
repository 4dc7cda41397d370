"""The processes of a training: starting ranks, process groups, and watching that all ranks live."""
