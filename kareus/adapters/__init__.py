"""Plans in trainers that are not ours: each module is the adapter of one trainer, on what they all share.

An adapter tells a `StageDriver` what its trainer is about to run; the driver holds it to the plan, sets clocks and
records what it took. A module imports only the trainer that it is for, and nothing here imports a trainer otherwise.
"""
