"""Kareus: plan the training of a large model for the best time-energy frontier.

One package for each stage of the flow; what a stage reads and writes stands in its package's docstring. Importing this
package imports nothing heavy.
"""

__version__ = "0.1.0"
