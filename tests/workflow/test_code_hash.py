from pathlib import Path

import pytest

import kareus
from kareus.artifacts import code
from kareus.artifacts.code import code_hash


def hash_with(monkeypatch, module, edited, tmp_path):
    """Hash of `module` in a copy of the package in which one file has another line."""
    copy = tmp_path / edited.replace("/", "_")
    sources = (path for path in Path(kareus.__file__).parent.rglob("*.*") if path.suffix != ".pyc")
    for source in sources:
        target = copy / "kareus" / source.relative_to(Path(kareus.__file__).parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    file = copy / "kareus" / edited
    file.write_text(file.read_text() + "\n# edited\n")
    monkeypatch.setattr(code.kareus, "__file__", str(copy / "kareus" / "__init__.py"))
    code_hash.cache_clear()
    found = code_hash(module)
    monkeypatch.undo()
    code_hash.cache_clear()
    return found


def test_editing_code_changes_the_hash_of_its_stages_only(monkeypatch, tmp_path):
    search, schedule = code_hash("kareus.search.stage"), code_hash("kareus.schedule.stage")
    for edited, changes_search, changes_schedule in [
        ("search/acquisition.py", True, False),
        ("gpu_model/laws.py", True, False),
        ("schedule/space.py", False, True),
        ("artifacts/tables.py", True, True),
        ("report/workload/stage.py", False, False),
    ]:
        assert (hash_with(monkeypatch, "kareus.search.stage", edited, tmp_path) != search) == changes_search, edited
        assert (hash_with(monkeypatch, "kareus.schedule.stage", edited, tmp_path) != schedule) == changes_schedule, (
            edited
        )


@pytest.mark.parametrize("edited", ["report/static/page.js", "report/templates/page.html"])
def test_editing_a_page_changes_the_report_hash_only(monkeypatch, tmp_path, edited):
    for module, changes in [("kareus.report.workload.stage", True), ("kareus.plans.stage", False)]:
        before = code_hash(module)
        assert (hash_with(monkeypatch, module, edited, tmp_path / module) != before) == changes
