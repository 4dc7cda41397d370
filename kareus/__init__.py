"""Kareus: plan the training of a large model for the best time-energy frontier.

One package room per stage; `shared words` of the rooms live in their own docstrings. Importing
this package imports nothing heavy.
"""

__version__ = "0.1.0"
