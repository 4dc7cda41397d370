"""Functions of the package for use from Python. Each imports what it needs when it is called.

`import kareus` offers them as `kareus.resolve` and so on; nothing in the package imports this module.
"""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from kareus.artifacts.shipped import config_folder
from kareus.artifacts.shown import Drawer, show_with
from kareus.errors import ConfigError

if TYPE_CHECKING:
    from kareus.adviser.answers import Advice
    from kareus.plans.document import Plan
    from kareus.plans.workload_frontier import WorkloadFrontier
    from kareus.prediction.rows import MeasuredIteration
    from kareus.prediction.workload_prediction import Prediction
    from kareus.workload.config import Workload

__all__ = ["advise", "frontier", "load_plan", "measured_iterations", "plan", "predict", "resolve"]


def _notebook() -> Drawer:
    from kareus.report import notebook  # noqa: PLC0415 - Vega-Altair takes long to import

    return notebook


show_with(_notebook)


def resolve(overrides: Sequence[str] = (), config_dir: str | PathLike[str] | None = None) -> "list[Workload]":
    """Return the workloads that Hydra overrides describe, in the order of the sweep; nothing is written.

    Args:
        overrides: as `kareus resolve` takes them, such as `["parallelism=tp8,cp2tp4", "microbatch_size=8"]`.
        config_dir: folder of the Hydra groups; None: `config/` of the current folder, else what comes with Kareus.

    Raises:
        ConfigError: an override or a file of the configuration cannot be used.
        RefusedWorkloadError: none of the workloads can run. Of several, those that cannot are left out.

    Example:
        >>> import kareus
        >>> for workload in kareus.resolve(["parallelism=tp8,cp2tp4", "microbatch_size=8"]):
        ...     print(workload.parallelism.tp, workload.parallelism.cp, workload.parallelism.gpus)
        8 1 16
        4 2 16
    """
    from kareus.workload.resolve import resolve_accepted  # noqa: PLC0415 - Hydra takes long to import

    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r}: must be a list, such as [{overrides!r}].")

    return list(resolve_accepted(overrides, _folder(config_dir)).values())


def predict(workload: "Workload", method: str = "sequential", frequency_mhz: int | None = None) -> "Prediction":
    """Predict the time and energy of one iteration from the GPU model alone, without search or measurement.

    Args:
        workload: one of those that `resolve` returns.
        method: `sequential` or `nanobatching`.
        frequency_mhz: clock of all GPUs in MHz; None is their maximum.

    Raises:
        ConfigError: the method or the clock cannot be predicted, or it is not one workload.

    Example:
        >>> import kareus
        >>> (workload,) = kareus.resolve(["gpu=h200", "precision=fp8"])
        >>> predicted = kareus.predict(workload)
        >>> print(f"an iteration: {predicted.time_s:.2f} s, {predicted.energy_j / 1e3:.1f} kJ, MFU {predicted.mfu:.0%}")
        an iteration: ... s, ... kJ, MFU ...%
        >>> kareus.predict(workload, frequency_mhz=1200).time_s > predicted.time_s
        True
    """
    from kareus.prediction import workload_prediction  # noqa: PLC0415 - NumPy and Polars take long to import

    _check_workload(workload)
    return workload_prediction.predict(workload, method, frequency_mhz)


def measured_iterations(
    path: str | PathLike[str], overrides: Sequence[str] = (), config_dir: str | PathLike[str] | None = None
) -> "Iterator[tuple[Workload, MeasuredIteration]]":
    """Yield what every row of a file with measured iterations ran, as a workload, and the row.

    Args:
        path: CSV, or .csv.gz, with the columns of `kareus/evidence/data/training_iterations.csv.gz`.
        overrides: Hydra overrides of every workload, such as numbers of its GPU.
        config_dir: folder of the Hydra groups; None: as in `resolve`.

    Raises:
        ArtifactError: the file cannot be read, or a value of a row cannot be used.
        ConfigError: an override cannot be used, or a row names no GPU that there is.
        RefusedWorkloadError: a row's layout does not divide over its GPUs.

    Example:
        >>> import kareus
        >>> for workload, row in kareus.measured_iterations("iterations.csv"):
        ...     error = kareus.predict(workload).time_s / row.iteration_time_s - 1
        ...     print(row.model, row.gpus, f"{100 * error:+.0f} %")
        LLAMA3.1_8B 8 ... %
    """
    from kareus.prediction.measured import measured_iterations as measured  # noqa: PLC0415 - as above

    return measured(Path(path), overrides, _folder(config_dir))


def plan(
    workload: "Workload",
    select: str = "fastest",
    method: str = "kareus",
    measured: str | PathLike[str] | None = None,
    actuator: str = "clocks",
) -> "Plan":
    """Plan a workload on the simulated testbed, all stages in this process, and return the plan that `select` asks for.

    The data are those that the workflow writes for the same workload and seed. Nothing is written. With `measured`
    the iteration is planned from what a job of the user's was measured to take.

    Args:
        workload: one of those that `resolve` returns.
        select: selector, such as `fastest`, `deadline=4.6s`, `energy=20kJ` or `min-energy`.
        method: method whose frontier to select from.
        measured: folder that an adapter profiled a job into; its workload may differ in the number of microbatches.
        actuator: what the machine lets be set: `clocks`, `power` or `power=651W`, `profile=max-q+llm-training`, `none`.

    Raises:
        ConfigError: the selector, the method or the actuator is not known, no plan keeps the limit, the method does not
            plan this workload, the workload's testbed is not simulated, or it is not one workload.
        ArtifactError: `measured` has no measurements of this workload.

    Example:
        >>> import kareus
        >>> (workload,) = kareus.resolve(["num_microbatches=2"])
        >>> plan = kareus.plan(workload, select="deadline=2s")
        >>> plan.prediction.time_s <= 2
        True
    """
    from kareus.device.actuators import parse_actuator  # noqa: PLC0415
    from kareus.pipeline.methods import check_method  # noqa: PLC0415 - as above
    from kareus.plans.selectors import parse_selector  # noqa: PLC0415

    _check_workload(workload)
    parse_selector(select)  # before planning, which takes seconds
    check_method(method)
    parse_actuator(actuator)
    return frontier(workload, measured).plan(select, method, actuator)


def frontier(workload: "Workload", measured: str | PathLike[str] | None = None) -> "WorkloadFrontier":
    """Plan a workload as `plan` does, and return the frontiers of all methods: points, plans, and a folder to save.

    Args:
        workload: one of those that `resolve` returns.
        measured: folder that an adapter profiled a job into; its workload may differ in the number of microbatches.

    Raises:
        ConfigError: the workload's testbed is not simulated, or it is not one workload.
        ArtifactError: `measured` has no measurements of this workload.

    Example:
        >>> import kareus
        >>> frontier = kareus.frontier(*kareus.resolve(["num_microbatches=2"]))
        >>> frontier.methods[:5]
        ['sequential', 'sequential+perseus', 'nanobatching', 'nanobatching+perseus', 'kareus']
        >>> for select in ("fastest", "straggler=1.1x"):
        ...     plan = frontier.plan(select)
        ...     print(select, f"{plan.prediction.time_s:.3f} s, {plan.prediction.energy_j / 1e3:.2f} kJ")
        fastest ... s, ... kJ
        straggler=1.1x ... s, ... kJ
    """
    from kareus.artifacts.layout import WorkloadFolder  # noqa: PLC0415 - as above
    from kareus.plans.measured import plan_measured  # noqa: PLC0415
    from kareus.plans.planning import plan_tables  # noqa: PLC0415
    from kareus.plans.workload_frontier import WorkloadFrontier  # noqa: PLC0415

    _check_workload(workload)
    if measured is None:
        return WorkloadFrontier(workload=workload, planned=plan_tables(workload))
    return WorkloadFrontier(workload=workload, planned=plan_measured(WorkloadFolder(Path(measured)), workload))


def advise(
    overrides: Sequence[str],
    *,
    gpus: int | str | Sequence[int],
    global_batch: int,
    sequence_length: int | None = None,
    least: str | None = None,
    tokens: float | None = None,
    deadline: str | None = None,
    max_power: str | None = None,
    max_node_power: str | None = None,
    max_gpu_power: str | None = None,
    price: str | None = None,
    gpu_price: str | None = None,
    carbon: str | None = None,
    measured: str | PathLike[str] | None = None,
    trainer: str | None = None,
    config_dir: str | PathLike[str] | None = None,
) -> "Advice":
    """Return which layout and which plan to take for a model on so many GPUs; nothing is measured or written.

    Args:
        overrides: as `kareus advise` takes them: `["model=llama3.1-8b", "gpu=h200", "tp=1,2", "recompute=none"]`.
        gpus: of the whole job; several numbers, or a range such as `16..256`, are compared.
        global_batch: sequences of an iteration.
        sequence_length: tokens of a sequence; None as configured.
        least: what the plan has the least of: `time`, `energy`, `cost` or `edp`; None: cost with prices, energy with
            a deadline, else time.
        tokens: of the whole training.
        deadline: time for it, such as `30d`.
        max_power: cap on the mean power of all GPUs, such as `35kW`; so for those of a node and for one.
        max_node_power: see above.
        max_gpu_power: power limit of every GPU.
        price: of energy, such as `0.12perkWh`, or a CSV file of a grid.
        gpu_price: of a GPU, such as `2.5perGPUh`.
        carbon: of energy, such as `400gperkWh`, or a CSV file of a grid.
        measured: CSV file of layouts with the times that they were measured to take; the software's numbers are fitted
            to them first.
        trainer: what runs the plan, such as `kareus` or `megatron-core`; layouts are ranked by what it can run of
            theirs. None: that of the software.
        config_dir: folder of the Hydra groups; None: as in `resolve`.

    Raises:
        ConfigError: a value cannot be used, or no plan keeps the limits; with what is nearest.
        RefusedWorkloadError: no layout can run.

    Example:
        >>> import kareus
        >>> asked = ["model=qwen3-1.7b", "gpu=h200", "tp=1", "microbatch_size=4", "recompute=none"]
        >>> advice = kareus.advise(asked, gpus=4, global_batch=16, price="0.12perkWh")
        >>> workloads = kareus.resolve(advice.overrides)
        >>> plan = kareus.plan(*workloads, select=advice.selector, method=advice.method)
        >>> plan.gpus, f"{plan.prediction.energy_j:.0f} J"
        (4, '... J')
    """
    from kareus.adviser.advice import answer  # noqa: PLC0415 - as above
    from kareus.adviser.goals import goals_of  # noqa: PLC0415
    from kareus.adviser.measured import with_measured  # noqa: PLC0415
    from kareus.adviser.question import ask  # noqa: PLC0415

    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r}: must be a list, such as [{overrides!r}].")
    goals = goals_of(
        least=least,
        tokens=tokens,
        deadline=deadline,
        max_power=max_power,
        max_node_power=max_node_power,
        max_gpu_power=max_gpu_power,
        price_of_energy=price,
        gpu_price=gpu_price,
        carbon=carbon,
    )
    question = ask(
        overrides,
        gpus=gpus,
        global_batch=global_batch,
        sequence_length=sequence_length,
        goals=goals,
        config_dir=_folder(config_dir),
        trainer=trainer,
    )
    return answer(question if measured is None else with_measured(question, Path(measured)))


def load_plan(path: str | PathLike[str]) -> "Plan":
    """Read a plan file.

    Raises:
        ArtifactError: it is missing, damaged, edited since it was written, or of another version.

    Example:
        >>> import kareus
        >>> kareus.plan(*kareus.resolve(["num_microbatches=2"]), select="min-energy").save("min-energy.json")
        >>> plan = kareus.load_plan("min-energy.json")
        >>> plan.selector, plan.method
        ('min-energy', 'kareus')
    """
    from kareus.plans.file import read_plan  # noqa: PLC0415 - as above

    return read_plan(Path(path))


def _folder(config_dir: str | PathLike[str] | None) -> Path:
    """Folder of the Hydra groups."""
    return config_folder() if config_dir is None else Path(config_dir)


def _check_workload(workload: object) -> None:
    """Check that the argument is one workload: `resolve` returns a list of them."""
    from kareus.workload.config import Workload  # noqa: PLC0415 - as above

    if not isinstance(workload, Workload):
        raise ConfigError(
            f"workload: is a {type(workload).__name__}; must be one Workload of the list that kareus.resolve returns."
        )
