"""Rechecking the content of a folder: the seals of all files, what is missing, and what killed commands left.

The workflow checks what it builds on at the start of every run; `kareus verify` checks all of a folder.
"""
