"""The frontier of a workload as `kareus.frontier` returns it: points to look at, plans to choose, a folder to save."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.outputs import check_not_results
from kareus.artifacts.shown import Shown
from kareus.device.actuators import ActuatorKind, parse_actuator
from kareus.errors import ConfigError
from kareus.workload.config import Workload
from kareus.workload.naming import plain_name

if TYPE_CHECKING:
    import polars as pl

    from kareus.plans.document import Plan
    from kareus.plans.frontiers import Frontiers
    from kareus.plans.planning import PlannedTables


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkloadFrontier(Shown):
    """Time and energy of an iteration by method, and every plan behind them.

    Example:
        >>> import kareus
        >>> (workload,) = kareus.resolve(["num_microbatches=2"])
        >>> frontier = kareus.frontier(workload)
        >>> points = frontier.points.filter(method="kareus")
        >>> points["time_s"].is_sorted(), points["energy_j"].is_sorted(descending=True)
        (True, True)
    """

    workload: Workload
    planned: "PlannedTables | Frontiers"
    """Tables of all stages, or the frontiers alone where instructions were measured in place."""

    @property
    def name(self) -> str:
        """Readable name of the workload, as in results folders."""
        return plain_name(self.workload)

    @property
    def frontiers(self) -> "Frontiers":
        """What plans are selected from."""
        from kareus.plans.frontiers import Frontiers  # noqa: PLC0415 - polars takes long to import

        return self.planned if isinstance(self.planned, Frontiers) else self.planned.frontiers

    @property
    def points(self) -> "pl.DataFrame":
        """Table `iteration`: a row for each plan, by method and rising time; times in s, energies in J of all GPUs."""
        return self.frontiers.iteration

    @property
    def methods(self) -> list[str]:
        """Methods that were planned, such as `sequential` and `kareus`."""
        return self.frontiers.methods

    def plan(self, select: str = "fastest", method: str = "kareus", actuator: str = "clocks") -> "Plan":
        """Return the plan that a selector asks for; a further one takes no further planning but for power limits.

        Args:
            select: selector, such as `fastest`, `deadline=4.6s`, `energy=20kJ` or `min-energy`.
            method: method whose frontier to select from, or the nearest one at default clocks where none is locked.
            actuator: what may be set: `clocks`, `power` (the limit that suits the selector) or `power=651W`,
                `profile=max-q+llm-training`, `none`. A plan at a power limit is of the workload at this limit.

        Raises:
            ConfigError: the selector, the method or the actuator is not known, no plan keeps the limit, or the method
                does not plan this workload.

        Example:
            >>> import kareus
            >>> frontier = kareus.frontier(*kareus.resolve(["num_microbatches=2"]))
            >>> fastest, frugal = frontier.plan(), frontier.plan("min-energy")
            >>> fastest.prediction.time_s < frugal.prediction.time_s
            True
        """
        from kareus.plans.actuated import checked_at, plan_for, plans_at_limits  # noqa: PLC0415 - as above
        from kareus.plans.frontiers import Frontiers  # noqa: PLC0415 - as above
        from kareus.plans.planning import plan_tables  # noqa: PLC0415 - as above

        wanted = parse_actuator(actuator)
        if wanted.kind is not ActuatorKind.POWER:
            return plan_for(wanted, self.workload, self.frontiers, select, method, self.name)
        if isinstance(self.planned, Frontiers):
            raise ConfigError(f"actuator={actuator}: what was measured is of one power limit; plan without measured.")
        if wanted.limit_w:
            checked_at(self.workload, wanted.limit_w)
        ((plan,),) = (
            limited.plans
            for limited in plans_at_limits(
                wanted, self.workload, self.frontiers, [select], method, self.name, plan_tables
            )
        )
        return plan

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write a folder as `kareus plan --output` writes it, without plans and page, and return where it is.

        `kareus select`, `check-plan`, `export` and `train` take what is returned; plans belong into its `plan/`.

        Args:
            folder: below which the folder of the workload is made, by the workload's name.

        Raises:
            ConfigError: the folder belongs to the workflow.

        Example:
            >>> import kareus
            >>> frontier = kareus.frontier(*kareus.resolve(["num_microbatches=2"]))
            >>> folder = frontier.save("looked")
            >>> frontier.plan().save(folder / "plan/fastest.json")
        """
        from kareus.plans.planned_folder import write_tables  # noqa: PLC0415 - as above

        check_not_results(Path(folder))
        place = WorkloadFolder(Path(folder) / self.name)
        write_tables(place, self.workload, self.planned)
        return place.path
