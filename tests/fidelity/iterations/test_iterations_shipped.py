"""Figures of the measured iterations that ship with the package, as docs/fidelity.md gives them."""

import gzip
import json

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.fidelity.iterations.answer import answer_iterations, lines_of, plain_answer
from kareus.fidelity.iterations.power import answer_power
from kareus.fidelity.iterations.power import plain_answer as plain_power
from kareus.fidelity.iterations.rows import read_iterations
from kareus.fidelity.kernels.shipped import shipped_files
from kareus.fidelity.lines import read_lines

ITERATIONS, POWER = (shipped_files()[name] for name in ("training_iterations", "training_power"))
FAMILIES_PCT = {"dgxc": 2.6, "llm-foundry": 6.0, "selective-recompute": 3.0, "tinyllama": 4.0, "vtrain-single": 5.6}
"""Mean absolute errors of time that are not exceeded."""


def _rows():
    return read_iterations(read_lines(ITERATIONS)[1], ITERATIONS)


FEW = {"selective-recompute": 2, "vtrain-single": 2, "llm-foundry": 4, "dgxc": 1}
"""Rows of families for fast tests: of one structure each, since tracing takes seconds."""


@pytest.fixture(scope="module")
def few():
    rows = [row for row in _rows() if row.pp == 1]
    chosen = []
    for family, count in FEW.items():
        own = [row for row in rows if row.family == family]
        alike = [row for row in own if (row.tp, row.cp, row.sequence_parallel) == _layout(own[0])]
        chosen += alike[:count]
    return answer_iterations(chosen, (), CONFIG)


def _layout(row):
    return row.tp, row.cp, row.sequence_parallel


def test_a_few_rows_of_each_family_are_close(few):
    errors = few.errors
    assert set(errors.by_family) == set(FEW)
    assert all(mape_pct < 25 for mape_pct in errors.by_family.values()), errors.by_family
    assert not few.refused


def test_parts_add_up_to_the_iteration(few):
    for one in few.scored:
        p = one.predicted
        parts = (p.forward_s, p.backward_s, p.exposed_communication_s, p.host_s, p.bubbles_s, p.update_s)
        assert sum(parts) == pytest.approx(p.time_s)
        assert min(parts) >= 0, "a pipeline of one stage has no waiting, and not -0.000 s of it"
        assert 0 < p.mfu < 1


def test_an_answer_of_iterations_is_plain_data(few):
    plain = plain_answer(few)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert {"time_mape_pct", "by_family", "by_gpu", "signed_median_pct", "rows", "refused"} <= set(plain)
    assert "for comparison, constant MFU" in "\n".join(lines_of(few))


def test_node_power_is_as_close_as_documented():
    answer = answer_power(read_lines(POWER)[1], (), CONFIG)
    assert len(answer.rows) == 6
    assert answer.power_mape_pct < 5.0
    assert len(answer.refused) == 60
    assert all("adapters of a frozen model" in refusal.reason for refusal in answer.refused)
    assert json.dumps(plain_power(answer), allow_nan=False)


def test_times_of_vtrain_are_sums_over_layers_and_microbatches():
    times_s = {}
    for row in _rows():
        if row.family == "vtrain-single" and (row.pp, row.dp) == (1, 1):
            shape = row.hidden, row.tp, row.microbatch_size, row.num_microbatches
            times_s.setdefault(shape, {})[row.layers] = row.iteration_time_s
    checked = 0
    for by_layers in times_s.values():
        (first, *others), layers = by_layers.values(), list(by_layers)
        slopes = [(time_s - first) / (n - layers[0]) for time_s, n in zip(others, layers[1:], strict=True)]
        checked += len(slopes) > 1
        assert np.ptp(slopes or [0.0]) < 2e-6, "no measured training is as regular as this"
    assert checked > 10


@pytest.mark.acceptance
def test_all_iterations_are_as_close_as_documented():
    answer = answer_iterations(_rows(), (), CONFIG)
    assert len(answer.scored) == 884
    assert not answer.refused
    found = answer.errors.by_family
    assert all(found[family] < bound for family, bound in FAMILIES_PCT.items()), found
    assert answer.errors.time_mape_pct < 4.2


def test_rows_that_cannot_be_represented_are_refused(tmp_path, capsys):
    header, *lines = _text_lines()
    path = tmp_path / "rows.csv"
    path.write_text(
        "\n".join([header, lines[-1], lines[-1].replace("h100-sxm5-80gb", "h900").replace("a100-", "x100-")])
    )
    assert main(["validate", "--reference", str(path), "--config-dir", str(CONFIG), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 1
    (refused,) = found["refused"]
    assert refused["row"] == 3


def _text_lines():
    return gzip.decompress(ITERATIONS.read_bytes()).decode().splitlines()
