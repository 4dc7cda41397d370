"""The adviser: which layout and which plan for a model on so many GPUs, by time and energy together.

Layouts are enumerated, bounded, predicted, and planned in full where no other layout rules them out.
"""
