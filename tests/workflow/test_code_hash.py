import ast
import shutil
from pathlib import Path

import pytest

import kareus
from kareus.artifacts import code
from kareus.artifacts.code import code_hash

COMPILED = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package."""
    return Path(
        shutil.copytree(Path(kareus.__file__).parent, tmp_path_factory.mktemp("copy") / "kareus", ignore=COMPILED)
    )


def hash_with(monkeypatch, module, edited, package):
    """Hash of `module` in a copy of the package in which one file has another line."""
    file, former = package / edited, (package / edited).read_text()
    file.write_text(former + "\n# edited\n")
    with monkeypatch.context() as patched:
        patched.setattr(code.kareus, "__file__", str(package / "__init__.py"))
        code_hash.cache_clear()
        code._read.cache_clear()
        found = code_hash(module)
    code_hash.cache_clear()
    file.write_text(former)
    return found


def test_every_import_of_every_module_counts():
    """By Python's grammar; what merely looks like an import may count, and words beside names do."""
    for path in Path(kareus.__file__).parent.rglob("*.py"):
        content = path.read_bytes()
        imported = set[str]()
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        assert {name for name in imported if name.startswith("kareus.")} <= set(code._imported(content)), path


def test_editing_code_changes_the_hash_of_its_stages_only(monkeypatch, package):
    search, schedule = code_hash("kareus.search.stage"), code_hash("kareus.schedule.stage")
    for edited, changes_search, changes_schedule in [
        ("search/acquisition.py", True, False),
        ("gpu_model/laws.py", True, False),
        ("schedule/space.py", False, True),
        ("artifacts/tables.py", True, True),
        ("report/workload/stage.py", False, False),
    ]:
        assert (hash_with(monkeypatch, "kareus.search.stage", edited, package) != search) == changes_search, edited
        assert (hash_with(monkeypatch, "kareus.schedule.stage", edited, package) != schedule) == changes_schedule, (
            edited
        )


@pytest.mark.parametrize("edited", ["report/static/page.js", "report/templates/page.html"])
def test_editing_a_page_changes_the_report_hash_only(monkeypatch, package, edited):
    for module, changes in [("kareus.report.workload.stage", True), ("kareus.plans.stage", False)]:
        before = code_hash(module)
        assert (hash_with(monkeypatch, module, edited, package) != before) == changes
