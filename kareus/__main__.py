"""`python -m kareus`: how the workflow calls a stage; it dies with the workflow instead of outliving it."""

import sys

from kareus.processes import die_with_parent, run_forked

if __name__ == "__main__":
    die_with_parent()
    code = run_forked(sys.argv[1:])
    if code is None:
        from kareus.cli import main

        code = main()
    sys.exit(code)
