"""Names of workloads on the page of a campaign."""

import re

import pytest

from kareus.report.campaign.figures import overview_figure
from kareus.report.campaign.overview import Overview, short_labels
from kareus.report.drawing import svg_of

ALIKE = {
    "model": "llama3.2-3b",
    "parallelism": "pp2-tp8",
    "microbatch_size": 8,
    "sequence_length": 4096,
    "gpu": "A100-SXM4-40GB",
}
WORDS = "Llama 3.2 3B, pp2-tp8, 8\u00d74,096, A100"


def test_alike_workloads_are_named_with_what_differs():
    names = [
        "llama_mbs8_a100_noupdate",
        "llama_mbs8_a100_noupdate_search-paper",
        "llama_mbs8_a100_interleaved_noupdate",
    ]
    labels = short_labels([{"workload": name, **ALIKE} for name in names])
    assert list(labels.values()) == [WORDS, f"{WORDS}, search-paper", f"{WORDS}, interleaved"]


def test_a_workload_like_no_other_is_named_in_words():
    rows = [{"workload": "one", **ALIKE}, {"workload": "other", **ALIKE, "microbatch_size": 16}]
    assert short_labels(rows) == {"one": WORDS, "other": WORDS.replace("8\u00d74", "16\u00d74")}


def planned(name: str, tokens_per_s: float, joules_per_token: float, method: str) -> Overview:
    return Overview(
        workload=name,
        label=f"{WORDS}, {name}",
        method=method,
        time_s=1.0,
        energy_j=1.0,
        tokens_per_s=tokens_per_s,
        joules_per_token=joules_per_token,
        time_reduction_percent=None,
        energy_reduction_percent=None,
    )


@pytest.mark.parametrize("most", [1e5, 9e5])  # the axis is linear, or logarithmic
def test_names_of_workloads_that_cost_about_the_same_do_not_overlap(most):
    """As they are drawn: a letter is at least 4 px wide and 8 px high."""
    near = [planned(f"w{n}", 9.9e4 + 100 * n, 0.05 + 1e-4 * n, "kareus") for n in range(4)]
    far = [planned("far", most / 2, 0.09, "kareus"), planned("far", most / 3, 0.1, "sequential")]
    svg = svg_of(overview_figure([*near, *far]), "campaign")
    pattern = r'text-anchor="(start|end)" transform="translate\(([\d.]+),([\d.]+)\)"[^>]*>(Llama[^<]+)<'
    drawn = [(side, float(x), float(y), len(name)) for side, x, y, name in re.findall(pattern, svg)]
    assert len(drawn) == 5
    assert max(y for _, _, y, _ in drawn) < 380, "above the axis"
    boxes = [(x if side == "start" else x - 4 * long, y, 4 * long) for side, x, y, long in drawn]
    for n, (left, y, width) in enumerate(boxes):
        for other, other_y, other_width in boxes[n + 1 :]:
            assert left > other + other_width or other > left + width or abs(y - other_y) >= 8
