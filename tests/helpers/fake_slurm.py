"""A Slurm of one node: commands for PATH that write down what is submitted, and run it here or refuse it.

Everything stands in the folder of the environment variable FAKE_SLURM: `<job>.json` is what was submitted,
and `<job>.state` what became of it. Jobs that ask for GPUs fail at once: there are none.

`sacct` answers once a job has ended that it has not told of yet: those who ask sleep ten seconds more after each answer
without news.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "sacct", "squeue", "srun", "sinfo", "scancel", "scontrol", "sacctmgr", "sshare")
FOLDER_VARIABLE = "FAKE_SLURM"
SCRIPT = """\
#!/bin/sh
case "{command} $*" in
    sbatch*|srun*|sacct*--parsable2*) exec "{python}" "{file}" {command} "$@" ;;
    sinfo*) printf 'PARTITION\\nmain*\\n' ;;
    *) echo ;;
esac
"""
"""A command: most of what is asked needs no Python, and Snakemake asks dozens of times."""
MOST_WAITED_S = 30.0
"""Time after which `sacct` answers without news."""


def install(folder: Path) -> Path:
    """Put the commands into `folder`; returns it, for PATH."""
    folder.mkdir(parents=True)
    for command in COMMANDS:
        script = folder / command
        script.write_text(SCRIPT.format(command=command, python=sys.executable, file=__file__))
        script.chmod(0o755)
    return folder


def submitted(folder: Path) -> list[dict]:
    """What was submitted, in order."""
    paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in paths]


def sbatch(folder: Path, arguments: list[str]) -> str:
    """Submit; returns the number of the job."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for short, name in (("-t", "--time"), ("-D", "--chdir"), ("-A", "--account"), ("-p", "--partition")):
        parser.add_argument(short, name)
    for name in ("job-name", "output", "export", "comment", "mem", "nodes", "ntasks", "cpus-per-task", "gpus", "wrap"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--parsable", action="store_true")
    parser.add_argument("--no-requeue", action="store_true")
    job = vars(parser.parse_args(arguments))
    number = 1 + len(list(folder.glob("*.json")))
    while True:  # two submissions may come at once
        try:
            with (folder / f"{number}.json").open("x") as file:
                json.dump(job, file)
            break
        except FileExistsError:
            number += 1
    state = folder / f"{number}.state"
    if job["gpus"]:
        state.write_text("FAILED")
    else:
        state.write_text("RUNNING")
        command = f'sh -c "$WRAPPED" > "{job["output"]}" 2>&1 && echo COMPLETED > "{state}" || echo FAILED > "{state}"'
        environment = os.environ | {"WRAPPED": job["wrap"], "SLURM_JOB_ID": str(number)}
        subprocess.Popen(
            ["sh", "-c", command],
            cwd=job["chdir"],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return f"{number}"


def srun(arguments: list[str]) -> None:
    """Run the command behind the options, all of which start with a dash."""
    first = next(i for i, argument in enumerate(arguments) if not argument.startswith("-"))
    os.execvp(arguments[first], arguments[first:])


def states(folder: Path) -> str:
    """What became of every job, as `sacct --parsable2` says it, once one has ended that was running when last asked."""
    told = folder / "told"
    known = set(told.read_text().split()) if told.exists() else set()
    until_s = time.monotonic() + MOST_WAITED_S
    while True:
        found = {state.stem: state.read_text().strip() or "RUNNING" for state in folder.glob("*.state")}
        ended = {job for job, state in found.items() if state != "RUNNING"}
        if ended - known or time.monotonic() > until_s:
            told.write_text(" ".join(ended))
            return "\n".join(f"{job}|{state}" for job, state in found.items())
        time.sleep(0.05)


def main() -> None:
    """Be the command that is named first, where it is one that needs more than a shell."""
    command, *arguments = sys.argv[1:]
    folder = Path(os.environ[FOLDER_VARIABLE])
    answer = ""
    if command == "sbatch":
        answer = sbatch(folder, arguments)
    elif command == "srun":
        srun(arguments)
    elif command == "sacct":
        answer = states(folder)
    sys.stdout.write(answer + "\n")


if __name__ == "__main__":
    main()
