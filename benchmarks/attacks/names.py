"""Hostile names: of GPUs, models, campaigns, files and folders.

Nothing is written outside the results, nothing is executed, no traceback and no control character is printed; what is
accepted, works.
"""

import ast
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attacks.commands import Done, broken_promise, neither_done_nor_refused
from attacks.plans import SEAL
from attacks.rows import Row, Try, row
from attacks.surfaces.huggingface import CONFIG
from attacks.target import CAMPAIGN, Target, workload_in

PLANNED = (
    "gpu.name=../../x",
    "gpu.name=OUTSIDE/x",
    "gpu.name='a b'",
    "gpu.name='a\\nb'",
    "gpu.name=..",
    "gpu.name=''",
    "model.name=../../x",
    "model.name='{x}'",
    "model.name='{wildcards.workload}'",
    "model.name=..",
    "model.name='$(touch owned)'",
)
"""Overrides of the small campaign that give a name; all of it is planned. `OUTSIDE` is a folder above it."""
RESOLVED = (
    "gpu.name='\x1b[31mred'",
    "model.name='\x9b31m'",
    "model.name=" + "x" * 5000,
    "model='../../../etc/passwd'",
    "model='\x1b[31m/config.json'",
    "model=hostile {x}/config.json",
    "model=hostile ../config.json",
    "model=hostile \x1b[31m/config.json",
    "model=hostile a\nb/config.json",
    "gpu='../model/qwen3-1.7b'",
    "testbed=../../x",
    "search=../search/mine",
)
"""Overrides of `kareus resolve`; those with `hostile` name a configuration of Hugging Face, which is there."""
CAMPAIGNS = ("..", ".", "...", "-n", "a b", "{x}", "a\nb", "a\x1b[31mb", "../../x", "con'", "é")
"""Names of campaigns, each of which has a file."""
CLONES = ("a {x} b", "it's", "a\nb", "100%s $HOME `id`")
"""Names of folders that hold a clone."""
COMMANDS = (
    ("select", "\x1b[31mfastest", "{w}"),
    ("select", "fastest", "no\x1b[31mwhere"),
    ("select", "fastest", "{w}", "--method", "\x1b[31mkareus"),
    ("check-plan", "no\x1b[31mwhere.json"),
    ("export", "{w}/plan/fastest.json", "--format", "\x1b[31m"),
    ("validate", "--reference", "no\x1b[31mwhere.csv"),
    ("fit", "--reference", "{w}/config/plan.yaml", "--gpu", "\x1b[31m"),
    ("\x1b[31mselect",),
    ("resolve", "\x1b[31m"),
    ("resolve", "--config-dir", "no\x1b[31mwhere"),
    ("campaign", "\x1b[31m"),
    ("train", "--workload", "no\x1b[31mwhere", "--iterations", "1", "--output", "x", "--communicator", "gloo"),
    ("train", "{w}/plan/fastest.json", "--iterations", "1", "--output", "x", "--clocks", "\x1b[31m"),
    ("results", "no\x1b[31mwhere"),
    ("clocks", "show", "\x1b[31m"),
)
"""Commands with control characters in what they will quote."""
SELECTORS = (
    "fastest\n[__import__('os').system('touch owned')]\n#",
    "fastest\x1b[31m",
    "fastest\r[]",
    "fastest\u2028[]",
)
"""Texts that a plan says it was selected by."""


def attacks(target: Target) -> Iterator[Row]:
    """Give every name."""
    tries = [Try(ascii(text), partial(_planned, target, text)) for text in target.some([*PLANNED])]
    tries += [Try(ascii(text)[:60], partial(_resolved, target, text)) for text in RESOLVED]
    tries += [Try(f"campaign {name!a}", partial(_campaign, target, name)) for name in CAMPAIGNS]
    tries += [Try(f"clone in {name!a}", partial(_clone, target, name)) for name in target.some([*CLONES])]
    yield row("hostile names of GPUs, models, campaigns and clones", tries, target.jobs)
    tries = [Try(ascii(" ".join(command))[:60], partial(_command, target, command)) for command in COMMANDS]
    tries += [Try(f"selector {text!a}, exported", partial(_exported, target, text)) for text in SELECTORS]
    yield row("control characters on the command line and in plans", tries, target.jobs)


def _planned(target: Target, override: str) -> str:
    folder = target.bare("deep/er/clone")
    before = _outside(folder)
    override = override.replace("OUTSIDE", str(folder.parent))
    done = target.snakemake(folder, f"overrides={json.dumps([override])}")
    return _escaped(folder, before) or _broken_run(done, folder)


def _resolved(target: Target, override: str) -> str:
    folder = target.bare("deep/er/clone")
    if override.startswith("model=hostile "):
        override = override.replace("hostile ", "")
        config = folder / override.removeprefix("model=")
        config.parent.mkdir(exist_ok=True)
        config.write_text(json.dumps(CONFIG))
        override = f"model='{override.removeprefix('model=')}'"
    before = _outside(folder)
    done = target.kareus(folder, "resolve", override, "microbatch_size=2", "--output", "results")
    return _escaped(folder, before) or neither_done_nor_refused(done)


def _campaign(target: Target, name: str) -> str:
    folder = target.bare("deep/er/clone")
    if "/" not in name:
        (folder / "config/campaign" / f"{name}.yaml").write_text(CAMPAIGN)
    before = _outside(folder)
    done = target.kareus(folder, "campaign", *(["--"] if name.startswith("-") else []), name, "--output", "results")
    found = [str(path.relative_to(folder / "results")) for path in folder.rglob("campaign.parquet")]
    if done.code == 0 and (len(found) != 1 or found[0].count("/") != 2):  # noqa: PLR2004 - campaigns/NAME/campaign.parquet
        return f"accepted, and written to results/{', '.join(found)}"
    return _escaped(folder, before) or neither_done_nor_refused(done)


def _clone(target: Target, name: str) -> str:
    whole = target.bare("deep/er/clone")
    folder = whole.with_name(name)
    whole.rename(folder)
    before = _outside(folder)
    done = target.snakemake(folder)
    again = target.snakemake(folder) if done.code == 0 else done
    failure = _escaped(folder, before) or _broken_run(done, folder)
    return failure or ("" if again.code or again.idle else "the next run finds something to do")


def _command(target: Target, command: tuple[str, ...]) -> str:
    folder = target.planned()
    workload = workload_in(folder).relative_to(folder)
    return neither_done_nor_refused(target.kareus(folder, *(text.format(w=workload) for text in command)))


def _exported(target: Target, selector: str) -> str:
    """A selector that breaks out of the comment of an exported file."""
    folder = target.planned()
    plan, output = workload_in(folder) / "plan/fastest.json", folder / "exported.py"
    document = json.loads(plan.read_text()) | {"selector": selector}
    plan.write_text(json.dumps(document))
    if "seal" in document:
        target.python(folder, "-c", SEAL, plan)
    done = target.kareus(folder, "export", plan, "--format", "zeus", "--output", output)
    if done.code == 0 and not _one_literal(output.read_text()):
        return "the exported file holds more than a comment and a literal"
    return neither_done_nor_refused(done)


def _one_literal(text: str) -> bool:
    try:
        is_list = isinstance(ast.literal_eval(text), list)
    except (SyntaxError, ValueError):
        return False
    return is_list and sum(not line.startswith((" ", "[", "]")) for line in text.splitlines()) == 1


def _broken_run(done: Done, folder: Path) -> str:
    """What a run of Snakemake did that none may; one that is refused before it writes anything is fine."""
    broken = broken_promise(done)
    if broken or done.code == 0:
        return broken
    return f"fails midway: {done.last_line}" if (folder / "results").exists() else ""


def _outside(folder: Path) -> set[str]:
    """Everything in and around a copy that no run has any business with."""
    own = {folder / name for name in ("results", ".snakemake")}
    paths = {path for path in (*folder.parents[1].rglob("*"),) if not any(path == o or o in path.parents for o in own)}
    return {str(path) for path in paths if "__pycache__" not in path.parts}


def _escaped(folder: Path, before: set[str]) -> str:
    added = sorted(_outside(folder) - before)
    escaped = [Path(path).name for path in added]
    return f"wrote outside the results: {', '.join(escaped[:3])}" if escaped else ""
