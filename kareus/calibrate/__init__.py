"""Numbers of one's own: measuring a GPU for the file of it, and fitting a GPU or a trainer to measurements.

Writes files of the groups `gpu` and `software`.
"""
