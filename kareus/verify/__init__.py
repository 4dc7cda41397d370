"""Check a folder: the seals of all files, missing files, and temporary files of killed commands.

A run of the workflow checks only the files that it reads; `kareus verify` checks all files of a folder.
"""
