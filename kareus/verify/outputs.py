"""The outputs of a campaign: a sealed list in its folder, by which a missing one is noticed.

The workflow, which declares the outputs, writes the list when a run has succeeded.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import kareus
from kareus.artifacts.files import read_json, read_text, write_json
from kareus.artifacts.manifest import SUFFIX, read_manifest
from kareus.artifacts.names import is_below
from kareus.artifacts.seals import has_seal, sealed, unsealed
from kareus.errors import ArtifactError, ConfigError

_CAMPAIGNS = "campaigns"
_NAME = "outputs.json"
PLANNED = "config/plan.yaml"
"""Configuration in the folder of a planned workload."""


def write_outputs(results: Path, campaign: str, declared: Iterable[Path]) -> None:
    """Write the list of a campaign: those of its declared outputs that exist, or that were listed before.

    Folders are marked by a slash at their end.

    Args:
        results: folder of results.
        campaign: name of the campaign's folder.
        declared: outputs of all jobs of the campaign; those that are not in `results` are passed over.
    """
    path = results / _CAMPAIGNS / campaign / _NAME
    before = _listed_before(path)
    names = {output.relative_to(results).as_posix(): output for output in declared if output.is_relative_to(results)}
    made = {f"{name}/" if output.is_dir() else name for name, output in names.items() if output.exists()}
    lost = {name for name in before if name.rstrip("/") in names and not names[name.rstrip("/")].exists()}
    write_json(path, sealed({"kareus_version": kareus.__version__, "outputs": sorted(made | lost)}))


def read_outputs(path: Path) -> list[str]:
    """Return the outputs that a list names, below the folder of results; a folder's name ends with a slash.

    Raises:
        ArtifactError: the list is missing or damaged.
    """
    try:
        outputs = unsealed(read_json(path)).get("outputs")
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error}; delete it and run the workflow.") from error
    if not isinstance(outputs, list) or not all(isinstance(name, str) and is_below(name) for name in outputs):
        raise ArtifactError(f"{path}: does not list files of results; delete it and run the workflow.")
    return outputs


def is_list_of_outputs(path: Path) -> bool:
    """Return whether a file is, by its place, the list of a campaign."""
    return path.name == _NAME and path.absolute().parent.parent.name == _CAMPAIGNS


def results_of(path: Path) -> Path:
    """Return the folder of results that the list at `path` is about."""
    return Path(os.path.normpath(path.parent / "../.."))


def is_in_results(path: Path) -> bool:
    """Return whether a file is in a folder of results: one with campaigns, or of a workload that was planned alone."""
    return any(_is_planned(above) for above in path.absolute().parents) or _is_of_campaign(path)


def is_planned_alone(path: Path) -> bool:
    """Return whether a file is in the folder of a workload that no campaign made, but `kareus plan`."""
    folders = path.absolute().parents
    return any(_is_planned(above) or _lists_plan(above) for above in folders) and not _is_of_campaign(path)


def is_sealed(path: Path) -> bool:
    """Return whether a file is a text with a seal."""
    try:
        return has_seal(read_text(path))
    except ArtifactError:
        return False


def _is_planned(folder: Path) -> bool:
    """Return whether a folder has the sealed configuration of a planned workload."""
    return is_sealed(folder / PLANNED)


def _lists_plan(folder: Path) -> bool:
    """Return whether a folder had that configuration, by the list that `kareus plan` wrote."""
    try:
        return PLANNED in read_manifest(folder / SUFFIX)
    except ArtifactError:
        return False


def _is_of_campaign(path: Path) -> bool:
    """Return whether a folder above a file has campaigns."""
    campaigns = [folder for above in path.absolute().parents for folder in above.glob(f"{_CAMPAIGNS}/*")]
    return any((folder / "campaign.parquet").exists() or _listed_before(folder / _NAME) for folder in campaigns)


def _listed_before(path: Path) -> list[str]:
    try:
        return read_outputs(path)
    except ArtifactError:
        return []
