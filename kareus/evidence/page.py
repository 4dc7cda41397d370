"""The page of `kareus validate`: one file that needs nothing but a browser."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.errors import printable_lines
from kareus.evidence import shipped_files
from kareus.evidence.frontiers.answer import FrontierAnswer, ReductionAnswer
from kareus.evidence.iterations import IterationAnswer, fit_words
from kareus.evidence.kernels.answer import KernelAnswer
from kareus.evidence.memory import MemoryAnswer
from kareus.evidence.node_power import PowerAnswer
from kareus.evidence.page_errors import ENERGY, KINDS, MEMORY, POWER, TIME, GroupErrors, errors_of, worst_parts
from kareus.evidence.page_figures import comparison_figure, errors_figure
from kareus.evidence.page_sheets import (
    DISTRUST,
    PEERS,
    distrust_sheet,
    error_sheet,
    peer_sheet,
    trust_sheet,
    worst_sheet,
)
from kareus.evidence.validation import Validation
from kareus.gpu_model.trust import MODEL_VERSION, trust
from kareus.report.page import Page, Section

TITLE = "Predictions against measurements"
MARK = f"<title>{TITLE} ("
"""What a page of this kind begins with, among its first characters."""


def is_page(path: Path) -> bool:
    """Return whether a file is such a page, which a new one may replace."""
    try:
        with path.open(encoding="utf-8") as file:
            return MARK in file.read(1000)
    except (OSError, UnicodeDecodeError):
        return False


def fidelity_page(validations: Sequence[Validation], overrides: Sequence[str]) -> Page:
    """Return the page about what was compared; errors left out are those of GPUs as configured, without overrides."""
    errors = errors_of(validations)
    if overrides:  # of other numbers nothing was left out
        errors = [replace(group, left_out_pct=None) for group in errors]
    gpus = ", ".join(sorted({name for each in validations for name in each.answer.gpus}))
    testbed = TestbedIdentity(kind="simulated", gpu=gpus, detail=f"GPU model, version {MODEL_VERSION}")
    names = {validation.name: f"compared_{number}" for number, validation in enumerate(validations)}
    kinds = list(dict.fromkeys(group.kind for group in errors))
    spread = [
        errors_figure(f"errors_{quantity}", f"Errors of {quantity}", quantity_errors, kinds)
        for quantity in (TIME, POWER)
        if (quantity_errors := [group for group in errors if group.quantity == quantity])
    ]
    plain = [validation.answer.plain for validation in validations]
    return Page(
        title=TITLE,
        name="kareus validate",
        testbeds=(testbed,),
        provenance=Provenance(config_hash=content_hash(plain), testbed=testbed).stamped(),
        sections=tuple(_sections(validations, errors, [figure.name for figure in spread], names)),
        figures=(*spread, *(comparison_figure(validation, names[validation.name]) for validation in validations)),
        tables=(),
        summary=printable_lines("\n".join(line for each in validations for line in each.lines)),
        template="headline.html",
        extra={"headline": _headline(validations, overrides)},
    )


def _sections(
    validations: Sequence[Validation], errors: Sequence[GroupErrors], spread: Sequence[str], names: dict[str, str]
) -> list[Section]:
    quantities = (TIME, POWER, ENERGY, MEMORY)
    sheets = [
        error_sheet(quantity, quantity_errors) for quantity in quantities if (quantity_errors := _of(errors, quantity))
    ]
    return [
        Section(
            title="All errors",
            text="How far predictions of the GPU model are off, for all that was measured by others.",
            figures=tuple(spread),
            sheets=tuple(sheets),
        ),
        *(
            Section(title=validation.answer.title, text=_words(validation), figures=(names[validation.name],))
            for validation in validations
        ),
        Section(title="What others publish", sheets=(peer_sheet(PEERS),)),
        Section(
            title="What not to trust",
            sheets=(trust_sheet(_trust(validations)), distrust_sheet(DISTRUST), worst_sheet(worst_parts(validations))),
        ),
    ]


def _trust(validations: Sequence[Validation]) -> dict[str, str]:
    """What is known of the errors of each GPU, by its option or name."""
    words: dict[str, str] = {}
    for validation in validations:
        if isinstance(validation.answer, KernelAnswer):
            words |= validation.answer.trust
        elif isinstance(validation.answer, FrontierAnswer | ReductionAnswer):
            words[validation.answer.gpu.name] = trust(validation.answer.gpu)
    return dict(sorted(words.items()))


def _of(errors: Sequence[GroupErrors], quantity: str) -> list[GroupErrors]:
    return [group for group in errors if group.quantity == quantity]


def _words(validation: Validation) -> str:
    """What a section says about its file."""
    answer = validation.answer
    match answer:
        case KernelAnswer():
            rows, refused = len(answer.kernels), len(answer.refused)
        case IterationAnswer() | MemoryAnswer():
            rows, refused = len(answer.scored), len(answer.refused)
        case PowerAnswer():
            rows, refused = len(answer.rows), len(answer.refused)
        case FrontierAnswer():
            return f"{validation.name}: {len(answer.score.rows)} planned iterations, each at its own clocks. In sample."
        case ReductionAnswer():
            points = answer.score.reduction_mae_points
            return f"{validation.name}: {len(answer.score.rows)} values, {points:.1f} points off on average. In sample."
    left = f"; {refused:,} rows are refused: the model has nothing for what they ran" if refused else ""
    return f"{validation.name}: {rows:,} rows{left}."


def _headline(validations: Sequence[Validation], overrides: Sequence[str]) -> str:
    """The mean absolute errors of time in one sentence; of the iterations that ship also what the fit has seen."""
    parts = []
    for validation in validations:
        answer = validation.answer
        if isinstance(answer, KernelAnswer) and answer.errors.time_mape_pct is not None:
            parts.append(f"{KINDS[answer.kernels.kind]} {answer.errors.time_mape_pct:.1f} %")
        elif isinstance(answer, IterationAnswer) and answer.errors.time_mape_pct is not None:
            is_fitted = validation.name in shipped_files() and not overrides
            fit = f" ({fit_words(answer.scored)})" if is_fitted else ""
            parts.append(f"training iterations {answer.errors.time_mape_pct:.1f} %{fit}")
        elif isinstance(answer, FrontierAnswer) and answer.score.time_mape_pct is not None:
            parts.append(f"planned iterations on {answer.gpu.name} {answer.score.time_mape_pct:.1f} %")
    return f"Mean absolute errors of time: {', '.join(parts)}." if parts else ""
