"""Writing an answer: its tables as Parquet, the whole as JSON."""

import json
from pathlib import Path

from kareus.adviser.answers import Advice
from kareus.adviser.plain import plain
from kareus.adviser.tables import ADVISED_LAYOUTS, ADVISED_PLANS, layouts_frame, plans_frame
from kareus.artifacts.files import write_text
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import write_table
from kareus.testbed.protocol import open_testbed

ANSWER = "advice.json"
"""Name of the file with the whole answer."""


def provenance_of(advice: Advice) -> Provenance:
    """Return where an answer comes from: the GPU model behind a simulated testbed."""
    base = advice.question.base
    testbed = open_testbed(base.testbed, base.gpu, base.protocol.predecessor_power_w, base.seed)
    return Provenance(config_hash=content_hash(base), testbed=testbed.identity, seed=base.seed)


def write_advice(folder: Path, advice: Advice) -> None:
    """Write the tables and the answer into a folder."""
    provenance = provenance_of(advice)
    write_table(folder / f"{ADVISED_LAYOUTS.name}.parquet", layouts_frame(advice), ADVISED_LAYOUTS, provenance)
    write_table(folder / f"{ADVISED_PLANS.name}.parquet", plans_frame(advice), ADVISED_PLANS, provenance)
    write_text(folder / ANSWER, json.dumps(plain(advice), indent=1, allow_nan=False) + "\n")
