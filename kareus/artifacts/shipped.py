"""Files of a campaign folder that come with the package: where they are, what they are, and whose configuration counts.

They stand at the top of a checkout. `setup.py` puts them into wheels as package data, below `kareus/shipped/`.
"""

from pathlib import Path

PARTS = ("Snakefile", "config", "workflow", "profiles", "envs")
"""What a campaign folder has: all that plain `snakemake` and every command read."""
IN_PACKAGE = "shipped"
"""Folder of the package that has them in a wheel."""


def shipped_folder() -> Path:
    """Return the folder of the parts that come with the package: of a wheel within it, else the top of the checkout."""
    package = Path(__file__).parents[1]
    inside = package / IN_PACKAGE
    return inside if inside.is_dir() else package.parent


def config_folder() -> Path:
    """Return the Hydra groups that commands read: `config/` of the current folder, else those that come with Kareus.

    Other programs have a `config/`, too; one of Kareus has a primary file and GPUs.
    """
    here = Path("config")
    return here if (here / "config.yaml").is_file() and (here / "gpu").is_dir() else shipped_folder() / "config"


def is_shipped(config_dir: Path) -> bool:
    """Return whether a configuration is the package's, which commands do not write into."""
    return config_dir == shipped_folder() / "config"


def campaign_files() -> dict[str, Path]:
    """Return the files of a campaign folder that come with the package, by their names below that folder."""
    top = shipped_folder()
    files = (path for part in PARTS for path in (top / part, *(top / part).rglob("*")) if path.is_file())
    return {path.relative_to(top).as_posix(): path for path in files}
