"""The page of `kareus validate`: numbers of the answers, labelled simulated; it asks for nothing."""

import numpy as np
import pytest
from helpers.browser import DARK, LIGHT, needs_chromium, probe
from helpers.builders import CONFIG
from helpers.pages import Blocks, check_specifications
from helpers.references import FRONTIERS, QUICK, REDUCTIONS

from kareus.evidence import shipped_files
from kareus.evidence.kernels.counted import power_counts
from kareus.evidence.kernels.errors import shape_errors
from kareus.evidence.page import fidelity_page, is_page
from kareus.evidence.page_errors import errors_of, worst_parts
from kareus.evidence.page_figures import comparison_figure
from kareus.evidence.page_points import FEW, RATIOS, points_of
from kareus.evidence.validation import validate_file
from kareus.report.page import page_html

pytestmark = pytest.mark.slow

LOOK = """
return {
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  requests: performance.getEntriesByType("resource").map((r) => r.name).filter((name) => !name.startsWith("data:")),
  drawn: all(".chart svg").map((svg) => svg.getBoundingClientRect().width),
  points: marksOf("compared_1", "compared_1_points").length,
  labels: all("figure").map((f) => f.getAttribute("aria-label")),
  svg: all(".chart svg").map((svg) => svg.outerHTML).join(""),
};
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Kernels without and with power, powers of nodes, frontiers and reductions."""
    folder = tmp_path_factory.mktemp("references")
    given = {"frontiers": FRONTIERS, "reductions": REDUCTIONS}
    for name, text in given.items():
        (folder / name).write_text(text)
    shipped = {name: shipped_files()[name] for name in ("kernel_attention", "kernel_nccl", "training_power")}
    files = shipped | {name: folder / name for name in given}
    return [validate_file(name, path, QUICK if name in given else (), CONFIG) for name, path in files.items()]


@pytest.fixture(scope="module")
def page(found):
    return page_html(fidelity_page(found, ()))


@pytest.fixture(scope="module")
def blocks(page):
    return Blocks(page)


def test_figures_are_specifications_of_vega_lite(page):
    check_specifications(page)


def test_the_page_is_simulated_and_links_to_no_file(blocks, page):
    assert '<span class="badge">simulated testbed, ' in page
    assert "default-src 'none'" in page
    assert not [value for name, value in blocks.attributes if name == "href" and not value.startswith("data:")]


def test_errors_are_those_of_the_answers(found, blocks):
    table = next(t for t in blocks.tables if t.caption.startswith("Errors of time"))
    rows = {row[0]: row[1:] for row in table.rows}
    nccl = found[1].answer
    for group, errors in nccl.by_gpu.items():
        shown = rows[f"collectives: {group}"]
        assert (shown[0], shown[1]) == (str(errors.rows), f"{errors.time_mape_pct:.1f} %")
        (left_out,) = (e.time_percent for e in shape_errors() if f"{e.gpu} {e.group}" == group)
        assert shown[2] == f"{left_out:.1f} %"
        assert float(shown[4].split()[0]) > 5 * errors.time_mape_pct, "a constant bandwidth is far off"
    assert rows["frontiers: A100-SXM4-40GB, planned clocks"][1] == f"{found[3].answer.score.time_mape_pct:.1f} %"


def test_a_kind_has_one_colour_in_all_figures(found):
    figures = [f for f in fidelity_page(found, ()).figures if f.name.startswith("errors_")]
    colors = [scale_of(figure.spec) for figure in figures]
    assert len(colors) == 2
    assert colors[0]["node power"] == colors[1]["node power"]
    assert len(set(colors[0].values())) == len(colors[0])


def scale_of(spec):
    """Colour of each entry of a legend."""
    scale = next(layer["encoding"]["color"]["scale"] for layer in spec["layer"] if "color" in layer["encoding"])
    return dict(zip(scale["domain"], scale["range"], strict=True))


def test_overrides_void_the_errors_that_were_left_out(found):
    page = fidelity_page(found, ("gpu.l2_mib=30",))
    (sheet,) = [s for s in page.sections[0].sheets if s.caption == "Errors of power"]
    assert {row.cells[3] for row in sheet.rows} == {"\u2013"}


def test_peers_and_what_not_to_trust_are_there(blocks):
    captions = [table.caption for table in blocks.tables]
    assert any(caption.startswith("Mean absolute errors of other models") for caption in captions)
    assert any(caption.startswith("Do not rely on") for caption in captions)
    known = next(table for table in blocks.tables if table.caption.startswith("What is known of each GPU"))
    assert {row[0] for row in known.rows} == {"A100-SXM4-40GB", "a100-sxm4-80gb", "b200", "h100-sxm5-80gb", "h200"}
    assert all("had not seen" in row[1] for row in known.rows)


def test_every_file_has_a_figure_of_all_its_points(found):
    for number, one in enumerate(found):
        figure = comparison_figure(one, f"f{number}")
        assert figure.title.endswith("predicted against measured")
        points = points_of(one.answer)
        assert figure.data["points"]["rows"].sum() == points["rows"].sum() > 0
    attention, nccl, power = (points_of(one.answer) for one in found[:3])
    read = power_counts(found[0].answer.kernels).sum()
    assert attention["rows"].sum() == 4549 + read > 4549, "times, and powers that are the kernels'"
    assert FEW < len(attention) < 2 * 4549
    assert len(nccl) == 480
    assert len(power) == 12


def test_thinned_points_are_where_the_rows_are(found):
    answer, points = found[0].answer, points_of(found[0].answer)
    ratios = np.clip(answer.predicted.time_s / answer.kernels.time_s, *RATIOS)
    times = points.filter(points["panel"].str.contains("time"))
    mean = ((times["predicted"] / times["measured"]).log() * times["rows"]).sum() / times["rows"].sum()
    assert mean == pytest.approx(np.log(ratios).mean(), abs=2e-3)


def test_the_worst_parts_come_first(found):
    parts = worst_parts(found)
    assert [p.mape_pct for p in parts] == sorted((p.mape_pct for p in parts), reverse=True)
    assert parts[0].mape_pct > max(g.mape_pct for g in errors_of(found[:1]) if g.quantity == "time")


def test_a_page_is_known_from_other_files(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "other.html").write_text("<!doctype html><title>Other</title>")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    names = ("page.html", "other.html", "bytes", "missing")
    assert [is_page(tmp_path / name) for name in names] == [True, False, False, False]


@needs_chromium
@pytest.mark.parametrize(("flag", "width"), [(LIGHT, None), (DARK, 400)])
def test_figures_are_drawn_at_every_width_and_scheme(page, tmp_path, flag, width):
    seen = probe(tmp_path, page, LOOK, flag, "--window-size=1400,900", width=width)
    assert (seen["overflow"] <= 0, seen["requests"]) == (True, [])
    assert len(seen["drawn"]) == 7
    assert all(0 < drawn <= (width or 1400) for drawn in seen["drawn"])
    assert seen["points"] == 480
    assert all("simulated testbed" in label for label in seen["labels"])
    assert not any(word in seen["svg"] for word in ("NaN", "Infinity", "undefined"))
