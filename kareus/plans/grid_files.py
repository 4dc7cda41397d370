"""Files of a grid: prices or carbon intensities over time, as exchanges and services export them, or counted by hours.

What columns mean stands in the tables `VALUES` and `ZONES`; one reader makes a series by the hour of any of them, in
UTC, and says in one line what it understood. Formats: exports of Electricity Maps ("Datetime (UTC)"), of WattTime
(`point_time,value` of its API and `timestamp,MOER` of its files, in lb of CO2 for a MWh) and of the Transparency
Platform of ENTSO-E ("MTU (CET/CEST)", in local time), each with any separator and either decimal mark, or as the JSON
of an API; and columns of other exchanges and tariffs whose titles name a time, and a currency for a MWh or a kWh.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kareus.artifacts.files import read_text
from kareus.artifacts.records import parse_json
from kareus.errors import ConfigError
from kareus.plans.series import HourlySeries, Unit, check_plausible

BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets begin UTF-8 files with it."""
MOST_HOURS = 8784
MOST_GAP_H = 3
"""Hours in a row without a value that get that of the hour before; more are refused."""
HOUR_S, DAY_S = 3600, 86_400
KG_PER_LB = 0.45359237
"""The international pound, exactly (NIST Handbook 44, appendix C)."""
COUNTED = "hour"
"""Title of a column that counts hours from 0."""
NOTHING = ("", "-", "n/e", "n/a")
"""Texts of cells without a value: those of ENTSO-E, and an empty one."""


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column of values, by its title in small letters."""

    title: str
    """Pattern; its group `currency` is what prices are in."""
    unit: Unit
    factor: float
    """What a value of it is for a kilowatt-hour, in the unit of the series."""
    meaning: str = ""
    """What a user may not expect of it."""
    beside: str = ""
    """Title of the time column that it needs; empty: any."""


CURRENCY = r"(?P<currency>(?<![a-z])[a-z]{3}|[$€£¥])"
VALUES = (
    ValueColumn("price_per_kwh", Unit.PRICE, 1.0),
    ValueColumn("price_per_mwh", Unit.PRICE, 1e-3),
    ValueColumn("carbon_g_per_kwh", Unit.CARBON, 1.0),
    ValueColumn("carbon_kg_per_mwh", Unit.CARBON, 1.0),
    ValueColumn(r"carbon intensity gco2(eq)?/kwh \((life ?cycle|lca)\)", Unit.CARBON, 1.0, "of life cycles"),
    ValueColumn(r"carbon intensity gco2(eq)?/kwh \(direct\)", Unit.CARBON, 1.0, "of burning alone"),
    ValueColumn(r"(actual )?carbon[ _]?intensity( ?\(?gco2(eq)?/kwh\)?|_avg)?", Unit.CARBON, 1.0),
    ValueColumn("moer", Unit.CARBON, KG_PER_LB, "marginal, in lb/MWh"),
    ValueColumn("value", Unit.CARBON, KG_PER_LB, "marginal, in lb/MWh", beside="point_time"),
    ValueColumn(r".*carbon.*\blbs?( co2)?(eq)?/mwh\W*", Unit.CARBON, KG_PER_LB, "in lb/MWh"),
    ValueColumn(rf".*{CURRENCY} ?/ ?mwh.*", Unit.PRICE, 1e-3),
    ValueColumn(rf".*{CURRENCY} ?/ ?kwh.*", Unit.PRICE, 1.0),
    ValueColumn(r".*(\b(ct|cents?|c|p|pence|öre|øre)|¢) ?/ ?kwh.*", Unit.PRICE, 1e-2, "in hundredths"),
)
"""Meanings of columns; the first that a file has counts, so that Electricity Maps' own default, life cycles, does."""
TIME = (
    r"(?:datetime|point_time|timestamp|time|date|mtu|ts|valid_from|zeit|datum|delivery date)"
    r"(?:[ _]*(?:start|begin|von))?(?:[ _]*[\[(]?(?P<zone>[a-z_/]*)[\])]?)"
)
"""Title of a column of times, with its zone."""
ZONES = {
    "utc": "UTC",
    "cet": "Europe/Brussels",
    "cet/cest": "Europe/Brussels",
    "wet": "Europe/Lisbon",
    "wet/west": "Europe/Lisbon",
    "eet": "Europe/Helsinki",
    "eet/eest": "Europe/Helsinki",
    "gmt/bst": "Europe/London",
}
"""Zones by their names in titles; ENTSO-E's CET is the local time, summer time included."""
MARKS = {"UTC": 0, "GMT": 0, "WET": 0, "BST": 1, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3}
"""Hours before UTC by the mark behind a time, which ENTSO-E has where clocks change."""
DATES = ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S")
AMERICAN = ("%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p")
"""Likewise where a half of the day follows, in English."""
HOURS = ("hour", "delivery hour", "hour ending")
"""Titles of the hour of a day beside a column of days, from 1 to 24 as it ends, or from 0."""
OF_APIS = ("data", "history", "forecast")
"""Keys of JSON that have a list of rows."""
OF_INTERVALS = ("%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S")
"""Dates with slashes are ENTSO-E's only where they begin an interval; elsewhere the month may come first."""
FIRST_SEQUENCES = ("without sequence", "sequence 1")
"""Of ENTSO-E's auctions of one hour, those of the coupled market; others are of single exchanges."""


def read_series(path: Path) -> HourlySeries:
    """Read a file of a grid.

    Prices may be negative, as they are on some markets; carbon intensities may not. Rows of less than an hour become
    means of hours, rows of up to a day stand for each of their hours. Local times are resolved by their order: the
    hour that summer time leaves out has no value, the one that it gives back comes twice.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it is not such a file, or lacks more than `MOST_GAP_H` hours in a row.
    """
    table = _read_table(path)
    column, position, currency = _value_column(table)
    table = _one_market(table)
    numbers = _numbers(table, column, position)
    currency = (currency or table.only("currency")).upper()
    if table.titles[0] == COUNTED:
        values, began_s = _counted(table, numbers), None
        notes: list[str] = []
        times = f"{_hours(len(values))} from hour 0"
    else:
        points = _points(table, numbers)
        values, notes = _by_hour(table, points)
        began_s = points[0][0]
        times = f"{_hours(len(values))} from {datetime.fromtimestamp(began_s, UTC):%Y-%m-%d %H:%M} UTC"
    of = ", ".join(filter(None, (f"column '{table.shown[position]}'", column.meaning, *table.notes)))
    what = _range(column.unit, values, currency)
    understood = "; ".join((f"{path}: {what}, {times} ({of})", *notes))
    return HourlySeries(column.unit, values, currency=currency, began_s=began_s, understood=understood)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Cells of a file, by row."""

    path: Path
    shown: Sequence[str]
    titles: Sequence[str]
    """The same in small letters."""
    rows: Sequence[tuple[int, Sequence[str]]]
    """Numbers of rows, from 1, and their cells."""
    separator: str
    notes: Sequence[str] = ()

    def only(self, title: str) -> str:
        """The text that a column has in all rows; empty where it has several, or there is none."""
        if title not in self.titles:
            return ""
        texts = {cells[self.titles.index(title)] for _, cells in self.rows}
        return texts.pop() if len(texts) == 1 else ""


def _read_table(path: Path) -> _Table:
    lines = read_text(path).removeprefix(BYTE_ORDER_MARK).splitlines()
    if lines and lines[0].lstrip().startswith(("{", "[")):
        lines = _of_api(path, "\n".join(lines))
    if lines and re.fullmatch(r"sep=.", lines[0].strip().lower()):  # for spreadsheets
        lines = lines[1:]
    try:
        of = [next(csv.reader(lines[:1], delimiter=mark), []) for mark in ",;\t"]
        mark = ",;\t"[max(range(len(of)), key=lambda n: len(of[n]))]
        rows = list(csv.reader(lines, delimiter=mark, skipinitialspace=True))
    except csv.Error as error:
        raise ConfigError(f"{path}: is not CSV: {error}.") from None
    rows = _without_last(rows)
    shown = [" ".join(title.split()) for title in rows[0]] if rows else []
    titles = [title.lower().replace("₂", "2") for title in shown]
    if not titles or not (titles[0] == COUNTED or any(re.fullmatch(TIME, title) for title in titles)):
        raise _not_understood(path, shown)
    body = [(number, [cell.strip() for cell in row]) for number, row in enumerate(rows[1:], 1) if row]
    if not body:
        raise ConfigError(f"{path}: has no hours; give one row for each.")
    for number, row in body:
        if len(row) != len(titles):
            what = "an hour and a number" if titles[0] == COUNTED else f"a row of {len(titles)} columns"
            raise ConfigError(f"{path}: row {number}: '{mark.join(row)}' is not {what}.")
    return _with_hours(_Table(path=path, shown=shown, titles=titles, rows=body, separator=mark))


def _without_last(rows: list[list[str]]) -> list[list[str]]:
    """Return rows without a last column that has no title and nothing in it."""
    if not rows or not rows[0] or rows[0][-1].strip():
        return rows
    most = len(rows[0]) - 1
    return rows if any("".join(row[most:]).strip() for row in rows) else [row[:most] for row in rows]


def _of_api(path: Path, text: str) -> list[str]:
    """Return what an API answered as lines of CSV."""
    try:
        content = parse_json(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    listed = content
    if isinstance(content, Mapping):
        listed = next((content[key] for key in OF_APIS if isinstance(content.get(key), list)), [])
    rows = [row for row in listed if isinstance(row, Mapping)]
    if not rows:
        raise ConfigError(f"{path}: has no rows of data; give what an API answers, or CSV.")
    titles = list(rows[0])
    out = io.StringIO()
    csv.writer(out).writerows([titles, *([row.get(title, "") for title in titles] for row in rows)])
    return out.getvalue().splitlines()


def _with_hours(table: _Table) -> _Table:
    """Return a table with the hour of each day among the times, where a column of its own has it."""
    days = next((n for n, title in enumerate(table.titles) if re.fullmatch(TIME, title)), None)
    place = next((n for n, title in enumerate(table.titles) if title in HOURS and n), None)
    if days is None or place is None:
        return table
    hours = [re.fullmatch(r"0*([0-9]{1,2})(:00)?", cells[place]) for _, cells in table.rows]
    if not all(hours):
        return table
    numbers = [int(match[1]) for match in hours if match]
    first = 0 if min(numbers) == 0 else 1
    rows = [
        (row, [*cells[:days], f"{cells[days]} {number - first:02d}:00", *cells[days + 1 :]])
        for (row, cells), number in zip(table.rows, numbers, strict=True)
    ]
    note = f"column '{table.shown[place]}' as hours that {'end' if first else 'begin'}"
    return replace(table, rows=rows, notes=(*table.notes, note))


def _not_understood(path: Path, shown: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{path}: columns {','.join(shown) or 'none'}; expected hour,price_per_kwh or hour,carbon_g_per_kwh (of a MWh: "
        "hour,price_per_mwh or hour,carbon_kg_per_mwh), an export of Electricity Maps, WattTime or ENTSO-E, or times "
        "and prices by their unit, such as datetime (UTC),price (EUR/MWh)."
    )


def _value_column(table: _Table) -> tuple[ValueColumn, int, str]:
    """The column of values, its place and its currency."""
    for column in VALUES:
        for place, title in enumerate(table.titles):
            match = re.fullmatch(column.title, title)
            if match is not None and (not column.beside or column.beside in table.titles):
                signal = table.only("signal_type")
                if "signal_type" in table.titles and signal not in ("co2_moer", "co2_aoer"):
                    raise ConfigError(
                        f"{table.path}: signal_type {signal or 'varies'}; give a file of co2_moer or co2_aoer, which "
                        "are of CO2."
                    )
                return column, place, match.groupdict().get("currency", "")
    raise _not_understood(table.path, table.shown)


def _one_market(table: _Table) -> _Table:
    """Leave out the rows of further auctions of the same hours."""
    if "sequence" not in table.titles:
        return table
    place = table.titles.index("sequence")
    names = {cells[place].lower() for _, cells in table.rows}
    chosen = next((name for name in FIRST_SEQUENCES if name in names), None)
    if len(names) == 1 or chosen is None:
        return table
    rows = [(number, cells) for number, cells in table.rows if cells[place].lower() == chosen]
    return replace(table, rows=rows, notes=(*table.notes, f"rows of {chosen}"))


def _numbers(table: _Table, column: ValueColumn, position: int) -> dict[int, float | None]:
    """Values for a kilowatt-hour by row; None where a cell has nothing."""
    texts = {number: cells[position] for number, cells in table.rows}
    mark = _decimal_mark([text for text in texts.values() if text.lower() not in NOTHING], table.separator)
    form, thousands = _grouped(mark), "," if mark == "." else "."
    numbers = dict[int, float | None]()
    for number, text in texts.items():
        if text.lower() in NOTHING and table.titles[0] != COUNTED:
            numbers[number] = None
            continue
        try:
            if "_" in text:  # Python would read `1_0` as 10
                raise ValueError
            value = float(text.replace(thousands, "").replace(mark, ".") if form.fullmatch(text) else text)
        except ValueError:
            row = ",".join(dict(table.rows)[number])
            what = "an hour and a number" if table.titles[0] == COUNTED else "a time and a number"
            raise ConfigError(f"{table.path}: row {number}: '{row}' is not {what}.") from None
        place = f"{table.path}: row {number}"
        if not math.isfinite(value):
            raise ConfigError(f"{place}: {text} is not a finite number.")
        check_plausible(place, text, column.unit, value * column.factor)
        numbers[number] = value * column.factor
    return numbers


def _decimal_mark(texts: Collection[str], separator: str) -> str:
    """The decimal mark that all numbers of a column can have, the other being of thousands; a point where none fits."""
    marks = (",", ".") if separator == ";" else (".", ",")
    return next((mark for mark in marks if all(_grouped(mark).fullmatch(text) for text in texts)), ".")


def _grouped(mark: str) -> re.Pattern[str]:
    """Numbers with a decimal mark, and with thousands after the other one or after nothing."""
    other = "," if mark == "." else "."
    return re.compile(rf"[+-]?([0-9]*|[1-9][0-9]{{0,2}}([{other}][0-9]{{3}})+)([{mark}][0-9]*)?")


def _counted(table: _Table, numbers: Mapping[int, float | None]) -> tuple[float, ...]:
    """Values of hours that are counted from 0."""
    if len(table.rows) > MOST_HOURS:
        raise ConfigError(f"{table.path}: has {len(table.rows):,} hours; give at most {MOST_HOURS:,}, a leap year.")
    for hour, (number, cells) in enumerate(table.rows):
        text = cells[0]
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ConfigError(f"{table.path}: row {number}: '{','.join(cells)}' is not an hour and a number.")
        if int(text) != hour:
            raise ConfigError(
                f"{table.path}: row {number}: hour {int(text)}, expected {hour}; hours count up from 0 without a gap."
            )
    return tuple(value for value in numbers.values() if value is not None)


def _points(table: _Table, numbers: Mapping[int, float | None]) -> list[tuple[int, float]]:
    """Instants in seconds since the epoch, in order and each once, with their values."""
    place = next(n for n, title in enumerate(table.titles) if re.fullmatch(TIME, title))
    zone = _zone(table, place)
    rows = [(number, _parsed(table, number, cells[place])) for number, cells in table.rows]
    if len(rows) > 1 and rows[0][1].replace(tzinfo=None) > rows[-1][1].replace(tzinfo=None):
        rows.reverse()  # the newest first
    points = dict[int, float]()
    last_s: int | None = None
    for number, local in rows:
        value, at_s = numbers[number], _instant(local, zone, last_s)
        if at_s is None and value is not None:
            raise ConfigError(
                f"{table.path}: row {number}: {local:%Y-%m-%d %H:%M} is left out by summer time in {zone}; name the "
                f"zone of the times in the column's title, such as '{table.shown[place].split(' ')[0]} (UTC)'."
            )
        if at_s is None or value is None:
            continue
        last_s = at_s if local.tzinfo is None else last_s
        if points.setdefault(at_s, value) != value:
            raise ConfigError(f"{table.path}: row {number}: {local:%Y-%m-%d %H:%M} comes twice; {_splitting(table)}.")
    if not points:
        raise ConfigError(f"{table.path}: has no values; give one row for each hour.")
    return sorted(points.items())


def _splitting(table: _Table) -> str:
    """What to do about several values of one hour."""
    for title, shown in zip(table.titles, table.shown, strict=True):
        texts = sorted({cells[table.titles.index(title)] for _, cells in table.rows})
        if title in ("area", "sequence", "zone id", "zone name", "ba", "region", "market") and len(texts) > 1:
            return f"column '{shown}' has {', '.join(texts[:4])}: give a file of one"
    return "give each hour once"


def _zone(table: _Table, place: int) -> tzinfo:
    """Zone of times without a mark of their own."""
    match = re.fullmatch(TIME, table.titles[place])
    name = match["zone"] if match else ""
    try:
        return ZoneInfo(ZONES.get(name or "utc") or name.title())
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            f"{table.path}: column '{table.shown[place]}': zone '{name}' is not known; give UTC, CET/CEST, or a name "
            "such as Europe/Berlin."
        ) from None


def _parsed(table: _Table, number: int, text: str) -> datetime:
    """The start of an interval, or a time, with the offset that it names."""
    start, _, end = text.partition(" - ")
    match = re.fullmatch(r"(.*?)\s*\((\w+)\)", start)
    start, mark = (match[1], match[2].upper()) if match else (start, "")
    formats = (None, *DATES, *AMERICAN, *(OF_INTERVALS if end else ()))
    for form in formats:
        try:
            parsed = datetime.fromisoformat(start) if form is None else datetime.strptime(start, form)
        except ValueError:
            continue
        return parsed.replace(tzinfo=timezone(timedelta(hours=MARKS[mark]))) if mark in MARKS else parsed
    raise ConfigError(f"{table.path}: row {number}: '{text}' is not a time; write it as 2025-03-30 01:00.")


def _instant(local: datetime, zone: tzinfo, last_s: int | None) -> int | None:
    """Seconds since the epoch, of two the first after `last_s`; None in the hour that summer time leaves out."""
    if local.tzinfo is not None:
        return int(local.timestamp())
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != local:
        return None
    return int((first if last_s is None or first.timestamp() > last_s else second).timestamp())


def _by_hour(table: _Table, points: Sequence[tuple[int, float]]) -> tuple[tuple[float, ...], list[str]]:
    """Values of all hours from the first instant on, and what was done to get them."""
    began_s = points[0][0]
    step_s = _step_s(table, [at_s for at_s, _ in points])
    hours = (points[-1][0] - began_s + max(step_s, HOUR_S)) // HOUR_S
    if hours > MOST_HOURS:
        raise ConfigError(f"{table.path}: has {hours:,} hours; give at most {MOST_HOURS:,}, a leap year.")
    of_hours: list[list[float]] = [[] for _ in range(hours)]
    for at_s, value in points:
        first = (at_s - began_s) // HOUR_S
        for hour in range(first, first + max(step_s // HOUR_S, 1)):
            of_hours[hour].append(value)
    values, gap, filled = list[float](), 0, 0
    for hour, of_hour in enumerate(of_hours):
        gap = 0 if of_hour else gap + 1
        filled += not of_hour
        if gap > MOST_GAP_H:
            at = datetime.fromtimestamp(began_s + (hour - gap + 1) * HOUR_S, UTC)
            raise ConfigError(
                f"{table.path}: lacks more than {MOST_GAP_H} hours from {at:%Y-%m-%d %H:%M} UTC on; give a file "
                "without such a gap."
            )
        values.append(math.fsum(of_hour) / len(of_hour) if of_hour else values[-1])
    notes = [f"means of rows {step_s // 60} min apart"] if step_s < HOUR_S else []
    notes += [f"rows {step_s // HOUR_S} h apart, each for all its hours"] if step_s > HOUR_S else []
    notes += [f"{_hours(filled)} without a value, which get that of the hour before"] if filled else []
    return tuple(values), notes


def _step_s(table: _Table, instants_s: Sequence[int]) -> int:
    """Time from row to row, most often; an hour where there is one row."""
    steps = Counter(b - a for a, b in pairwise(instants_s))
    step_s = max(steps, key=lambda step: (steps[step], -step)) if steps else HOUR_S
    if step_s > DAY_S or (HOUR_S % step_s if step_s < HOUR_S else step_s % HOUR_S):
        raise ConfigError(
            f"{table.path}: rows are {timedelta(seconds=step_s)} apart; give a file by the hour, by a part of it such "
            "as 5 or 15 minutes, or by the day."
        )
    return step_s


def _hours(number: int) -> str:
    return f"{number:,} hour{'' if number == 1 else 's'}"


def _range(unit: Unit, values: Sequence[float], currency: str) -> str:
    """What a series is, with its least and its largest value."""
    low, high = (f"{value:.4g}" for value in (min(values), max(values)))
    span = low if low == high else f"{low} to {high}"
    if unit is Unit.CARBON:
        return f"carbon intensity of {span} g/kWh"
    return f"price of {span} {currency or 'a'}{'/' if currency else ' '}kWh"
