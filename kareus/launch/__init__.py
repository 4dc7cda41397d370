"""The processes of a training: starting ranks, their process groups, and watching all ranks."""
