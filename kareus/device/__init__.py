"""GPUs as their driver shows them: clocks that can be locked, and instruments to read.

What stands here serves measuring (`testbed/cuda`) and training (`engine`) alike, and needs no torch. Whoever locks a
clock claims the device first; the claim's file says what is set, so that whatever happens somebody can undo it.
"""
