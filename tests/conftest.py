"""Hypothesis for all tests: machines are noisy, so that no example has to end within a time."""

from hypothesis import settings

settings.register_profile("noisy machine", deadline=None)
settings.load_profile("noisy machine")
