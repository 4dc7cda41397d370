"""Conditions of a running job from outside: a power cap, a straggler that it cannot see, and the price of energy.

Both come from plain files, which are read again when they change. A file that cannot be used does not stop a training:
what it said before stays in force, and one line in the log says what is wrong.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import from_plain, parse_json
from kareus.errors import ConfigError, KareusError
from kareus.plans.grid_files import read_series
from kareus.plans.selectors import MOST_PRICE, Prices
from kareus.plans.series import HourlySeries, Unit
from kareus.plans.units import SECONDS_PER_HOUR

MOST_W = 1e12
"""Largest power cap, of all GPUs."""
MOST_SLOWDOWN = 100.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldStraggler:
    """A pipeline that somebody says is slow."""

    slowdown: float
    """Its iteration time over that of the plan that it follows, 1 or more."""
    pipeline: int | None = None
    """Its number, from 0; None where it is none of this job's, and all of these wait for it."""

    def __post_init__(self) -> None:
        check_within("slowdown", self.slowdown, 1.0, MOST_SLOWDOWN, "times the planned time")
        if self.pipeline is not None and self.pipeline < 0:
            raise ConfigError(f"pipeline={self.pipeline}: must be 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Content of the file of conditions."""

    power_cap_w: float | None = None
    """Mean power that all GPUs of the job may draw."""
    straggler: ToldStraggler | None = None

    def __post_init__(self) -> None:
        if self.power_cap_w is not None:
            within(self, 1e-3, MOST_W, "W of all GPUs", "power_cap_w")


def read_conditions(path: Path, pipelines: int) -> Conditions:
    """Read a file of conditions: JSON such as `{"power_cap_w": 8000, "straggler": {"slowdown": 1.15, "pipeline": 2}}`.

    Args:
        path: of the file.
        pipelines: of the job.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it is not JSON, has an unknown key, a number out of range, or a pipeline that the job has not.
    """
    try:
        conditions = from_plain(Conditions, parse_json(read_text(path)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    slow = conditions.straggler.pipeline if conditions.straggler is not None else None
    if slow is not None and slow >= pipelines:
        raise ConfigError(
            f"{path}: straggler.pipeline={slow}: this job has {pipelines} pipelines, counted from 0; leave the key out "
            "if the straggler is none of these."
        )
    return conditions


class WatchedConditions:
    """The file of conditions, read whenever it changes; without a file there are none."""

    def __init__(self, path: Path, pipelines: int) -> None:
        """Watch `path`, for a job of so many pipelines.

        Raises:
            KareusError: there is a file that cannot be used.
        """
        self._path = path
        self._pipelines = pipelines
        self._seen: tuple[int, int, int] | None = None
        self._conditions = Conditions()
        if (seen := self._stamp()) is not None:
            self._conditions, self._seen = read_conditions(path, pipelines), seen

    def now(self) -> Conditions:
        """Return what the file says; if it cannot be used, what it said before."""
        stamp = self._stamp()
        if stamp == self._seen:
            return self._conditions
        self._seen = stamp
        try:
            self._conditions = Conditions() if stamp is None else read_conditions(self._path, self._pipelines)
        except KareusError as error:
            logger.warning("%s Nothing changes until the file can be used.", error)
        return self._conditions

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return which file it is, its size and when it was changed, to the second on some disks; None without one."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


class PricedHours:
    """Prices by the hour; the last one stays in force."""

    def __init__(
        self,
        series: HourlySeries,
        per_gpu_hour: float,
        began_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Price energy by `series`, and each hour of a GPU at `per_gpu_hour`.

        Args:
            series: of prices of a kilowatt-hour.
            per_gpu_hour: price of a GPU for an hour, in the same currency.
            began_s: when hour 0 began, seconds since the epoch.
            now_s: gives the time now.

        Raises:
            ConfigError: the series is of carbon, or the price is out of range.
        """
        check_within("price_per_gpu_hour", per_gpu_hour, 0.0, MOST_PRICE, "a GPU and hour")
        if series.unit is not Unit.PRICE:
            raise ConfigError(f"prices: a series of {series.unit}; give one of prices.")
        self._series = series
        self._per_gpu_hour = per_gpu_hour
        self._began_s = began_s
        self._now_s = now_s

    def now(self) -> Prices:
        """Return the prices of this hour; energy of a negative price counts as free, since no plan can use more."""
        hour = int((self._now_s() - self._began_s) // SECONDS_PER_HOUR)
        values = self._series.values
        return Prices(per_kwh=max(values[min(max(hour, 0), len(values) - 1)], 0.0), per_gpu_hour=self._per_gpu_hour)


def read_priced_hours(
    path: Path, per_gpu_hour: float, began_s: float | None, now_s: Callable[[], float] = time.time
) -> PricedHours:
    """Read a file of prices, as fleets do.

    Args:
        path: of the file.
        per_gpu_hour: price of a GPU for an hour, in its currency.
        began_s: when hour 0 began; None: as the file says if that spans the present, else now.
        now_s: gives the time now.

    Raises:
        KareusError: the file cannot be used.
    """
    series = read_series(path)
    if began_s is None:
        began_s, named_s = now_s(), series.began_s
        if named_s is not None and named_s <= began_s < named_s + len(series.values) * SECONDS_PER_HOUR:
            began_s = named_s
    at = datetime.fromtimestamp(began_s, UTC)
    logger.info("%s; hour 0 begins %s UTC here", series.understood, f"{at:%Y-%m-%d %H:%M}")
    return PricedHours(series, per_gpu_hour, began_s, now_s)
