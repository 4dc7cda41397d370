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


def imported(content):
    """Names of the package that a module imports, by Python's grammar."""
    names = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.startswith("kareus.")}


def test_every_import_of_every_module_counts():
    """What merely looks like an import may count, and words beside names do."""
    for path in Path(kareus.__file__).parent.rglob("*.py"):
        content = path.read_bytes()
        assert imported(content) <= set(code._imported(content)), path


@pytest.mark.parametrize(
    "text",
    [
        "from kareus.a import (\n    b,  # as in f(x)\n    c,\n)",
        "from kareus.a import b, \\\n    c",
        "from kareus.a import(b, c)",
        "import kareus.a, kareus.b, \\\n    kareus.c as c",
        "import os, kareus.a",
        "try: from kareus.a import b, c\nexcept ImportError: import kareus.d",
        "if True:\n    x = 1; import kareus.a",
        "if True:\n\tfrom kareus.a import b as c, d",
        "from kareus import a, b",
    ],
)
def test_imports_count_however_they_are_written(text):
    assert imported(text.encode()) <= set(code._imported(text.encode()))


def test_editing_code_changes_the_hash_of_its_stages_only(monkeypatch, package):
    search, schedule = code_hash("kareus.search.stage"), code_hash("kareus.schedule.stage")
    for edited, changes_search, changes_schedule in [
        ("search/strategy.py", True, False),
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
