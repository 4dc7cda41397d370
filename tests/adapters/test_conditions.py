"""Files that tell a running job what it cannot see: what they say, and what happens when they are wrong."""

import os
from datetime import datetime

import pytest

from kareus.adapters.conditions import (
    Conditions,
    PricedHours,
    ToldStraggler,
    WatchedConditions,
    read_conditions,
    read_priced_hours,
)
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.selectors import Prices
from kareus.plans.series import HourlySeries, Unit

WRONG = {
    "[1]": "expected keys and values, got [1].",
    "{": "not valid JSON",
    '{"power_cap_w": -5}': "power_cap_w=-5.0: must be greater than 0.",
    '{"power_cap_w": "much"}': "power_cap_w: expected float, got 'much'.",
    '{"power_cap": 5}': "power_cap: unknown key; perhaps you meant power_cap_w.",
    '{"straggler": {"slowdown": 0.5}}': "slowdown=0.5: must be from 1 to 100 (times the planned time).",
    '{"straggler": {"slowdown": 1.2, "pipeline": -1}}': "pipeline=-1: must be 0 or more.",
    '{"power_cap_w": NaN}': "",
    '__import__("os").system("touch evaluated")': "not valid JSON",
}


def test_conditions_are_read_from_json(tmp_path):
    path = tmp_path / "conditions.json"
    path.write_text('{"power_cap_w": 8000, "straggler": {"slowdown": 1.15, "pipeline": 2}}')
    assert read_conditions(path, 4) == Conditions(
        power_cap_w=8000.0, straggler=ToldStraggler(slowdown=1.15, pipeline=2)
    )


@pytest.mark.parametrize("text", WRONG)
def test_wrong_conditions_are_refused_in_one_line(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "conditions.json"
    path.write_text(text)
    with pytest.raises((ConfigError, ArtifactError)) as refused:
        read_conditions(path, 4)
    assert str(refused.value).startswith(f"{path}: ")
    assert WRONG[text] in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "evaluated").exists()


def test_a_file_that_becomes_wrong_changes_nothing(tmp_path, caplog):
    path = tmp_path / "conditions.json"
    watched = WatchedConditions(path, 4)
    assert watched.now() == Conditions()
    write(path, '{"power_cap_w": 8000}', 1)
    assert watched.now() == Conditions(power_cap_w=8000.0)
    write(path, '{"power_cap_w": 80', 2)
    assert [watched.now() for _ in range(3)] == [Conditions(power_cap_w=8000.0)] * 3
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{path}: ")
    write(path, "{}", 3)
    assert watched.now() == Conditions()
    path.unlink()
    assert watched.now() == Conditions()


def test_a_file_that_is_wrong_at_the_start_is_refused(tmp_path):
    path = tmp_path / "conditions.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        WatchedConditions(path, 4)


def test_prices_go_by_the_hour_and_the_last_one_stays():
    now_s = [0.0]
    hours = PricedHours(HourlySeries(Unit.PRICE, (0.1, -0.2, 0.3)), 2.0, 1000.0, lambda: now_s[0])
    seen = []
    for hour in (-1.0, 0.5, 1.0, 2.9, 3.0, 400.0):
        now_s[0] = 1000.0 + 3600.0 * hour
        seen.append(hours.now())
    assert seen == [Prices(price, 2.0) for price in (0.1, 0.1, 0.0, 0.3, 0.3, 0.3)]


@pytest.mark.parametrize(
    ("started", "priced"),
    [
        ("2025-01-01T02:30Z", 0.03),
        ("2024-12-31T23:00Z", 0.01),
        ("2025-01-01T03:00Z", 0.01),
        ("2026-06-01T00:00Z", 0.01),
    ],
)
def test_a_job_amid_the_dates_of_a_file_goes_by_them(tmp_path, caplog, started, priced):
    path = tmp_path / "prices.csv"
    rows = "".join(f"2025-01-01 0{hour}:00,{10 * (hour + 1)}\n" for hour in range(3))
    path.write_text("MTU (UTC),Day-ahead Price [EUR/MWh]\n" + rows)
    now_s = datetime.fromisoformat(started).timestamp()
    with caplog.at_level("INFO"):
        hours = read_priced_hours(path, 2.0, None, lambda: now_s)
    assert hours.now() == Prices(pytest.approx(priced), 2.0)
    assert "price of 0.01 to 0.03 EUR/kWh, 3 hours from" in caplog.text
    assert read_priced_hours(path, 2.0, now_s - 3600, lambda: now_s).now() == Prices(pytest.approx(0.02), 2.0)


def test_carbon_is_no_price():
    with pytest.raises(ConfigError, match="prices: a series of carbon_g_per_kwh; give one of prices"):
        PricedHours(HourlySeries(Unit.CARBON, (400.0,)), 2.0, 0.0)


def write(path, text, second):
    path.write_text(text)
    os.utime(path, (second, second))


def test_a_straggler_that_the_job_has_not_is_refused(tmp_path):
    path = tmp_path / "conditions.json"
    path.write_text('{"straggler": {"slowdown": 1.15, "pipeline": 4}}')
    with pytest.raises(ConfigError, match=r"straggler\.pipeline=4: this job has 4 pipelines, counted from 0"):
        read_conditions(path, 4)


def test_a_file_replaced_within_a_second_is_read_again(tmp_path):
    """Some network disks keep whole seconds."""
    path, new = tmp_path / "conditions.json", tmp_path / "conditions.new"
    path.write_text('{"power_cap_w": 8000}')
    watched = WatchedConditions(path, 4)
    new.write_text('{"power_cap_w": 7000}')
    os.utime(new, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    new.rename(path)
    assert watched.now().power_cap_w == 7000.0
