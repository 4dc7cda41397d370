"""Checks of user's texts that become part of a path, a file's name, a comment, a terminal or a page.

Records of the configuration check their names when they are built, so that everything after them can use one as it is.
Names have no separators, no leading dot, no braces (which Snakemake reads as wildcards), no characters that do not
print, and a bounded length.
"""

import re
from pathlib import Path, PurePosixPath

from kareus.errors import ArtifactError, ConfigError

MOST_NAME = 80
"""Characters of a name. File systems allow 255 in a part of a path, and several names are joined to one."""
MOST_TITLE = 255
"""Characters of the title of a report; names of workloads have up to 160."""
MOST_PART = 255
"""Bytes of a part of a path, as file systems allow."""
MOST_PATH = 1024
"""Characters of a path; Linux allows 4,096, to which the folder that it is relative to is added."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_PRODUCT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(?: [A-Za-z0-9._+-]+)*")


def check_name(name: str, what: str) -> None:
    """Check the name of a file or folder, such as a campaign's or an option's.

    Args:
        name: the name.
        what: what it is the name of, the start of the message.

    Raises:
        ConfigError: it is not a name.
    """
    if not _NAME.fullmatch(name) or len(name) > MOST_NAME:
        raise ConfigError(
            f"{what} {name!r}: a name has letters, digits, '.', '_', '-' and '+' alone, begins with a letter or a "
            f"digit and has at most {MOST_NAME} characters; rename its file."
        )


def check_product(name: str, key: str) -> None:
    """Check the name of a product, such as a GPU's or a model's: like that of a file, with single spaces inside.

    Args:
        name: the name.
        key: of the configuration, the start of the message.

    Raises:
        ConfigError: it is not such a name.
    """
    if not _PRODUCT.fullmatch(name) or len(name) > MOST_NAME:
        raise ConfigError(
            f"{key}={name!r}: must be letters, digits, '.', '_', '-', '+' and single spaces inside, begin with a "
            f"letter or a digit and have at most {MOST_NAME} characters; give another name."
        )


def check_title(title: str, key: str) -> None:
    """Check the title of a report, which is printed, drawn and written into pages.

    Args:
        title: the title.
        key: argument that gives it, the start of the message.

    Raises:
        ConfigError: it is empty, too long, or has a character that does not print.
    """
    if not title or len(title) > MOST_TITLE or not title.isprintable():
        raise ConfigError(
            f"{key} {title!r}: must have 1 to {MOST_TITLE} characters, all of which print; give another title."
        )


def check_path(path: str, key: str) -> None:
    """Check a path that the configuration gives.

    Args:
        path: the path, absolute or relative.
        key: of the configuration, the start of the message.

    Raises:
        ConfigError: it is empty, too long, or has a character that does not print or that Snakemake reads as its own.
    """
    if not path or len(path) > MOST_PATH or not path.isprintable() or set("{}") & set(path):
        raise ConfigError(
            f"{key}={path!r}: must be a path of 1 to {MOST_PATH:,} characters that print, without braces; rename the "
            "file or its folder."
        )


def shortened(name: str, most: int) -> str:
    """Return `name`, or its beginning where it is longer than `most` characters."""
    return name[:most].rstrip("-. ")


def is_below(name: str) -> bool:
    """Return whether a text that a file gives is a path below a folder, and one that file systems take."""
    path = PurePosixPath(name)
    fits = len(name) <= MOST_PATH and name.isprintable() and all(len(part.encode()) <= MOST_PART for part in path.parts)
    return fits and bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def leads_through_link(folder: Path, name: str) -> bool:
    """Return whether a part of the path `name` below `folder` is a link, so that the path may leave the folder."""
    path = PurePosixPath(name)
    return any((folder / part).is_symlink() for part in (path, *path.parents[:-1]))


def below(folder: Path, *names: str) -> Path:
    """Return the path of `names`, one in the other, below `folder`.

    Raises:
        ArtifactError: a name is no single part of a path, so that the path could leave `folder`.
    """
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ArtifactError(f"{folder}: {name!r} is not the name of a file or folder in it; give another name.")
    return folder.joinpath(*names)
