"""Reading reference data: what is in the file comes back, and what cannot be used is named with its place."""

import dataclasses
import gzip
import os

import pytest
from helpers.builders import CONFIG
from helpers.references import FRONTIER, REDUCTION, SMALL, B, F, write_csv

from kareus.errors import ArtifactError, ConfigError
from kareus.evidence.frontiers.reference import METRICS, FrontierRow, ReductionRow, read_reference
from kareus.evidence.frontiers.subject import subject
from kareus.prediction import lines
from kareus.prediction.lines import Line, LineValueError, read_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "given.csv"


def refusal(path):
    """What is said about a file, less its name."""
    with pytest.raises(ArtifactError) as raised:
        read_reference(path)
    assert "\n" not in str(raised.value)
    said = str(raised.value)
    assert said.startswith(f"{path}: ")
    return said.removeprefix(f"{path}: ")


def test_a_frontier_row_reads_back_with_every_clock(path):
    other = FRONTIER | {"method": "kareus", "point": "7", "stage0_mhz": "", "stage1_mhz": ""}
    assert read_reference(write_csv(path, FRONTIER, other)) == [
        FrontierRow(
            scenario=SMALL,
            method="sequential+perseus",
            point=0,
            time_s=1.25,
            energy_j=812.5,
            clocks=(
                ((F, 1410), (F, 1380), (B, 1350), (F, 1320), (B, 1290), (B, 1260)),
                ((F, 1410), (B, 1410), (F, 1200), (B, 1170), (F, 1410), (B, 1410)),
            ),
        ),
        FrontierRow(scenario=SMALL, method="kareus", point=7, time_s=1.25, energy_j=812.5, clocks=None),
    ]


def test_a_frontier_without_columns_of_clocks_lists_none(path):
    bare = {column: text for column, text in FRONTIER.items() if not column.startswith("stage")}
    (row,) = read_reference(write_csv(path, bare))
    assert row.clocks is None


def test_a_reduction_reads_back_with_the_methods_it_gives(path):
    every = REDUCTION | {"metric": "energy_reduction_pct", "nanobatching+perseus": "0"}
    assert read_reference(write_csv(path, REDUCTION, every)) == [
        ReductionRow(
            scenario=SMALL,
            table="max_throughput",
            metric="time_reduction_pct",
            given_percent={"sequential+perseus": -0.5, "kareus": 12.25},
        ),
        ReductionRow(
            scenario=SMALL,
            table="max_throughput",
            metric="energy_reduction_pct",
            given_percent={"sequential+perseus": -0.5, "nanobatching+perseus": 0.0, "kareus": 12.25},
        ),
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_read(path, metric):
    table = "ablation_nanobatching" if "increase" in metric else "frontier"
    only = {"table": table, "metric": metric, "sequential+perseus": "", "nanobatching+perseus": "", "kareus": "7.8"}
    (row,) = read_reference(write_csv(path, REDUCTION | only))
    assert row.metric == metric


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"table": "frontier", "metric": "time_increase_pct"}, "increases belong to the tables ablation_without_freq"),
        ({"table": "ablation_nanobatching", "metric": "time_reduction_pct"}, "increases belong to the tables"),
        ({"table": "ablation_nanobatching", "metric": "time_increase_pct"}, "only the column kareus may have a value"),
    ],
)
def test_increases_are_over_kareus_and_of_ablations_only(path, changes, problem):
    assert problem in refusal(write_csv(path, REDUCTION | {"sequential+perseus": "1.0"} | changes))


def test_surrounding_spaces_and_unknown_columns_are_ignored(path):
    padded = {column: f" {text} " for column, text in FRONTIER.items()} | {"effective_energy_j": "n/a"}
    spaced = padded | {"stage0_mhz": FRONTIER["stage0_mhz"].replace(";", " ; ")}
    assert read_reference(write_csv(path, spaced)) == read_reference(write_csv(path.with_name("plain.csv"), FRONTIER))


NUMBERS = ("cp", "tp", "pp", "num_microbatches", "microbatch_size", "seq_len", "iteration_time_s", "total_energy_j")


@pytest.mark.parametrize("column", NUMBERS)
@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e999"])
def test_a_value_that_is_no_positive_number_is_located(path, column, text):
    said = refusal(write_csv(path, FRONTIER, FRONTIER | {column: text}))
    assert said == f"line 3: {column}={text!r}: must be a number above 0."


@pytest.mark.parametrize(
    ("column", "text", "least", "most"),
    [
        ("iteration_time_s", "1e-308", "1e-09", "1e+09"),
        ("iteration_time_s", "1e300", "1e-09", "1e+09"),
        ("total_energy_j", "1e-308", "1e-09", "1e+15"),
        ("pp", "1000000000", "1", "10000"),
        ("seq_len", "9" * 30, "1", "1e+09"),
    ],
)
def test_a_number_beyond_any_iteration_is_named_with_its_range(path, column, text, least, most):
    said = refusal(write_csv(path, FRONTIER, FRONTIER | {column: text}))
    assert said == f"line 3: {column}={text!r}: must be from {least} to {most}."


@pytest.mark.parametrize("text", ["9" * 10, "9" * 5000])
def test_numbers_of_thousands_of_digits_are_not_read(path, text):
    assert refusal(write_csv(path, FRONTIER | {"point": text})).startswith("line 2: point=")
    assert refusal(write_csv(path, FRONTIER | {"stage0_mhz": f"F{text}"})).startswith("line 2: stage0_mhz: ")
    assert refusal(write_csv(path, REDUCTION | {"kareus": "1e300"})).endswith("must be at most 1e+06 % either way.")


@pytest.mark.parametrize("row", [FRONTIER, REDUCTION])
def test_a_column_that_is_there_twice_is_named(path, row):
    path.write_text(",".join([*row, "model"]) + "\n" + ",".join([*row.values(), "x"]) + "\n")
    assert refusal(path) == "the column model is there twice; keep one of them."


def test_a_byte_order_mark_is_no_part_of_a_column(path):
    plain = read_reference(write_csv(path, FRONTIER))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_reference(path) == plain


@pytest.mark.parametrize("model", ["llama3.2-3b,qwen3-1.7b", "glob(*)"])
def test_a_row_whose_model_is_several_is_refused(path, model):
    rows = read_reference(write_csv(path, FRONTIER))
    several = dataclasses.replace(rows[0].scenario, model=model)
    with pytest.raises(ConfigError, match="give one value for each key"):
        subject(several, (), CONFIG)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5"])
def test_a_point_that_is_no_number_is_named_with_its_place(path, text):
    said = refusal(write_csv(path, FRONTIER, FRONTIER | {"point": text}))
    assert said == f"line 3: point={text!r}: must be a whole number, 0 or more."


@pytest.mark.parametrize("column", ["method", "model", "point", "total_energy_j", "tp", "seq_len"])
def test_a_column_that_a_frontier_lacks_is_named(path, column):
    (less := dict(FRONTIER)).pop(column)
    assert refusal(write_csv(path, less)) == f"line 2: no column {column}; complete the file."


@pytest.mark.parametrize("column", ["table", "model", "cp", "sequential+perseus", "nanobatching+perseus", "kareus"])
def test_a_column_that_a_reduction_lacks_is_named(path, column):
    (less := dict(REDUCTION)).pop(column)
    assert refusal(write_csv(path, less)) == f"line 2: no column {column}; complete the file."


def test_a_line_that_stops_short_names_the_column_that_it_lacks(path):
    header, line = ",".join(REDUCTION), ",".join(REDUCTION.values())
    path.write_text(f"{header}\n{line}\n{line.rpartition(',')[0]}\n")
    assert refusal(path) == "line 3: no column kareus; complete the file."


def test_a_line_with_more_values_than_columns_is_refused(path):
    """Such as one with decimal commas, whose values all stand in the wrong columns."""
    header, line = ",".join(REDUCTION), ",".join(REDUCTION.values())
    path.write_text(f"{header}\n{line}\n{line.replace('.', ',')}\n")
    assert refusal(path).startswith("line 3: more values than columns")


def test_empty_lines_do_not_shift_the_line_that_is_named(path):
    header, line = ",".join(REDUCTION), ",".join(REDUCTION.values())
    path.write_text(f"{header}\n\n{line}\n\n{line.replace('12.25', 'x')}\n")
    assert refusal(path) == "line 5: kareus='x': must be a number."


@pytest.mark.parametrize("word", ["1410", "G1410", "F", "F0", "F-1", "F12.5", "f1410", "F1410 B1410", "", "F²"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_word_that_is_no_instruction_is_named_with_its_place(path, stage, word):
    said = refusal(write_csv(path, FRONTIER | {f"stage{stage}_mhz": f"F1410;{word};B1410"}))
    assert said == (
        f"line 2: stage{stage}_mhz: {word!r} is no instruction; write F or B and its clock in MHz, such as F1410."
    )


@pytest.mark.parametrize("stage", [0, 1])
def test_clocks_of_some_stages_only_are_refused(path, stage):
    said = refusal(write_csv(path, FRONTIER | {f"stage{stage}_mhz": ""}))
    assert said.startswith(f"line 2: stage{stage}_mhz: ")


def test_an_unknown_method_is_located(path):
    said = refusal(write_csv(path, FRONTIER, FRONTIER | {"method": "sequental+perseus"}))
    assert said.startswith("line 3: method='sequental+perseus'")
    assert "sequential+perseus" in said.partition("allowed: ")[2]


def test_an_unknown_metric_is_answered_with_all_that_are_known(path):
    said = refusal(write_csv(path, REDUCTION | {"metric": "time_saved_pct"}))
    assert said == f"line 2: metric='time_saved_pct' is not known; allowed: {', '.join(METRICS)}."


@pytest.mark.parametrize("text", ["x", "12 %", "nan", "inf"])
def test_a_reduction_that_is_no_number_is_named_with_its_place(path, text):
    said = refusal(write_csv(path, REDUCTION, REDUCTION | {"kareus": text}))
    assert said == f"line 3: kareus={text!r}: must be a number."


def test_a_reduction_without_any_value_is_skipped(path):
    empty = REDUCTION | {"sequential+perseus": "", "nanobatching+perseus": "", "kareus": " "}
    assert read_reference(write_csv(path, REDUCTION, empty)) == read_reference(write_csv(path, REDUCTION))


def test_a_file_of_neither_format_is_answered_with_its_columns(path):
    path.write_text("gpu,locked_mhz,power_w\nA100,1410,250\n")
    said = refusal(path)
    assert "neither a column iteration_time_s" in said
    assert said.endswith("its columns are: gpu, locked_mhz, power_w.")


def test_an_empty_file_has_no_columns(path):
    path.write_text("")
    assert refusal(path).endswith("its columns are: none.")


@pytest.mark.parametrize("row", [FRONTIER, REDUCTION])
def test_a_header_without_rows_is_refused(path, row):
    path.write_text(",".join(row) + "\n")
    assert refusal(path) == "has a header and no rows; give a file with data."


def test_a_missing_or_binary_file_or_a_folder_cannot_be_read(path, tmp_path):
    assert refusal(path).startswith("cannot be read (No such file")
    assert refusal(tmp_path).startswith("cannot be read (Is a directory")
    path.write_bytes(b"PAR1\xff\xfe\x00\x80")
    assert refusal(path).startswith("cannot be read ('utf-8' codec")


def test_a_cell_without_end_cannot_be_read(path):
    path.write_text(f'metric,kareus\n"{"x" * 200_000}\n')
    assert refusal(path).startswith("cannot be read (field larger than")


def test_no_damage_of_a_packed_file_is_a_traceback(tmp_path):
    packed, path = gzip.compress(("metric,kareus\n" + "x,1\n" * 300).encode(), mtime=0), tmp_path / "rows.csv.gz"
    for place in range(len(packed)):
        for bit in (1, 16, 128):
            damaged = bytearray(packed)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            try:
                read_lines(path)
            except ArtifactError as error:
                assert str(error).startswith(f"{path}: ")


def test_what_a_file_unpacks_to_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv.gz"
    for content, is_packed in ((b"a\n" * 50_000, True), (b"a\n" * 50_000, False)):
        monkeypatch.setattr(lines, "MOST_BYTES", 99_999)
        path = path.with_suffix(".gz" if is_packed else "")
        path.write_bytes(gzip.compress(content) if is_packed else content)
        with pytest.raises(ArtifactError, match="has more than 99,999 bytes of text; give a shorter file"):
            read_lines(path)
        monkeypatch.setattr(lines, "MOST_BYTES", 100_000)
        assert len(read_lines(path)[1]) == 49_999


@pytest.mark.timeout(10)
def test_a_pipe_is_not_waited_for(path):
    os.mkfifo(path)
    assert refusal(path).startswith("cannot be read (no regular file)")


def test_underscores_make_no_number(tmp_path):
    line = Line(tmp_path, 1, {"n": "1_0"})
    for read in (lambda: line.positive("n", float, 0, 100), lambda: line.percent("n"), lambda: line.count("n")):
        with pytest.raises(LineValueError, match="n='1_0': must be a"):
            read()
