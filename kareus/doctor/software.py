"""Findings about software: the versions that Kareus was tried with beside those that are there, torch, Slurm."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from kareus.doctor.diagnoses import Diagnosis, State
from kareus.launch.torch_version import OLDEST, TOO_NEW

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A distribution, and the range of its versions that was tried."""

    distribution: str
    oldest: Version | None
    """First version that was tried; None where none was."""
    too_new: Version | None
    """First version that was not tried; None where no upper bound is known."""
    needed_for: str
    is_required: bool = False
    """Whether Kareus does not run, train or measure without it."""

    @property
    def range(self) -> str:
        """The range in pip's words; empty where nothing was tried."""
        lower = f">={text_of(self.oldest)}" if self.oldest else ""
        return lower + (f",<{text_of(self.too_new)}" if self.too_new else "")

    def has(self, version: str) -> bool:
        """Whether a version is within the range; False where it has no number."""
        begins = re.match(r"\d+(?:\.\d+)*", version)
        if begins is None or self.oldest is None:
            return False
        numbers = tuple(int(part) for part in begins[0].split("."))
        return self.oldest <= numbers and (self.too_new is None or numbers < self.too_new)


def text_of(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


TRIED = (
    Tried(
        distribution="torch", oldest=OLDEST, too_new=TOO_NEW, needed_for="tracing models, training", is_required=True
    ),
    Tried(distribution="zeus", oldest=(0, 15), too_new=None, needed_for="setting clocks", is_required=True),
    Tried(distribution="nvidia-ml-py", oldest=(12, 570), too_new=None, needed_for="reading GPUs", is_required=True),
    Tried(distribution="triton", oldest=(3, 6), too_new=None, needed_for="fused kernels and loopbacks on GPUs"),
    Tried(distribution="mscclpp", oldest=None, too_new=None, needed_for="collectives whose SM count changes at once"),
    Tried(distribution="megatron-core", oldest=(0, 12), too_new=(0, 17), needed_for="plans in Megatron-LM"),
    Tried(distribution="torchtitan", oldest=(0, 3), too_new=(0, 4), needed_for="plans in torchtitan"),
    Tried(distribution="transformers", oldest=(4, 51), too_new=None, needed_for="plans in the Hugging Face Trainer"),
    Tried(distribution="accelerate", oldest=(1,), too_new=None, needed_for="plans in Accelerate"),
    Tried(distribution="pytorch-lightning", oldest=(2, 4), too_new=None, needed_for="plans in Lightning"),
)
"""All that is looked for, in the order of the table."""


PROBE_S = 120.0
"""Time within which torch has to answer."""
SLURM_PLUGIN = "snakemake-executor-plugin-slurm"

Versions = Callable[[str], str]
"""Returns the version of a distribution, or raises `PackageNotFoundError`."""


def version_findings(version_of: Versions = metadata.version) -> Iterator[Diagnosis]:
    """Yield a finding for each distribution that was tried."""
    for tried in TRIED:
        try:
            version = version_of(tried.distribution)
        except metadata.PackageNotFoundError:
            yield _missing(tried)
        else:
            yield _installed(tried, version)


def _missing(tried: Tried) -> Diagnosis:
    state = State.BROKEN if tried.is_required else State.ABSENT
    install = f"pip install '{tried.distribution}{tried.range}'"
    remedy = "build it as envs/README.md says" if tried.distribution == "mscclpp" else install
    result = f"not installed; for {tried.needed_for}"
    return Diagnosis(check=tried.distribution, state=state, result=result, remedy=remedy)


def _installed(tried: Tried, version: str) -> Diagnosis:
    if tried.has(version):
        return Diagnosis(check=tried.distribution, state=State.OK, result=f"{version} (tried: {tried.range})")
    state = State.BROKEN if tried.distribution == "torch" else State.LIMITED
    tests = "run `pytest -m gpu`" if tried.oldest is None else f"run the tests with {version}"
    remedy = f"pip install '{tried.distribution}{tried.range}', or {tests}" if tried.range else tests
    result = f"{version}, which was not tried (tried: {tried.range or 'none'}); for {tried.needed_for}"
    return Diagnosis(check=tried.distribution, state=state, result=result, remedy=remedy)


def torch_answer() -> Mapping[str, Any]:
    """Return what torch says of itself and of the GPUs, from another process: importing it takes seconds.

    The answer has the key `failed` where it does not come.
    """
    command = [sys.executable, "-m", "kareus.doctor.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
        answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {PROBE_S:g} s"}
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines()
        return {"failed": lines[-1] if lines else f"ended with {done.returncode}"}
    return answer


def torch_findings(answer: Mapping[str, Any]) -> Iterator[Diagnosis]:
    """Yield what torch's answer means: CUDA, NCCL, and whether limits on CTAs hold."""
    if "failed" in answer:
        remedy = "make `python -c 'import torch; torch.cuda.is_available()'` work"
        yield Diagnosis(check="torch runs", state=State.BROKEN, result=answer["failed"], remedy=remedy)
        return
    yield _cuda(answer)
    if answer["nccl"] is None:
        remedy = "install torch for CUDA (https://pytorch.org); without, ranks communicate by gloo"
        yield Diagnosis(check="NCCL", state=State.ABSENT, result="this torch has none", remedy=remedy)
    else:
        yield Diagnosis(check="NCCL", state=State.OK, result=answer["nccl"])
    yield _ctas(answer)


def _cuda(answer: Mapping[str, Any]) -> Diagnosis:
    gpus, built = answer["gpus"], answer["cuda"]
    if gpus:
        return Diagnosis(
            check="CUDA", state=State.OK, result=f"{built}, {len(gpus)} GPUs: {', '.join(sorted(set(gpus)))}"
        )
    if built is None:
        remedy = "for GPUs install torch for CUDA (https://pytorch.org)"
        return Diagnosis(check="CUDA", state=State.ABSENT, result="this torch is for CPUs alone", remedy=remedy)
    remedy = "on a machine with GPUs: a driver that is new enough for that CUDA, and CUDA_VISIBLE_DEVICES not empty"
    return Diagnosis(check="CUDA", state=State.ABSENT, result=f"{built}, and no GPU", remedy=remedy)


def _ctas(answer: Mapping[str, Any]) -> Diagnosis:
    """Whether collectives keep to the number of SMs that they are given."""
    check = "CTA limits"
    if answer["overrides"]:
        set_to = ", ".join(f"{name}={value}" for name, value in answer["overrides"].items())
        result = f"{set_to}: overrule the SM counts of collectives"
        return Diagnosis(
            check=check, state=State.BROKEN, result=result, remedy=f"unset {' '.join(answer['overrides'])}"
        )
    seen = {int(limit): int(used) for limit, used in answer["ctas"].items()}
    if answer["refused"]:
        remedy = "make an all-reduce over two GPUs work (NCCL_DEBUG=INFO says what fails)"
        return Diagnosis(check=check, state=State.BROKEN, result=f"not measured: {answer['refused']}", remedy=remedy)
    if not seen:
        result = "not measured: takes two GPUs and NCCL"
        return Diagnosis(
            check=check, state=State.ABSENT, result=result, remedy="run `kareus doctor` on the node that trains"
        )
    shown = ", ".join(f"{used} for a limit of {limit}" for limit, used in seen.items())
    if any(used > limit for limit, used in seen.items()):
        remedy = "use the communicator 'mscclpp', or another NCCL: plans' SM counts do not hold with this one"
        return Diagnosis(check=check, state=State.BROKEN, result=f"NCCL took more CTAs: {shown}", remedy=remedy)
    if len(seen) > 1 and len(set(seen.values())) == 1:
        remedy = "use the communicator 'mscclpp': with this NCCL plans' SM counts make no difference"
        return Diagnosis(check=check, state=State.LIMITED, result=f"limits changed nothing: {shown}", remedy=remedy)
    return Diagnosis(check=check, state=State.OK, result=f"NCCL took {shown}")


def slurm_finding(
    which: Callable[[str], str | None] = shutil.which, version_of: Versions = metadata.version
) -> Diagnosis:
    """Return whether jobs can go to Slurm."""
    if which("sbatch") is None:
        result = "no sbatch on PATH; for campaigns on a cluster"
        return Diagnosis(check="Slurm", state=State.ABSENT, result=result, remedy="log in to a node that submits jobs")
    try:
        plugin = version_of(SLURM_PLUGIN)
    except metadata.PackageNotFoundError:
        result = f"sbatch is there, {SLURM_PLUGIN} is not installed"
        return Diagnosis(check="Slurm", state=State.LIMITED, result=result, remedy=f"pip install {SLURM_PLUGIN}")
    return Diagnosis(check="Slurm", state=State.OK, result=f"sbatch, {SLURM_PLUGIN} {plugin}")
