"""The display of a run of the workflow: jobs, progress of searches, and an estimate of the time left.

Snakemake's logger plugin `kareus` (the package `snakemake_logger_plugin_kareus`) feeds it with events; the stages that
measure keep a small journal of where they are.
"""
