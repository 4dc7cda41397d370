"""Whether a run is slow: what its log says beside what is predicted of it, and what would make up the difference.

`formats.yaml` has the lines of each trainer's log, `log` reads them; `causes` predicts the run with one thing gone
wrong at a time, `explanation` puts both together; `stage` is the command `explain`.
"""
