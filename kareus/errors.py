"""The errors a user can act on. The command line prints one line for each and exits with 2."""


class KareusError(Exception):
    """Base of everything raised on purpose. The message says where, what, what is allowed, what to do."""


class ConfigError(KareusError):
    """A key, group or value of the configuration that cannot be used."""


class RefusedWorkloadError(ConfigError):
    """A well-formed combination that cannot run: something does not divide, or does not fit."""


class ScheduleError(KareusError):
    """An order of a pipeline's instructions that cannot run."""


class DeviceError(KareusError):
    """A GPU, or its driver, that refuses what was asked of it, or is in use by somebody else."""


class ArtifactError(KareusError):
    """A file that is missing, corrupt, of another schema, or of another workload."""


class EngineError(KareusError):
    """A run that cannot start or go on: a schedule of another workload, a missing library, ranks that disagree."""


def refused_by_system(error: OSError) -> str:
    """What the system refused, in one line; of a rename, the file that was meant and not the temporary one."""
    where = error.filename2 or error.filename
    reason = error.strerror or " ".join(str(error).split())
    if isinstance(error, (ConnectionError, TimeoutError)):
        return f"{reason}; check that the other process runs, and that its machine can be reached."
    return f"{f'{where}: ' if where else ''}{reason}; check the path, its permissions and the space on its disk."
