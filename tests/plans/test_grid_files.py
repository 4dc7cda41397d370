"""Exports of grids as they are: units, zones, clock changes, decimal marks, parts of hours."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from helpers.builders import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kareus.adviser.goals import goals_of
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.plans.grid_files import read_series
from kareus.plans.series import Unit

CASES = Path(__file__).parents[1] / "cases"
BRUSSELS = ZoneInfo("Europe/Brussels")
POUND_G = 453.59237
PRICES = st.floats(-500, 4000).map(lambda value: round(value, 2))


def case_rows() -> list[dict[str, str]]:
    with (CASES / "index.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["case"].startswith("issue/csv-")]


@pytest.mark.parametrize("row", case_rows(), ids=lambda row: row["case"])
def test_files_that_people_have_are_read_or_refused_as_expected(row):
    option, file = re.search(r"--(price|carbon) cases/(\S+)", row["command"]).groups()
    given = {"price": "price_of_energy", "carbon": "carbon"}[option]
    path = CASES / file
    if row["expected"].startswith("refused"):
        with pytest.raises(ConfigError, match=rf"{re.escape(str(path))}: row \d"):
            goals_of(**{given: str(path)})
    else:
        (line,) = goals_of(**{given: str(path)}).understood
        assert line.startswith(f"{path}: ")
        assert "\n" not in line


def series_of(tmp_path, text):
    path = tmp_path / "grid.csv"
    path.write_text(text)
    return read_series(path)


def test_electricity_maps_is_read_in_utc():
    series = read_series(CASES / "electricitymaps.csv")
    assert (series.unit, series.values) == (Unit.CARBON, (428.9, 421.7, 416.2))
    assert datetime.fromtimestamp(series.began_s, UTC) == datetime(2024, 3, 30, 22, tzinfo=UTC)
    assert series.understood == (
        f"{CASES / 'electricitymaps.csv'}: carbon intensity of 416.2 to 428.9 g/kWh, 3 hours from 2024-03-30 22:00 UTC "
        "(column 'Carbon intensity gCO₂eq/kWh (Life cycle)', of life cycles)"
    )


def test_direct_emissions_count_where_they_are_alone(tmp_path):
    text = "Datetime (UTC),Carbon intensity gCO₂eq/kWh (direct)\n2024-03-30 22:00:00,371.2\n"
    series = series_of(tmp_path, text)
    assert series.values == (371.2,)
    assert "of burning alone" in series.understood


@pytest.mark.parametrize("header", ["point_time,value,frequency,market,ba", "timestamp,MOER,frequency,market,ba"])
@given(values=st.lists(st.floats(0, 2000), min_size=1, max_size=60))
def test_five_minutes_in_pounds_become_hours_in_grams(tmp_path_factory, header, values):
    start = datetime(2024, 3, 10, 8, tzinfo=UTC)
    rows = [f"{(start + n * timedelta(minutes=5)).isoformat()},{v!r},300,RTM,CAISO" for n, v in enumerate(values)]
    series = series_of(tmp_path_factory.mktemp("watttime"), "\n".join((header, *rows)))
    hours = [values[n : n + 12] for n in range(0, len(values), 12)]
    if len(values) == 1:
        hours = [values]
    assert series.values == pytest.approx([sum(hour) / len(hour) * POUND_G / 1000 for hour in hours])
    assert series.began_s == start.timestamp()
    assert "marginal, in lb/MWh" in series.understood


def entsoe(start, prices, header, form, *, comma, marks):
    """An export of ENTSO-E from `start` on: in March with a row without a value, in October with an hour twice."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=";" if comma else ",")
    writer.writerow(header)
    hour = timedelta(hours=1)
    for n, price in enumerate(prices):
        local = (start + n * hour).astimezone(BRUSSELS)
        naive = local.replace(tzinfo=None)
        if n and naive - (start + (n - 1) * hour).astimezone(BRUSSELS).replace(tzinfo=None) == 2 * hour:
            writer.writerow([f"{naive - hour:{form}} - {naive:{form}}", "n/e", "BZN|BE"])
        mark = f" ({local.tzname()})" if marks else ""
        text = f"{price:.2f}".replace(".", ",") if comma else f"{price:.2f}"
        writer.writerow([f"{naive:{form}}{mark} - {naive + hour:{form}}{mark}", text, "BZN|BE"])
    return out.getvalue()


OLD = (["MTU (CET/CEST)", "Day-ahead Price [EUR/MWh]", "BZN"], "%d.%m.%Y %H:%M")
NEW = (["MTU (CET/CEST)", "Day-ahead Price (EUR/MWh)", "Area"], "%d/%m/%Y %H:%M:%S")


@pytest.mark.parametrize("style", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize("day", [datetime(2025, 3, 29, 23), datetime(2025, 10, 25, 22), datetime(2025, 7, 1)], ids=str)
@given(prices=st.lists(PRICES, min_size=2, max_size=30), comma=st.booleans(), marks=st.booleans())
def test_local_hours_are_those_that_passed(tmp_path_factory, style, day, prices, comma, marks):
    start = day.replace(tzinfo=UTC)
    text = entsoe(start, prices, *style, comma=comma, marks=marks)
    series = series_of(tmp_path_factory.mktemp("entsoe"), text)
    assert series.values == pytest.approx([price / 1000 for price in prices])
    assert (series.unit, series.currency, series.began_s) == (Unit.PRICE, "EUR", start.timestamp())


def test_quarters_of_the_double_hour_are_told_apart(tmp_path):
    times = [f"26.10.2025 {hour:02}:{minute:02}" for hour in (1, 2, 2, 3) for minute in (0, 15, 30, 45)]
    rows = [f"{time} - x,{10 * n}" for n, time in enumerate(times)]
    series = series_of(tmp_path, "\n".join(("MTU (CET/CEST),Day-ahead Price [EUR/MWh]", *rows)))
    assert series.values == pytest.approx([0.015, 0.055, 0.095, 0.135])
    assert "means of rows 15 min apart" in series.understood


def test_a_time_that_summer_time_leaves_out_has_no_price(tmp_path):
    with pytest.raises(ConfigError, match="row 2: 2025-03-30 02:00 is left out by summer time in Europe/Brussels"):
        series_of(
            tmp_path,
            "MTU (CET/CEST),Day-ahead Price [EUR/MWh]\n30.03.2025 01:00 - x,1\n30.03.2025 02:00 - x,2\n",
        )


def test_the_coupled_auction_counts_where_there_are_several(tmp_path):
    rows = "".join(
        f'"01/01/2025 0{hour}:00:00 - 01/01/2025 0{hour + 1}:00:00","BZN|DE-LU","Sequence {n}","{10 * n + hour}"\n'
        for hour in range(3)
        for n in (1, 2)
    )
    series = series_of(tmp_path, '"MTU (CET/CEST)","Area","Sequence","Day-ahead Price (EUR/MWh)"\n' + rows)
    assert series.values == pytest.approx([0.010, 0.011, 0.012])
    assert "rows of sequence 1" in series.understood


def test_the_newest_may_come_first_and_days_stand_for_their_hours(tmp_path):
    series = series_of(tmp_path, "Datetime (UTC),carbon_intensity\n2024-01-02,200\n2024-01-01,100\n")
    assert series.values == (100.0,) * 24 + (200.0,) * 24
    assert "rows 24 h apart, each for all its hours" in series.understood


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hour;price_per_kwh\n0;0,105\n", 0.105),
        ("hour\tprice_per_kwh\n0\t0,105\n", 0.105),
        ('hour,price_per_kwh\n0,"0,105"\n', 0.105),
        ("hour,price_per_kwh\n0,0.105\n", 0.105),
        ('hour,price_per_mwh\n0,"1,052.3"\n', 1.0523),
        ("hour;price_per_mwh\n0;1.052,3\n", 1.0523),
        ("hour;price_per_mwh\n0;105.25\n", 0.10525),
    ],
)
def test_either_mark_may_be_the_decimal_one(tmp_path, text, value):
    assert series_of(tmp_path, text).values == (pytest.approx(value),)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (['"1,000"', "50.5"], [1000, 50.5]),  # a comma of thousands, since points are decimal
        (['"0,100"', '"52,3"'], [0.1, 52.3]),
        (['"1.000"', '"50,5"'], [1000, 50.5]),
        (["5e1", "+2."], [50, 2]),
    ],
)
def test_the_decimal_mark_is_that_of_the_whole_column(tmp_path, column, values):
    text = "hour,price_per_mwh\n" + "".join(f"{hour},{cell}\n" for hour, cell in enumerate(column))
    assert series_of(tmp_path, text).values == pytest.approx([value / 1000 for value in values])


def test_numbers_with_different_marks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="row 1: '0,0,5' is not an hour and a number"):
        series_of(tmp_path, 'hour,price_per_mwh\n0,"0,5"\n1,0.5\n')


def test_a_few_hours_without_a_value_are_told_and_more_refused(tmp_path):
    head = "Datetime (UTC),carbon_intensity\n2024-01-01T00:00Z,100\n2024-01-01T01:00Z,110\n"
    series = series_of(tmp_path, head + "2024-01-01T02:00Z,\n2024-01-01T04:00Z,140\n2024-01-01T05:00Z,150\n")
    assert series.values == (100, 110, 110, 110, 140, 150)
    assert series.understood.endswith("; 2 hours without a value, which get that of the hour before")
    with pytest.raises(ConfigError, match=r"lacks more than 3 hours from 2024-01-01 02:00 UTC on"):
        series_of(tmp_path, head + "2024-01-01T06:00Z,140\n2024-01-01T07:00Z,150\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("point_time,value\n2024,918.0\n", "row 1: '2024' is not a time; write it as 2025-03-30 01:00"),
        ("Datetime (UTC),humidity\n2024-01-01,3\n", "columns Datetime (UTC),humidity; expected hour,price_per_kwh"),
        ("value,hour\n1,0\n", "columns value,hour; expected"),
        ("Datetime (Mars),carbon_intensity\n2024-01-01,3\n", "zone 'mars' is not known; give UTC, CET/CEST, or"),
        ("date,carbon_intensity\n03/04/2024 01:00,3\n", "'03/04/2024 01:00' is not a time"),
        ("date,carbon_intensity\n2024-01-01,3\n2024-02-01,3\n", "rows are 31 days, 0:00:00 apart; give a file by"),
        ("date,carbon_intensity\n2024-01-01,\n", "has no values"),
        ("date,carbon_intensity\n2024-01-01\n", "row 1: '2024-01-01' is not a row of 2 columns"),
        ("date,carbon_intensity\n2024-01-01,many\n", "row 1: '2024-01-01,many' is not a time and a number"),
        ("date,carbon_intensity\n2024-01-01,-3\n", "row 1: -3: a carbon_g_per_kwh of -3 is not plausible"),
        ("point_time,value\n2024-01-01,9180\n", "row 1: 9180: a carbon_g_per_kwh of 4,163.98 is not plausible"),
        (
            "point_time,value,signal_type\n2024-01-01,3,health_damage\n",
            "signal_type health_damage; give a file of co2_moer or co2_aoer",
        ),
        (
            "MTU (UTC),Area,Day-ahead Price (EUR/MWh)\n2024-01-01 00:00,DE,3\n2024-01-01 00:00,AT,4\n",
            "row 2: 2024-01-01 00:00 comes twice; column 'Area' has AT, DE: give a file of one",
        ),
        (
            "time,carbon_intensity\n2024-01-01 00:00,3\n2024-01-01 01:00,3\n2026-01-01 01:00,3\n",
            "hours; give at most 8,784",
        ),
    ],
)
def test_what_is_no_grid_file_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError) as refused:
        series_of(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("price", "gpu_price", "currency"),
    [
        ("0.12perkWh", None, ""),
        ("0.12EURperkWh", None, "EUR"),
        ("120EURperMWh", "2.5perGPUh", "EUR"),
        (None, "2.5USDperGPUh", "USD"),
        ("0.12EURperkWh", "2.5EURperGPUh", "EUR"),
    ],
)
def test_prices_may_name_their_currency(price, gpu_price, currency):
    goals = goals_of(price_of_energy=price, gpu_price=gpu_price)
    assert goals.currency == currency
    assert goals.price_per_kwh == (None if price is None else pytest.approx(0.12))


def test_prices_in_two_currencies_are_refused(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("MTU (UTC),Day-ahead Price [EUR/MWh]\n2025-01-01 00:00,3\n")
    with pytest.raises(ConfigError, match="--price is in EUR, --gpu-price in USD; give both in one currency"):
        goals_of(price_of_energy=str(path), gpu_price="2.5USDperGPUh")
    assert goals_of(price_of_energy=str(path), gpu_price="2.5perGPUh").currency == "EUR"


@pytest.mark.slow
def test_the_answer_says_what_was_understood_and_in_which_currency(capsys, tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("MTU (UTC);Day-ahead Price [EUR/MWh]\n2025-01-01 00:00;52,30\n")
    asked = ["advise", "model=qwen3-1.7b", "gpu=h200", "--gpus", "4", "--global-batch", "16", "--tokens", "1e9"]
    narrow = ["tp=1", "microbatch_size=4", "recompute=none", "--config-dir", str(CONFIG)]
    files = ["--price", str(prices), "--carbon", str(CASES / "watttime.csv")]
    assert main([*asked, *narrow, *files]) == 0
    out = capsys.readouterr().out
    assert re.search(r"whole training: [^;]* [0-9.]+ EUR, [0-9.]+ kg CO2; without a plan: ", out)
    assert f"{prices}: price of 0.0523 EUR/kWh, 1 hour from 2025-01-01 00:00 UTC (column 'Day-ahead Price" in out
    assert f"{CASES / 'watttime.csv'}: carbon intensity of 417.1 g/kWh, 1 hour from 2024-03-10 08:00 UTC" in out


ODD = {
    "carbon intensity of 305.5 to 310.5": "datetime,zone_name,carbon_intensity_avg\n"
    "2021-03-01 00:00:00+00:00,DE,310.5\n2021-03-01 01:00:00+00:00,DE,305.5\n",
    "carbon intensity of 60 to 61": "Datetime (UTC),Actual Carbon Intensity (gCO2/kWh),Index\n"
    "2024-01-01T00:00Z,60,low\n2024-01-01T01:00Z,61,low\n",
    "carbon intensity of 418.7 to 419.6": "timestamp,MOER,MOER version,\n"
    "2021-01-01T00:00:00+00:00,923,3.0\n2021-01-01T01:00:00+00:00,925,3.0\n",
    "carbon intensity of 394.6 to 395.1": '{"data": [{"point_time": "2023-05-01T00:00:00+00:00", "value": 870},'
    ' {"point_time": "2023-05-01T01:00:00+00:00", "value": 871}], "meta": {"units": "lbs_co2_per_mwh"}}',
    "carbon intensity of 300 to 302": '{"zone": "DE", "history": [{"carbonIntensity": 302, "datetime": '
    '"2023-05-01T00:00:00Z"}, {"carbonIntensity": 300, "datetime": "2023-05-01T01:00:00Z"}]}',
    "price of 0.0601 to 0.06134 €/kWh": "Datum von;Datum bis;Deutschland [€/MWh] Originalauflösungen\n"
    "01.03.2024 00:00;01.03.2024 01:00;61,34\n01.03.2024 01:00;01.03.2024 02:00;60,10\n",
    "price of 0.205 to 0.215 a kWh": "sep=;\nZeit;Preis ct/kWh\n01.01.2024 00:00;21,5\n01.01.2024 01:00;20,5\n",
    "price of 0.11 to 0.12 $/kWh": "Time,Price ($/kWh)\n03/13/2024 12:00 AM,0.12\n03/13/2024 01:00 AM,0.11\n",
    "price of 0.03 to 0.031 USD/kWh, 2 hours": "Date,Hour,LMP USD/MWh\n2024-03-10,1,30\n2024-03-10,2,31\n",
}


@pytest.mark.parametrize(("understood", "text"), ODD.items())
def test_odd_titles_are_understood_by_their_units(understood, text, tmp_path):
    (tmp_path / "grid.csv").write_text(text)
    assert understood in read_series(tmp_path / "grid.csv").understood


def test_an_answer_without_rows_is_refused(tmp_path):
    (tmp_path / "grid.json").write_text('{"error": "no access"}')
    with pytest.raises(ConfigError, match="has no rows of data"):
        read_series(tmp_path / "grid.json")
