"""Attacks on a checkout: kills, damage, hostile and absurd input. Each module yields rows of `attack.py`."""
