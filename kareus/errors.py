"""The errors a user can act on, and where more is said. The command line prints one line for each, its notes below."""

MOST_CHARACTERS = 2000
"""Characters of a message that are shown: more than any message has of its own, less than values it may quote."""
END = 400
"""Characters kept at the end of a longer message, which holds the remedy."""


def printable(text: str) -> str:
    """Return `text` with everything escaped that does not print: control characters, line ends, bidi overrides."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return `text` with everything but its line feeds escaped as in `printable`."""
    return "\n".join(printable(line) for line in text.split("\n"))


def one_line(text: str) -> str:
    """Return `text` as one line of bounded length that does nothing to a terminal, for messages that quote values."""
    text = printable(text)
    left_out = len(text) - MOST_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[: MOST_CHARACTERS - END]} ... ({left_out:,} characters left out) ... {text[-END:]}"


def with_notes(error: Exception) -> str:
    """Return an error and its notes in one line, for where it is no more than a text.

    Example:
        >>> error = KareusError("out of memory.")
        >>> error.add_note("give tp=8")
        >>> with_notes(error)
        'out of memory; give tp=8'
    """
    parts = (" ".join(part.split()).rstrip(".") for part in (str(error), *getattr(error, "__notes__", ())))
    return "; ".join(parts).replace(":;", ":")


def described_in(name: str) -> str:
    """Return where a page of the documentation is, for messages: a wheel has none of them, and no site has them yet.

    Example:
        >>> described_in("howto/gpu.md")
        "docs/howto/gpu.md in Kareus' repository"
    """
    return f"docs/{name} in Kareus' repository"


class KareusError(Exception):
    """Base class of errors that a user can act on. Messages give place, value, allowed range and remedy.

    What more there is to say, such as several ways out, are notes (`add_note`), one a line.
    """

    def __str__(self) -> str:
        """Return the message in one line."""
        return one_line(super().__str__())


class ConfigError(KareusError):
    """A key, group or value of the configuration that cannot be used."""


class RefusedWorkloadError(ConfigError):
    """A well-formed combination that cannot run: something does not divide, or does not fit."""


class ScheduleError(KareusError):
    """An order of a pipeline's instructions that cannot run."""


class DeviceError(KareusError):
    """A GPU or its driver refused a request, or the GPU is in use by another process."""


class ArtifactError(KareusError):
    """A file that is missing, corrupt, of another schema, or of another workload."""


class StageInputError(ArtifactError):
    """A table given to a stage's function that does not fit the others; on the command line, the file is named."""

    def __init__(self, option: str, problem: str, member: str = "") -> None:
        """Describe the problem.

        Args:
            option: name of the input.
            problem: what is wrong and what to do.
            member: name of the table in an input that is a set of tables; empty where the whole input is meant.
        """
        super().__init__(f"{option}{f' of {member}' * bool(member)}: {problem}")
        self.option, self.problem, self.member = option, problem, member


class DamagedFileError(ArtifactError):
    """A file does not have the bytes that Kareus wrote: it was changed, truncated or written by another program."""


class EngineError(KareusError):
    """A run that cannot start or go on: a schedule of another workload, a missing library, ranks that disagree."""


def refused_by_system(error: OSError) -> str:
    """What the system refused, in one line; of a rename, the file that was meant and not the temporary one."""
    where = error.filename2 or error.filename
    reason = error.strerror or " ".join(str(error).split())
    if isinstance(error, (ConnectionError, TimeoutError)):
        return one_line(f"{reason}; check that the other process runs, and that its machine can be reached.")
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return one_line(f"{f'{where}: ' if where else ''}{reason}; move what is there away, or give another path.")
    return one_line(
        f"{f'{where}: ' if where else ''}{reason}; check the path, its permissions and the space on its disk."
    )
