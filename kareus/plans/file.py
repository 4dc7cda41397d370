"""Plan files: sealed JSON after a published schema, so that an edited plan is told from one that was written."""

from pathlib import Path

from kareus.artifacts import records
from kareus.artifacts.files import read_json, write_json
from kareus.artifacts.outputs import OutputKind
from kareus.artifacts.provenance import TESTBED_KINDS
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan
from kareus.plans.selectors import parse_selector

NO_PLAN = "not a plan; give the one that `kareus select` prints"


def is_plan(path: Path) -> bool:
    """Return whether a file is a plan, of any version and whatever its seal."""
    try:
        document = read_json(path)
    except ArtifactError:
        return False
    return isinstance(document, dict) and {"schema_version", "workload_hash", "selector", "stages"} <= set(document)


PLAN_FILE = OutputKind("a plan", is_plan)


def write_plan(path: Path, plan: Plan) -> None:
    """Write `plan` with its seal, atomically."""
    write_json(path, sealed(records.to_plain(plan)))


def save_plan(path: Path, plan: Plan) -> None:
    """Write `plan` where nothing is, or another plan.

    Raises:
        ArtifactError: there is something else, or the name is that of another selector.
    """
    if path.is_dir() or (path.is_file() and not is_plan(path)):
        raise ArtifactError(f"{path}: is there, and is no plan; give another path.")
    check_name(path, plan.selector)
    write_plan(path, plan)


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises:
        ArtifactError: missing, corrupt, of another schema version, edited since it was written, no plan, or named after
            another selector.
    """
    document = read_json(path, NO_PLAN)
    if not isinstance(document, dict) or "schema_version" not in document:
        raise ArtifactError(f"{path}: {NO_PLAN}.")
    version = document["schema_version"]
    if version != PLAN_SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: plan schema version {version!r}, this Kareus reads {PLAN_SCHEMA_VERSION}; select the plan anew."
        )
    try:
        content = unsealed(document)
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error}; select the plan anew.") from error
    try:
        plan = records.from_plain(Plan, content)
    except ConfigError as error:
        raise ArtifactError(f"{path}: {str(error).removesuffix('.')}; select the plan anew.") from error
    if plan.testbed.kind not in TESTBED_KINDS:
        kinds = records.suggest(plan.testbed.kind, TESTBED_KINDS)
        raise ArtifactError(f"{path}: testbed.kind: {plan.testbed.kind!r} is not known; {kinds}; select the plan anew.")
    check_name(path, plan.selector)
    return plan


def check_name(path: Path, selector: str) -> None:
    """Check that a file of a results folder, which the report shows by its name, is not named after another request.

    Args:
        path: of the plan file.
        selector: the request that picks its plan.

    Raises:
        ArtifactError: the file is named after another selector.
    """
    named = path.name.removesuffix(".json").partition("_")[0]
    if path.parent.name != "plan" or named == selector:
        return
    try:
        parse_selector(named)
    except ConfigError:  # a name of the user's own
        return
    raise ArtifactError(f"{path}: the plan of '{selector}'; select '{named}' anew, or use another name.")
