"""Exports: all tables of a results folder as LazyFrames, and plans in the formats of other tools."""
