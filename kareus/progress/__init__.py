"""What a run of the workflow shows of itself: jobs, how far searches have come, and about how long it will take.

Snakemake's logger plugin `kareus` (the package `snakemake_logger_plugin_kareus`) feeds it with events; the stages that
measure keep a small journal of where they are.
"""
