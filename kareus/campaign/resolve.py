"""Resolution of a campaign: its workloads, fleets and sweeps, and the reasons why some of them cannot run."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from kareus.adviser.question import Question, question_of
from kareus.artifacts.records import content_hash
from kareus.artifacts.shipped import config_folder
from kareus.campaign.config import OVERRIDES_FOLLOW, merged, read_parts
from kareus.emulate.resolve import Fleet, expand_fleets
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.sweep.config import ProfilerSweep, expand_sweeps
from kareus.workload.config import Workload
from kareus.workload.resolve import Resolved, resolve

MOST_READABLE = 60
"""Characters of overrides that the name of a campaign's folder shows."""

Found = TypeVar("Found", Resolved, Fleet, ProfilerSweep)


class MemberKind(StrEnum):
    """Kind of a campaign's member."""

    WORKLOAD = "workload"
    FLEET = "fleet"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Something that belongs to a campaign."""

    part: str
    """The campaign that lists it: this one, or one that it names."""
    resolution: Resolved | Fleet | ProfilerSweep

    @property
    def kind(self) -> MemberKind:
        """Kind of the member."""
        match self.resolution:
            case Resolved():
                return MemberKind.WORKLOAD
            case Fleet():
                return MemberKind.FLEET
            case ProfilerSweep():
                return MemberKind.SWEEP

    @property
    def workload_name(self) -> str:
        """Its folder under `results/`."""
        return self.resolution.name if isinstance(self.resolution, Resolved) else self.resolution.workload_name

    @property
    def name(self) -> str | None:
        """Folder of a fleet or a sweep within that of its workload; None for a workload."""
        return None if isinstance(self.resolution, Resolved) else self.resolution.name

    @property
    def workload(self) -> Workload:
        """Workload as it is planned or, if refused, as it was composed."""
        if isinstance(self.resolution, Resolved):
            return self.resolution.workload or self.resolution.composed
        return self.resolution.workload

    @property
    def pipeline(self) -> Workload:
        """One pipeline of the fleet, with the fleet's number of microbatches."""
        return self.resolution.pipeline if isinstance(self.resolution, Fleet) else self.workload

    @property
    def gpus(self) -> int:
        """GPUs of all of its pipelines."""
        return self.resolution.gpus if isinstance(self.resolution, Fleet) else self.workload.parallelism.gpus

    @property
    def refusal(self) -> str | None:
        """Reason why the member cannot run, or None."""
        return self.resolution.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignQuestion:
    """What a campaign asks the adviser."""

    part: str
    """The campaign that asks it: this one, or one that it names."""
    texts: tuple[str, ...]
    """Texts `key=value` that give it."""
    question: Question

    @property
    def content_hash(self) -> str:
        """Hash of what is asked, the configuration and the series of its prices included; a change asks anew."""
        return content_hash([self.texts, self.question.base, self.question.goals])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCampaign:
    """A campaign and everything that belongs to it."""

    name: str
    overrides: tuple[str, ...] = ()
    """Overrides that replace its own."""
    members: tuple[Member, ...]
    """Members by part; within a part each once, in the order of its file."""
    asked: CampaignQuestion | None = None

    @property
    def folder(self) -> str:
        """Name of its folder under `results/campaigns/`, which tells its overrides."""
        return folder_name(self.name, self.overrides)

    @property
    def resolved(self) -> list[Resolved]:
        """Its workloads, accepted and refused, each once."""
        every = (member.resolution for member in self.members)
        return list({each.name: each for each in every if isinstance(each, Resolved)}.values())

    @property
    def workloads(self) -> dict[str, Workload]:
        """Workloads that are planned, by name."""
        return {each.name: each.workload for each in self.resolved if each.workload is not None}

    @property
    def fleets(self) -> dict[tuple[str, str], Fleet]:
        """Fleets that are planned, by the names of their workload and of their own."""
        accepted = (member.resolution for member in self.members if member.refusal is None)
        return {(each.workload_name, each.name): each for each in accepted if isinstance(each, Fleet)}

    @property
    def sweeps(self) -> dict[tuple[str, str], ProfilerSweep]:
        """Sweeps of the profiler that are run, by the names of their workload and of their own."""
        accepted = (member.resolution for member in self.members if member.refusal is None)
        return {(each.workload_name, each.name): each for each in accepted if isinstance(each, ProfilerSweep)}

    @property
    def folders(self) -> dict[str, Workload]:
        """Workloads with a folder of results, by name: planned, or with a fleet or a sweep alone."""
        return {m.workload_name: m.workload for m in self.members if m.refusal is None}


def resolve_campaign(name: str, overrides: Sequence[str], config_dir: Path | None = None) -> ResolvedCampaign:
    """Resolve the campaign `name`.

    Args:
        name: of a file of `config/campaign/`.
        overrides: Hydra overrides of every workload, fleet and sweep of it, in the place of its own of the same key.
        config_dir: folder of the groups; None: that of `config_folder`.

    Raises:
        ConfigError: the campaign or something of it cannot be used. What is well formed but cannot run is no error as
            long as something is left to do.
        RefusedWorkloadError: nothing can run.
    """
    config_dir = config_dir or config_folder()
    members = list[Member]()
    questions = list[CampaignQuestion]()
    for part, campaign in read_parts(name, config_dir).items():
        try:
            resolutions: Sequence[Resolved | Fleet | ProfilerSweep] = [
                *_resolved(resolve, campaign.workloads, overrides, config_dir),
                *_resolved(expand_fleets, campaign.fleets, overrides, config_dir),
                *_resolved(expand_sweeps, campaign.sweeps, overrides, config_dir),
            ]
            if campaign.question:
                texts = tuple(merged(campaign.question, overrides))
                questions.append(CampaignQuestion(part=part, texts=texts, question=question_of(texts, config_dir)))
        except ConfigError as error:
            raise type(error)(f"campaign {part}: {error}") from error
        members += [Member(part=part, resolution=each) for each in resolutions]
    if len(questions) > 1:
        parts = " and ".join(each.part for each in questions)
        raise ConfigError(f"campaign {name}: has the questions of {parts}; leave all but one out.")
    question = next(iter(questions), None)
    resolved = ResolvedCampaign(name=name, overrides=tuple(overrides), members=_once(members), asked=question)
    if not resolved.folders and question is None:
        first = resolved.members[0]
        prefix = "" if len(resolved.members) == 1 else f"all of campaign {name} is refused; the first, "
        raise RefusedWorkloadError(f"{prefix}{first.workload_name}: {first.refusal}")
    return resolved


def folder_name(campaign: str, overrides: Sequence[str]) -> str:
    """Return the name of the folder of a campaign under overrides, whose order does not matter.

    No two campaigns share a folder, since names of campaigns and plain overrides have no `+`.
    """
    if not overrides:
        return campaign
    readable = OVERRIDES_FOLLOW.join(sorted(overrides))
    is_plain = all(re.fullmatch(r"[A-Za-z0-9._-]+=[A-Za-z0-9.,_-]+", override) for override in overrides)
    shown = readable if is_plain and len(readable) <= MOST_READABLE else content_hash(sorted(overrides))[:8]
    return f"{campaign}{OVERRIDES_FOLLOW}{shown}"


def _resolved(
    resolve_texts: Callable[[Sequence[str], Path], list[Found]],
    texts: Iterable[str],
    overrides: Sequence[str],
    config_dir: Path,
) -> list[Found]:
    return [each for text in texts for each in resolve_texts(merged(text, overrides), config_dir)]


def _once(members: Sequence[Member]) -> tuple[Member, ...]:
    """Every member of a part once.

    Raises:
        ConfigError: two workloads share a name, which would share their results.
    """
    unique = dict[tuple[str, MemberKind, str, str | None], Member]()
    first = dict[str, Workload]()
    for member in members:
        unique.setdefault((member.part, member.kind, member.workload_name, member.name), member)
        if member.refusal is None and first.setdefault(member.workload_name, member.workload) != member.workload:
            raise ConfigError(
                f"campaign {member.part}: {member.workload_name} would be the name of two workloads; rename one of the "
                "options that differ."
            )
    return tuple(unique.values())
