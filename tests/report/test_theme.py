"""Colours that can be told from the page, and from one another by the colour-blind."""

import itertools

import numpy as np
import pytest

from kareus.report.theme import ABLATIONS, METHODS, PALETTE, PAPER

DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
"""Of linear colours (Machado, Oliveira and Fernandes 2009, severity 1)."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("name", PALETTE)
def test_every_colour_stands_out_from_light_and_dark_paper(name):
    """WCAG 2.2, 1.4.11: graphical objects have a contrast of 3:1 with what is around them."""
    for paper in PAPER.values():
        low, high = sorted((luminance(PALETTE[name]), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3, paper


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["common", "deuteranopia", "protanopia"])
def test_methods_are_told_apart_by_colour_or_shape(seen):
    """Shapes differ between all methods; those with lines, which have no shapes, differ in colour."""
    assert len({look.shape for look in METHODS.values()}) == len(METHODS)
    lines = [m for m in METHODS if m.endswith("perseus") or m == "kareus"]
    for one, other in itertools.combinations(lines, 2):
        assert np.linalg.norm(lab(seen @ linear(METHODS[one].color)) - lab(seen @ linear(METHODS[other].color))) > 15
    assert not set(lines) & set(ABLATIONS)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a linear colour under D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    f = np.cbrt(np.maximum(xyz / (0.9505, 1.0, 1.089), 1e-6))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
