"""`python -m kareus`: how the workflow calls a stage; it dies with the workflow instead of outliving it."""

import sys

from kareus.artifacts.files import die_with_parent
from kareus.cli import main

if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
