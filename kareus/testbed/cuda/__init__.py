"""Real NVIDIA GPUs behind the testbed protocol.

The stage that measures (`testbed.py`) imports no torch: it starts one worker process for each GPU of a program's groups
(`worker.py`), all on this machine, and calls them over sockets. A worker runs the program's operators (`executor.py`)
beside its collectives, and reads its GPU's instruments.
"""
