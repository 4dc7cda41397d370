"""Builds wheels: beside what `pyproject.toml` says, the package data that stand at the top of the checkout."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = runpy.run_path("kareus/artifacts/shipped.py")  # which imports nothing but the standard library


class BuildWithShippedFiles(build_py):
    """Copies the parts of a campaign folder below `kareus/shipped/`; an editable install finds them where they are."""

    def run(self) -> None:
        """Build the modules, then copy."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._shipped().items():
            self.mkpath(str(target.parent))
            self.copy_file(str(source), str(target), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002 - setuptools' signature
        """Return the files of a wheel."""
        shipped = [] if self.editable_mode else map(str, self._shipped().values())
        return [*super().get_outputs(include_bytecode), *shipped]

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution, from which a wheel can be built."""
        return [*super().get_source_files(), *map(str, self._shipped())]

    def _shipped(self) -> dict[Path, Path]:
        """Places in a build, by file of the checkout."""
        into = Path(self.build_lib, "kareus", SHIPPED["IN_PACKAGE"])
        return {Path(name): into / name for name in sorted(SHIPPED["campaign_files"]())}


setup(cmdclass={"build_py": BuildWithShippedFiles})
