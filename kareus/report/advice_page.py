"""The page of the adviser (answer, frontier over layouts, layouts in figures, refusals, commands), and its folder."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kareus.adviser.answers import Advice, Depth, LayoutAnswer, SizeAnswer
from kareus.adviser.beside import frugal_lines, full_line, job_lines, measure_lines, sizes_line, unfit_line
from kareus.adviser.choosing import plan_asked
from kareus.adviser.limits import idle_limit_line, unkept_words
from kareus.adviser.lines import (
    answer_lines,
    batch_words,
    chips,
    commands,
    error_text,
    gain_words,
    layout_settings,
    layout_words,
    row_lines,
    source_label,
    subject,
    training_line,
    turn_on_lines,
    unset_line,
)
from kareus.adviser.plain import asked, plain
from kareus.adviser.question import Question
from kareus.adviser.rows import cells, full_note, full_words, heads, job_words
from kareus.adviser.tables import ADVISED_LAYOUTS, ADVISED_PLANS, layouts_frame, plans_frame
from kareus.artifacts.files import read_json, write_text
from kareus.artifacts.manifest import SUFFIX as MANIFEST_SUFFIX
from kareus.artifacts.outputs import check_report_folder
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash, differences, leaves
from kareus.artifacts.tables import write_table
from kareus.errors import ArtifactError
from kareus.plans.answer import PREDICTED, meaning
from kareus.report.advice_figure import frontier_figure
from kareus.report.page import Page, Section, write_page
from kareus.report.sheets import Sheet, SheetRow, blocks_text
from kareus.testbed.protocol import open_testbed


def write_folder(folder: Path, advice: Advice) -> Path:
    """Write the answer, its tables and its page into a folder; returns the path of the page."""
    return write_page(folder, advice_page(advice), beside=lambda filled: write_advice(filled, advice))


def check_same_question(folder: Path, question: Question, *, force: bool) -> None:
    """Check that a folder has no page yet, or that of an answer to the same question, which a new one replaces.

    Raises:
        ArtifactError: it has the answer to another question, another page, or files and no page; and no `--force`.
    """
    check_report_folder(folder, force=force)
    answered = folder / ANSWER
    if force or not any(folder.glob(f"*{MANIFEST_SUFFIX}")):
        return
    if not answered.is_file():
        raise ArtifactError(f"{folder}: has a page that is no answer of advise; give another --output, or --force.")
    read = read_json(answered)
    before = read.get("asked") if isinstance(read, dict) else None
    was = dict(leaves(before)) if isinstance(before, dict) else {}
    changes = differences(was, asked(question))
    if changes:
        named = "; ".join(f"{key}: {was.get(key, 'none')}, here {value or 'none'}" for key, value in changes.items())
        raise ArtifactError(
            f"{answered}: is the answer to another question{f' ({named})' if was else ''}; give another --output, or "
            "--force to replace it."
        )


def advice_page(advice: Advice) -> Page:
    """Return the page of an answer."""
    provenance = provenance_of(advice).stamped()
    assert provenance.testbed is not None  # of the GPU model
    headline, costs = map(_sentence, gain_words(advice))
    sizes = sorted(advice.sizes, key=lambda size: size.gpus != advice.chosen_gpus)  # the chosen one first
    return Page(
        title=subject(advice),
        name=f"{batch_words(advice)} an iteration",
        testbeds=(provenance.testbed,),
        source=source_label(advice),
        provenance=provenance,
        sections=(
            *(_drawn(size) for size in sizes),
            *_answer(advice),
            *([_to_measure(advice)] if advice.measure_first else []),
            *(section for size in sizes for section in _size(advice, size)),
            *([_left_out(advice)] if advice.left_out else []),
        ),
        figures=tuple(frontier_figure(advice, size) for size in sizes),
        tables=((ADVISED_LAYOUTS, layouts_frame(advice)), (ADVISED_PLANS, plans_frame(advice))),
        summary=advice_text(advice),
        template="headline.html",
        extra={"headline": headline, "lead": (costs, *_lead(advice))},
    )


def advice_text(advice: Advice) -> str:
    """Return the answer for a terminal."""
    return blocks_text([list(answer_lines(advice))])


def _lead(advice: Advice) -> Iterator[str | list[str]]:
    """Yield what a job lacks and gains by the layout alone, the layout, how wrong that may be, and settings."""
    yield from map(_sentence, job_lines(advice))
    yield _sentence(layout_words(advice))
    yield _sentence(f"{PREDICTED}; error: {error_text(advice)}")
    first, *others = [*frugal_lines(advice)] or [""]
    if first:
        yield f"{first[0].upper()}{first[1:]}" if others else _sentences(first)
    if others:
        yield [_sentence(line.strip()) for line in others]
    if full := full_line(advice):
        yield _sentences(full)
    if unfit := unfit_line(advice):
        yield _sentence(unfit)
    if idle := idle_limit_line(advice.question):
        yield f"{idle}."
    if whole := training_line(advice):
        yield _sentence(whole)
    if sizes := sizes_line(advice):
        yield _sentence(sizes)
    if settings := layout_settings(advice):
        name, _, values = settings.partition(": ")
        yield f"In {name}: `{values}`"


def _answer(advice: Advice) -> Iterator[Section]:
    """Yield what makes the plan, and what turns it on in its trainer."""
    lines = [unset_line(advice), f"energies are of {chips(advice)}"]
    words, typed = " ".join(_sentence(line) for line in lines if line), tuple(commands(advice))
    settings = f"These commands make the plan, and write its layout as settings of {advice.question.trainer.title}:"
    text = "To make the plan:" if unset_line(advice) else settings
    yield Section(title="The plan in the trainer", text=f"{words} {text}", commands=typed)
    said, *lines = [*turn_on_lines(advice)] or [""]
    if said:
        yield Section(title="Turning it on", text=f"{said[0].upper()}{said[1:]}", commands=tuple(map(str.strip, lines)))


def _to_measure(advice: Advice) -> Section:
    said, *runs = measure_lines(advice)
    shown = ("\n".join(lines) for lines in (runs, row_lines(advice)))
    return Section(title="Layouts to measure first", text=said, commands=tuple(filter(None, shown)))


def _drawn(size: SizeAnswer) -> Section:
    return Section(title=f"{size.gpus} GPUs", figures=(f"layouts_{size.gpus}",))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _sentences(text: str) -> str:
    """Return a line of the terminal whose parts become sentences; what begins with a degree, such as `pp 2`, stays."""
    parts = re.split(r"; (?![^()]*\))", text)
    return " ".join(part + "." if re.match(r"[a-z]p ", part) else _sentence(part) for part in parts)


def _size(advice: Advice, size: SizeAnswer) -> list[Section]:
    effort = size.effort
    text = (
        f"Of {effort.configurations:,} layouts {effort.bounded:,} can run. {effort.predicted:,} of these may be among "
        f"the best: they were predicted, and {effort.planned_words}, in {effort.total_s:.1f} s."
    )
    followed = [answer for answer in size.layouts if answer.plans]
    return [
        Section(title=f"Layouts of {size.gpus} GPUs in figures", text=text, sheets=(_layouts(advice, size, followed),)),
        Section(title=f"Refused layouts of {size.gpus} GPUs", sheets=(_refused(size),), is_folded=True),
    ]


def _layouts(advice: Advice, size: SizeAnswer, followed: Sequence[LayoutAnswer]) -> Sheet:
    on_frontier = {choice.layout.number for choice in size.frontier}
    why, (_, *names) = full_note(followed), heads(advice)
    rows = tuple(
        SheetRow(
            cells=(
                f"{layout.number} {layout.candidate.words} ({_state(advice, layout, on_frontier)})",
                *(figures[head] for head in names),
            ),
            is_ours=layout.number == advice.chosen.layout.number and size.gpus == advice.chosen_gpus,
        )
        for layout in followed
        for figures in [cells(layout, plan_asked(advice.question, advice.selector, layout))]
    )
    return Sheet(
        caption="Every layout that was predicted or planned, by its plan "
        f"`{advice.selector}`{meaning(advice.selector)}{' within the limits' if advice.question.goals.limits else ''}",
        heads=(("", "layout"), *(("", name) for name in names)),
        rows=rows,
        source=ADVISED_LAYOUTS.name,
        note=f"Numbered by their fastest plans; bold: what is chosen, the best by `{advice.selector}`. Frontier: "
        f"best at some speed; tied: would be with {size.ties.words}. {_sentence(why) if why else ''}",
    )


def _state(advice: Advice, answer: LayoutAnswer, on_frontier: set[int]) -> str:
    is_planned = answer.depth is Depth.PLANNED and answer.number in on_frontier
    state = "frontier" if is_planned else "tied" if answer.is_tied else "behind"
    unkept = unkept_words(advice.question, answer)
    return f"{unkept.removeprefix(', ') or state}{job_words(advice, answer)}{full_words(answer)}"


def _refused(size: SizeAnswer) -> Sheet:
    """Reasons by which layouts cannot run, how many, and the first of each."""
    first = {str(refusal.reason): refusal for refusal in reversed(size.refusals)}
    rows = tuple(
        SheetRow(cells=(reason, first[reason].message, first[reason].layout.words, f"{count:,}"))
        for reason, count in sorted(size.effort.refused.items(), key=lambda counted: -counted[1])
    )
    return Sheet(
        caption="Why layouts cannot run",
        heads=(("", "reason"), ("", "what is wrong"), ("", "for example with"), ("", "layouts")),
        rows=rows,
        texts=3,
    )


def _left_out(advice: Advice) -> Section:
    rows = tuple(SheetRow(cells=(str(gpus), reason)) for gpus, reason in advice.left_out.items())
    sheet = Sheet(caption="Numbers of GPUs without a plan", heads=(("", "GPUs"), ("", "why")), rows=rows, texts=2)
    return Section(title="Left out", sheets=(sheet,))


ANSWER = "advice.json"
"""Name of the file with the whole answer."""


def provenance_of(advice: Advice) -> Provenance:
    """Return where an answer comes from: the GPU model behind a simulated testbed."""
    base = advice.question.base
    testbed = open_testbed(base.testbed, base.gpu, base.protocol.predecessor_power_w, base.seed)
    return Provenance(config_hash=content_hash(base), testbed=testbed.identity, seed=base.seed)


def write_advice(folder: Path, advice: Advice) -> None:
    """Write the tables and the answer into a folder."""
    provenance = provenance_of(advice)
    write_table(folder / f"{ADVISED_LAYOUTS.name}.parquet", layouts_frame(advice), ADVISED_LAYOUTS, provenance)
    write_table(folder / f"{ADVISED_PLANS.name}.parquet", plans_frame(advice), ADVISED_PLANS, provenance)
    write_text(folder / ANSWER, json.dumps(plain(advice), indent=1, allow_nan=False) + "\n")
