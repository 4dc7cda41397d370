"""Names of workloads on the page of a campaign."""

from kareus.report.campaign.overview import short_labels

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
