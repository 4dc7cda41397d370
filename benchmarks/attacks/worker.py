"""A process in which commands of the attacked checkout are called in a row: `python -m attacks.worker SURFACE FOLDER`.

It reads the number of a case from each line of standard input and answers with a line of JSON: what failed.
"""

import importlib
import json
import os
import resource
import sys
from pathlib import Path

MOST_MEMORY = 12 * 2**30
"""Address space, so that an absurd number ends in an error instead of taking the machine's memory."""


def main() -> None:
    """Prepare, say so, answer."""
    surface = importlib.import_module(f"attacks.surfaces.{sys.argv[1]}")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.chdir(sys.argv[2])
    attempt = surface.prepare(Path(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(attempt(int(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
