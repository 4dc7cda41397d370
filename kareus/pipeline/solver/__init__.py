"""The solver of iteration frontiers: linear bounds, rounding, local search, and timing of instruction DAGs."""
