"""The report on a workload: its summary, figures, tables and page."""
