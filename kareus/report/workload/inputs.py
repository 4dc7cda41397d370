"""Inputs of a report: every table and plan of one workload, read, checked and of one testbed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance, TestbedIdentity, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_provenance, read_table
from kareus.errors import ArtifactError
from kareus.frontiers.tables import MICROBATCH
from kareus.gpu_model.gpu import Uncertainty
from kareus.gpu_model.trust import known_uncertainty
from kareus.pipeline.compare import THROUGHPUT_BASELINE
from kareus.pipeline.spread import Spread
from kareus.pipeline.tables import ITERATION
from kareus.plans.build import select_plan
from kareus.plans.document import Plan
from kareus.plans.file import read_plan
from kareus.plans.frontiers import Frontiers
from kareus.report.workload.savings import PlanErrors, Savings, compared_savings, plan_errors
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.training.comparison import FASTEST, RunComparison, compare_runs
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload
from kareus.workload.naming import name_at_limit
from kareus.workload.slices import PlanSlice, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Files to report on."""

    config: Path
    """Slice of `plan`: the workload."""
    iteration: Path
    microbatch: Path
    candidates: Sequence[Path]
    """One per partition, each in a folder that has the partition's name."""
    rounds: Sequence[Path]
    """One per partition, in the folder of its candidates."""
    proposals: Sequence[Path]
    """One per partition, in the folder of its candidates."""
    plans: Sequence[Path]
    runs: Sequence[Path] = ()
    """Iterations that were run; none, or one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSearch:
    """One partition's search."""

    partition: str
    candidates: pl.DataFrame
    rounds: pl.DataFrame
    proposals: pl.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One input and where it comes from, as the page lists it."""

    name: str
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInputs:
    """Everything that the summary and the page show."""

    workload: str
    folder: str
    """Folder of the workload, as its path was given. Commands on the page name it."""
    configured: Workload
    """The whole configuration of the workload."""
    testbed: TestbedIdentity
    provenance: Provenance
    """Provenance of the report: its hash identifies the configurations of all inputs."""
    sources: tuple[Source, ...]
    iteration: pl.DataFrame
    microbatch: pl.DataFrame
    searches: tuple[PartitionSearch, ...]
    plans: dict[str, Plan]
    """Chosen plans by the names of their files, without `.json`."""
    baseline: Plan
    """The fastest plan of `sequential`."""
    usual: Plan
    """What the head of the page compares with: `baseline`, or at a power limit that of the GPU's own."""
    iterations: pl.DataFrame
    """Iterations that were run: a table `ITERATIONS`, without rows if nothing was run."""
    runs: tuple[RunComparison, ...]
    """Comparisons of the methods that were run; none if nothing was run."""
    savings: tuple[Savings, ...]
    """Savings of every method, in the order of the table `iteration`."""
    plan_errors: dict[str, PlanErrors]
    """Standard errors of what the chosen plans save, by the names of the plans' files."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.baseline.gpus

    @property
    def uncertainty(self) -> Uncertainty | None:
        """Errors of the GPU model; None where they are not known, or nothing was simulated."""
        return known_uncertainty(self.configured.gpu) if self.testbed.kind == "simulated" else None

    @property
    def blocking_power_w(self) -> float:
        """Power that the effective energies leave out: (E - E_effective) / t, the same in every row."""
        row = self.microbatch.row(0, named=True)
        return float((row["energy_j"] - row["effective_energy_j"]) / row["time_s"])


def load(workload: str, paths: Paths) -> ReportInputs:
    """Read all inputs of a report, with the baseline at the GPU's own power limit where the folder has one.

    Raises:
        ArtifactError: a file that is missing, corrupt or of another workload, or inputs that were
            measured on more than one testbed.
    """
    plans = {path.name.removesuffix(".json"): _plan(path, workload) for path in paths.plans}
    sources = _sources(paths)
    parents = {source.name: source.provenance for source in sources}
    tables = derived(content_hash([p.config_hash for p in parents.values()]), parents)
    if tables.testbed is None:
        raise ArtifactError(f"{paths.iteration}: says no testbed; rerun the stage that makes it.")
    for path, plan in zip(paths.plans, plans.values(), strict=True):
        if plan.testbed != tables.testbed:
            raise ArtifactError(
                f"{path}: planned from {plan.testbed.label} ({plan.testbed.detail}), the tables are from "
                f"{tables.testbed.label} ({tables.testbed.detail}). Rerun all on one testbed."
            )
    iteration, microbatch = read_table(paths.iteration, ITERATION), read_table(paths.microbatch, MICROBATCH)
    iterations = pl.concat([ITERATIONS.frame([]), *(read_table(path, ITERATIONS) for path in paths.runs)])
    configured, folder = load_slice(paths.config, PlanSlice).workload, WorkloadFolder(paths.config.parent.parent)
    frontiers = Frontiers(iteration=iteration, microbatch=microbatch, testbed=tables.testbed)
    spread = Spread(cut(configured, "pipeline"), microbatch)
    savings = tuple(compared_savings(iteration, spread))  # refuses an iteration frontier without the baselines
    baseline = select_plan(configured, frontiers, FASTEST, THROUGHPUT_BASELINE, name=workload)
    return ReportInputs(
        workload=workload,
        folder=str(folder.path),
        configured=configured,
        testbed=tables.testbed,
        provenance=tables.stamped(),
        sources=sources,
        iteration=iteration,
        microbatch=microbatch,
        searches=_searches(paths),
        plans=plans,
        baseline=baseline,
        usual=_at_full_power(folder.full_power, workload, configured, baseline),
        iterations=iterations,
        runs=tuple(compare_runs(iterations, iteration)) if paths.runs else (),
        savings=savings,
        plan_errors={name: plan_errors(plan, microbatch, spread) for name, plan in plans.items()},
    )


def _at_full_power(path: Path, workload: str, configured: Workload, baseline: Plan) -> Plan:
    """Return the plan of the trainer's own execution at the GPU's own power limit; `baseline` where there is none."""
    if not path.is_file():
        return baseline
    usual, limit_w = read_plan(path), configured.gpu.power_limit_w
    if name_at_limit(usual.workload, limit_w) != workload or usual.testbed.label != baseline.testbed.label:
        raise ArtifactError(
            f"{path}: a plan for {usual.workload} [{usual.testbed.label}], expected that which at {limit_w:g} W is "
            f"{workload} [{baseline.testbed.label}]; plan again with `kareus plan`, or delete the file."
        )
    return usual


def _sources(paths: Paths) -> tuple[Source, ...]:
    tables: list[tuple[str, Path, TableSchema]] = [
        ("iteration", paths.iteration, ITERATION),
        ("microbatch", paths.microbatch, MICROBATCH),
        *((f"candidates of {p.parent.name}", p, CANDIDATES) for p in paths.candidates),
        *((f"rounds of {p.parent.name}", p, ROUNDS) for p in paths.rounds),
        *((f"proposals of {p.parent.name}", p, PROPOSALS) for p in paths.proposals),
        *((f"iterations of {p.parent.name}", p, ITERATIONS) for p in paths.runs),
    ]
    return tuple(Source(name=name, provenance=read_provenance(path, schema)) for name, path, schema in tables)


def _searches(paths: Paths) -> tuple[PartitionSearch, ...]:
    names = [path.parent.name for path in paths.candidates]
    for what, given in (("rounds", paths.rounds), ("proposals", paths.proposals)):
        if sorted(names) != sorted(path.parent.name for path in given):
            raise ArtifactError(
                f"candidates of {', '.join(sorted(names))} but {what} of "
                f"{', '.join(sorted(path.parent.name for path in given))}; "
                "give one file of each, in a folder named after its partition."
            )
    rounds, proposals = ({path.parent.name: path for path in given} for given in (paths.rounds, paths.proposals))
    return tuple(
        PartitionSearch(
            partition=path.parent.name,
            candidates=read_table(path, CANDIDATES),
            rounds=read_table(rounds[path.parent.name], ROUNDS),
            proposals=read_table(proposals[path.parent.name], PROPOSALS),
        )
        for path in paths.candidates
    )


def _plan(path: Path, workload: str) -> Plan:
    plan = read_plan(path)
    if plan.workload != workload:
        raise ArtifactError(f"{path}: a plan for {plan.workload}, expected {workload}; check the path.")
    return plan
