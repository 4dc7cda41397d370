"""Arguments of a program in a shell script, without running anything of it.

Variables, arrays, integers in `$(( ))`, and comparisons of texts and numbers (`if`, `case`, `&&`, `||`) are followed
as scripts of trainers write them. A variable that the script does not set, and what a command prints, is unknown: it
stands for nothing, and is reported.
"""

import ast
import fnmatch
import operator
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kareus.errors import ConfigError
from kareus.interchange.shell_words import BRACKETS, BREAKS, PRINTED, SUM, script_words

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
DECLARING = ("export", "local", "declare", "readonly", "typeset")
REFERENCE = re.compile(r"\$(?:\{([^{}]*)\}|([A-Za-z_]\w*|[0-9@*#?]))")
INSTEAD = re.compile(r"(\w+)(?::?([-=+?])(.*))?", re.DOTALL)
"""A variable, and what stands for it where it is not set (`-`, `=`), where it is (`+`), or what is said then (`?`)."""
ITEM = re.compile(r"(\w+)\[([@*]|\d+)\]")
"""An array, or one of its words by number."""
MOST_EXPANSIONS = 100
"""Depth of variables in variables; a variable that names itself would never end."""
MOST_SHOWN = 60
"""Characters that are shown of a command whose output is not followed."""
MOST_CHARACTERS = 1_000_000
"""Characters that a script may stand for; doubling a variable forty times would fill the memory."""
PROGRAM = re.compile(r".*\.py|torchrun|deepspeed|accelerate")
INTERPRETER = re.compile(r"(.*/)?(ba|z|da)?sh|(.*/)?python[\d.]*|srun|mpirun|mpiexec|numactl|nsys|env|nohup")
"""Programs that start others; what stands before them are their starters' options."""
SHORT_OPTION = re.compile(r"-[A-Za-z].*")
WRITING = ("echo", "printf")
"""Commands whose words are texts for people."""
TESTS = ("[", "[[", "test")
SLURM = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
SLURM_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
"""Long names of options of Slurm that say how large a job is."""
SLURM_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS",),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus": ("SLURM_GPUS",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}
"""Variables that Slurm sets of its options (`man sbatch`, OUTPUT ENVIRONMENT VARIABLES)."""
SLURM_GPUS = re.compile(r"--(gres|gpus|gpus-per-node)=(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)(?:\(.*)?")
"""GPUs as Slurm is told of them, with or without their type: `--gres=gpu:h100:8`."""
ENDS = {"}": "{", "fi": "if", "esac": "case"}
"""Words that end a branch, with those that begin it."""
PASSED = ("then", "do", "done", *DECLARING, *BRACKETS)
OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "-eq": lambda a, b: int(a) == int(b),
    "-ne": lambda a, b: int(a) != int(b),
    "-lt": lambda a, b: int(a) < int(b),
    "-le": lambda a, b: int(a) <= int(b),
    "-gt": lambda a, b: int(a) > int(b),
    "-ge": lambda a, b: int(a) >= int(b),
}


@dataclass(slots=True)
class Branch:
    """An `if`, a `case` or a group in braces that has begun."""

    kind: str
    is_taken: bool
    """Whether the commands that follow are run."""
    was_taken: bool = False
    """Whether a branch before was."""
    subject: str = ""
    """Of a `case`: the text that its patterns are compared with."""


@dataclass(slots=True)
class Script:
    """What is known of a script while it is read."""

    words: tuple[str, ...]
    sums: tuple[str, ...]
    """Texts in `$(( ))` and `$( )`, by the number of their place."""
    variables: dict[str, list[str]] = field(default_factory=dict)
    """Words of each variable."""
    commands: list[list[str]] = field(default_factory=list)
    """Words of each command, variables replaced."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Variables that nothing sets, and conditions that nothing decides, in order."""
    branches: list[Branch] = field(default_factory=list)
    succeeded: bool = True
    """Whether the last condition held; what `&&` and `||` go by."""

    def place_of(self, ends: Sequence[str], start: int) -> int:
        """Return the place of the first word among `ends` from `start` on, or that after the last."""
        return next((n for n in range(start, len(self.words)) if self.words[n] in ends), len(self.words))

    @property
    def runs(self) -> bool:
        """Whether all branches that have begun are taken."""
        return all(branch.is_taken for branch in self.branches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a script gives a program."""

    values: dict[str, list[str]]
    """Words after each option, by its name without dashes in front; an option given twice has its last ones."""
    unknown: tuple[str, ...]
    """Variables, conditions and programs that were not followed."""
    repeated: Mapping[str, tuple[list[str], ...]] = field(default_factory=dict)
    """All words after options that one command gives more than once, with others each time, in order."""


def read_arguments(text: str) -> Arguments:
    """Return the options that a script, or a list of arguments, gives a program.

    Of a script these are the options of the command that starts Python, the one with most options if there are several;
    where there is none, those in all of its variables.

    Raises:
        ConfigError: a quote or a bracket does not end, or variables stand for too much.

    Example:
        >>> read_arguments("TP=8; torchrun train.py --tensor-model-parallel-size $TP --swiglu").values
        {'tensor-model-parallel-size': ['8'], 'swiglu': []}
    """
    read = script_words(text)
    slurm = [options.partition(" #")[0].replace("--gres ", "--gres=").split() for options in SLURM.findall(text)]
    script = Script(words=read.words, sums=read.sums, variables=_of_slurm(slurm))
    _run(script)
    programs = [words for words in script.commands if any(PROGRAM.fullmatch(word) for word in words)]
    programs.sort(key=lambda words: -sum(word.startswith("--") for word in words))
    chosen = programs[:1]
    if not any(word.startswith("--") for words in chosen for word in words):
        chosen = [*script.variables.values(), *script.commands]
    else:
        started = [next(word for word in words if PROGRAM.fullmatch(word)) for words in programs[1:]]
        script.unknown |= dict.fromkeys(f"a further program, {name}" for name in started)
    values: dict[str, list[str]] = {}
    repeated: dict[str, tuple[list[str], ...]] = {}
    for words in [*slurm, *chosen]:
        options = list(_options(words))
        values |= dict(options)
        for name in values:
            given = tuple(after for option, after in options if option == name)
            repeated |= {name: given} if any(after != given[-1] for after in given) else {}
    return Arguments(values=values, unknown=tuple(script.unknown), repeated=repeated)


def _of_slurm(lines: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    """Return the variables that a batch script's options set; a range of nodes sets none."""
    said = {name: after[0] for words in lines for name, after in _options(words) if after and after[0].isdigit()}
    return {
        variable: [said[name]] for name, variables in SLURM_VARIABLES.items() if name in said for variable in variables
    }


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield options and the words after them."""
    name, after = None, list[str]()
    of_slurm = not any(map(PROGRAM.fullmatch, words)) or "srun" in words
    for word in words:
        if of_slurm and word[:2] in SLURM_SHORT and (word[2:].isdigit() or not word[2:]):
            word = f"{SLURM_SHORT[word[:2]]}={word[2:]}".rstrip("=")  # noqa: PLW2901 - the same option by its long name
        if of_slurm and (gpus := SLURM_GPUS.fullmatch(word)):
            word = f"--{gpus[1].replace('gres', 'gpus-per-node')}={gpus[2]}"  # noqa: PLW2901 - as above
        if word.startswith("--") and len(word) > len("--"):
            if name is not None:
                yield name, after
            name, given, value = word[2:].partition("=")
            after = [value] if given else []
            if given:
                yield name, after
                name = None
        elif PROGRAM.fullmatch(word) or INTERPRETER.fullmatch(word) or SHORT_OPTION.fullmatch(word):
            if name is not None:
                yield name, after
            name, after = None, []
            of_slurm = of_slurm and not PROGRAM.fullmatch(word)
        else:
            after = [*after, word]
    if name is not None:
        yield name, after


def _run(script: Script) -> None:
    """Follow assignments and conditions, and collect commands."""
    n = 0
    while n < len(script.words):
        word = script.words[n]
        if word in FOLLOWED:
            n = FOLLOWED[word](script, n)
        elif word in BREAKS:
            n, script.succeeded = n + 1, script.succeeded or script.runs
        elif word in PASSED:
            n += 1
        elif assigned := ASSIGNMENT.fullmatch(word):
            n = _assigned(script, n, assigned)
        else:
            n = _command(script, n)


def _command(script: Script, n: int) -> int:
    """Collect a command, or decide a condition; returns the place after it."""
    words = script.words
    end = script.place_of((*BREAKS, ")", "{"), n)
    if words[n] == "[[":
        end = min(script.place_of(("]]",), n) + 1, len(words))
    if not script.runs:
        return end
    if words[n] in TESTS:
        script.succeeded = _holds(script, words[n:end])
        return end
    script.succeeded = words[n] != "false"
    if words[n] not in WRITING:
        script.commands.append(_expanded(script, [word for word in words[n:end] if word not in BRACKETS]))
    return end


def _joined_command(script: Script, n: int) -> int:
    """Go past `&&` or `||`, and past the command after it where that is not run."""
    runs = script.succeeded is (script.words[n] == "&&")
    after = next((m for m in range(n + 1, len(script.words)) if script.words[m] != "\n"), len(script.words))
    if runs or not script.runs:
        return after
    if script.words[after : after + 1] == ("{",):
        script.branches.append(Branch(kind="{", is_taken=False))
        return after + 1
    end = script.place_of(BREAKS, after)
    return end if "(" not in script.words[after:end] else script.place_of((")",), after) + 1


def _condition(script: Script, n: int) -> int:
    """Begin a branch of an `if`; returns the place of its first command."""
    word, branches = script.words[n], script.branches
    if word == "else":
        if branches:
            branches[-1] = Branch(kind="if", is_taken=not branches[-1].was_taken, was_taken=True)
        return n + 1
    end = script.place_of(("then",), n)
    before = branches.pop().was_taken if word == "elif" and branches else False
    holds = script.runs and not before and _holds(script, script.words[n + 1 : end])
    branches.append(Branch(kind="if", is_taken=holds, was_taken=before or holds))
    return end + 1


def _case(script: Script, n: int) -> int:
    """Begin a `case`; returns the place of the first command of its first branch."""
    end = script.place_of(("in",), n)
    subject = "".join(_expanded(script, script.words[n + 1 : end])) if script.runs else ""
    script.branches.append(Branch(kind="case", is_taken=False, subject=subject))
    return _pattern(script, end + 1)


def _pattern(script: Script, n: int) -> int:
    """Begin a branch of a `case` by its patterns; returns the place of its first command."""
    while n < len(script.words) and script.words[n] in ("\n", "("):
        n += 1
    if script.words[n : n + 1] == ("esac",) or not script.branches:
        return n
    end, branch = script.place_of((")",), n), script.branches[-1]
    patterns = [word for word in script.words[n:end] if word != "|"]
    branch.is_taken = not branch.was_taken and any(fnmatch.fnmatchcase(branch.subject, pattern) for pattern in patterns)
    branch.was_taken = branch.was_taken or branch.is_taken
    return end + 1


def _group(script: Script, n: int) -> int:
    """Begin a group in braces."""
    script.branches.append(Branch(kind="{", is_taken=True))
    return n + 1


def _ended(script: Script, n: int) -> int:
    """End a branch, if the one that began last is of this kind."""
    if script.branches and script.branches[-1].kind == ENDS[script.words[n]]:
        script.branches.pop()
    return n + 1


def _next_pattern(script: Script, n: int) -> int:
    """Go past the end of a branch of a `case`."""
    return _pattern(script, n + 1)


def _assigned(script: Script, n: int, assigned: re.Match[str]) -> int:
    """Set a variable to a word, or to the words in brackets; returns the place after them."""
    name, more, value = assigned.groups()
    words, is_array, end = script.words, False, n + 1
    items: Sequence[str] = [value]
    if not value and words[n + 1 : n + 2] == ("(",):
        end, is_array = script.place_of((")",), n), True
        items = [word for word in words[n + 2 : end] if word != "\n"]
        end += 1
    if script.runs:
        script.succeeded = True
        expanded, before = _expanded(script, items), script.variables.get(name, [])
        if more and is_array:
            expanded = [*before, *expanded]
        elif more:
            expanded = (" ".join(before) + _text(script, value, 0)).split()
        script.variables[name] = expanded
        if sum(map(len, expanded)) > MOST_CHARACTERS:
            raise ConfigError(f"variable {name}: stands for more than {MOST_CHARACTERS:,} characters")
    return end


def _expanded(script: Script, words: Sequence[str]) -> list[str]:
    """Return words with variables replaced, split where these have spaces."""
    return [part for word in words for part in _text(script, word, 0).split()]


def _text(script: Script, text: str, depth: int) -> str:
    """Return a text with variables replaced, and those in what they stand for."""
    if depth > MOST_EXPANSIONS:
        raise ConfigError("a variable names itself")

    def value(match: re.Match[str]) -> str:
        return _value(script, match[1] or match[2] or "", depth)

    replaced = REFERENCE.sub(value, text)
    if len(replaced) > MOST_CHARACTERS:
        raise ConfigError(f"variables stand for more than {MOST_CHARACTERS:,} characters")
    return replaced if replaced == text else _text(script, replaced, depth + 1)


def _value(script: Script, reference: str, depth: int) -> str:
    """Return what stands for a reference; nothing where that is not known."""
    if reference.startswith(SUM):
        return _sum(script, script.sums[int(reference.removeprefix(SUM))], depth)
    if reference.startswith(PRINTED):
        command = textwrap.shorten(script.sums[int(reference.removeprefix(PRINTED))], MOST_SHOWN, placeholder=" ...")
        script.unknown[f"what `{command}` prints"] = None
        return ""
    place = None
    if item := ITEM.fullmatch(reference):
        reference, place = item[1], int(item[2]) if item[2].isdigit() else None
    named = INSTEAD.fullmatch(reference)
    name, kind, other = named.groups() if named else (reference, None, None)
    words = script.variables.get(name)
    if words is not None and (words or kind is None):
        chosen = words if place is None else words[place : place + 1]
        return str(other) if kind == "+" else " ".join(chosen)
    if kind == "=":
        script.variables[name] = _text(script, str(other), depth + 1).split()
    if kind in ("-", "=", "+"):
        return "" if kind == "+" else str(other)
    script.unknown[f"${name}"] = None
    return ""


def _sum(script: Script, text: str, depth: int) -> str:
    """Return the value of whole numbers and variables joined by + - * / %; nothing where that is not known."""
    plain = _text(script, text, depth + 1)
    plain = re.sub(r"[A-Za-z_]\w*", lambda match: _value(script, match[0], depth + 1) or "?", plain)
    try:
        return str(_number(ast.parse(plain.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        script.unknown[f"$(({text}))"] = None
        return ""


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and abs(value) < MOST_CHARACTERS**2:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_number(left), _number(right))
    raise ValueError


def _holds(script: Script, words: Sequence[str]) -> bool:
    """Whether conditions hold that `&&` and `||` join, from left to right; one that is not known does not."""
    joints = [word for word in words if word in ("&&", "||")]
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "||"):
            parts.append([])
        elif word not in (*BREAKS, *TESTS, "]", "]]"):
            parts[-1].append(word)
    holds = _compares(script, parts[0])
    for joint, part in zip(joints, parts[1:], strict=True):
        if holds is (joint == "&&"):
            holds = _compares(script, part)
    return holds


def _compares(script: Script, plain: list[str]) -> bool:
    """Whether a comparison holds, or whether a text is empty."""
    before = len(script.unknown)
    texts = [_text(script, word, 0) for word in plain]
    is_decided = len(script.unknown) == before
    match plain, texts:
        case ["-z" | "-n" as wanted, _], [_, text]:
            return (not text) is (wanted == "-z")
        case [_, compare, _], [left, _, right] if compare in COMPARISONS and is_decided:
            try:
                return COMPARISONS[compare](left, right)
            except ValueError:
                pass
    script.unknown[f"the condition '{' '.join(plain)}'"] = None
    return False


FOLLOWED: Mapping[str, Callable[[Script, int], int]] = {
    "if": _condition,
    "elif": _condition,
    "else": _condition,
    "case": _case,
    ";;": _next_pattern,
    "{": _group,
    "&&": _joined_command,
    "||": _joined_command,
    **dict.fromkeys(ENDS, _ended),
}
"""What follows a word of the shell: from its place to the place after what belongs to it."""
