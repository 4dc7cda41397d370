"""Explanations of slow runs: what a log says beside what is predicted of the run, and what would make up the rest.

`formats.yaml` has the lines of each trainer's log, `log` reads them; `causes` predicts the run with one thing gone
wrong at a time, `explanation` puts both together; `stage` is the command `explain`.
"""
