"""GPUs as their driver shows them: clocks that can be locked, and instruments to read.

Measuring (`testbed/cuda`) and training use it, and it does not import torch. A process claims a device before it locks
the clock; the claim's file has the clock that is set, so that it can be restored however the process ends.
"""
