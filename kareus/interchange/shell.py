"""Arguments of a program in a shell script, without running anything of it.

Words are those of `shlex`. Variables, arrays, integers in `$(( ))`, and comparisons of texts and numbers are followed
as scripts of trainers write them. A variable that the script does not set, and what a command prints, is unknown: it
stands for nothing, and is reported.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kareus.errors import ConfigError

BREAKS = ";&|\n"
"""Characters that end a command."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
DECLARING = ("export", "local", "declare", "readonly", "typeset")
REFERENCE = re.compile(r"\$(?:\{([^{}]*)\}|([A-Za-z_]\w*|[0-9@*#?]))")
DEFAULTED = re.compile(r"(\w+)(?::?[-=](.*))?", re.DOTALL)
SUM = "="
"""Begins a reference to `Script.sums`, as no variable of bash begins."""
ARRAY = re.compile(r"(\w+)\[[@*]\]")
MOST_EXPANSIONS = 100
"""Depth of variables in variables; a variable that names itself would never end."""
MOST_CHARACTERS = 1_000_000
"""Characters that a script may stand for; doubling a variable forty times would fill the memory."""
PROGRAM = re.compile(r".*\.py|torchrun|deepspeed|accelerate")
SLURM = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
SLURM_SHORT = {"-N": "--nodes"}
"""Long names of options of Slurm that say how large a job is."""
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
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
class Script:
    """What is known of a script while it is read."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    """Words of each variable."""
    sums: list[str] = field(default_factory=list)
    """Texts in `$(( ))`, by the number of their place."""
    commands: list[list[str]] = field(default_factory=list)
    """Words of each command, variables replaced."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Variables that nothing sets, and conditions that nothing decides, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a script gives a program."""

    values: dict[str, list[str]]
    """Words after each option, by its name without dashes in front; an option given twice has its last ones."""
    unknown: tuple[str, ...]
    """Variables and conditions that could not be followed."""


def read_arguments(text: str) -> Arguments:
    """Return the options that a script, or a list of arguments, gives a program.

    Of a script these are the options of commands that start Python; where there is none, those in all of its variables.

    Raises:
        ConfigError: a quote or a bracket does not end, or variables stand for too much.

    Example:
        >>> read_arguments("TP=8; torchrun train.py --tensor-model-parallel-size $TP --swiglu").values
        {'tensor-model-parallel-size': ['8'], 'swiglu': []}
    """
    script = Script()
    for options in SLURM.findall(text):
        script.commands.append([SLURM_SHORT.get(word, word) for word in options.split()])
    slurm = list(script.commands)
    _run(script, _words(_prepared(text, script)))
    commands = script.commands[len(slurm) :]
    chosen = [words for words in commands if any(PROGRAM.fullmatch(word) for word in words)]
    if not any(word.startswith("--") for words in chosen for word in words):
        chosen = [*(words for words in script.variables.values()), *commands]
    values: dict[str, list[str]] = {}
    for words in [*slurm, *chosen]:
        values |= dict(_options(words))
    return Arguments(values=values, unknown=tuple(script.unknown))


def _options(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield options and the words after them."""
    name, after = None, list[str]()
    for word in words:
        if word.startswith("--") and len(word) > len("--"):
            if name is not None:
                yield name, after
            name, given, value = word[2:].partition("=")
            after = [value] if given else []
        elif PROGRAM.fullmatch(word):
            if name is not None:
                yield name, after
            name, after = None, []
        else:
            after = [*after, word]
    if name is not None:
        yield name, after


def _prepared(text: str, script: Script) -> str:
    """Return a script without comments and continued lines, with a name in the place of each `$(( ))` and `$( )`."""
    out, n, quote = list[str](), 0, ""
    while n < len(text):
        char, rest = text[n], text[n : n + 3]
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            out.append(" " if text[n + 1 : n + 2] == "\n" else text[n : n + 2])
            n += 2
            continue
        elif rest == "$((":
            end = _closed(text, n + 1)
            out.append(f"${{{SUM}{len(script.sums)}}}")
            script.sums.append(text[n + 3 : end - 1])
            n = end + 1
            continue
        elif rest[:2] == "$(" or char == "`":
            n = (_closed(text, n + 1) if char == "$" else _index(text, "`", n + 1)) + 1
            out.append("${command}")
            continue
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (not out or out[-1][-1:] in " \t\n;("):
            n = text.find("\n", n) if "\n" in text[n:] else len(text)
            continue
        elif rest[:2] == "<<" and (tag := HEREDOC.match(text, n)):
            ended = re.compile(rf"^\s*{tag[1]}\s*$", re.MULTILINE).search(text, tag.end())
            n = ended.end() if ended else len(text)
            continue
        out.append(char)
        n += 1
    return "".join(out)


def _closed(text: str, opened: int) -> int:
    """Return the place of the bracket that closes the one at `opened`."""
    depth = 0
    for n in range(opened, len(text)):
        depth += {"(": 1, ")": -1}.get(text[n], 0)
        if depth == 0:
            return n
    raise ConfigError(f"line {text.count(chr(10), 0, opened) + 1}: a bracket does not end")


def _index(text: str, char: str, start: int) -> int:
    place = text.find(char, start)
    if place < 0:
        raise ConfigError(f"line {text.count(chr(10), 0, start) + 1}: a backquote does not end")
    return place


def _words(text: str) -> list[str]:
    """Split a prepared script into words; line ends and brackets are words of their own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=f"{BREAKS}()<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words = list[str]()
    try:
        for word in lexer:
            words += list(word) if word and set(word) <= set(f"{BREAKS}()<>") else [word]
    except ValueError as error:
        raise ConfigError(f"line {lexer.lineno}: {error}") from error
    return words


def _run(script: Script, words: list[str]) -> None:
    """Follow assignments and conditions, and collect commands."""
    n, branches = 0, list[tuple[bool, bool]]()  # of each `if`: whether its branch is taken, whether one has been
    while n < len(words):
        taken = all(now for now, _ in branches)
        word = words[n]
        if word in BREAKS or word in ("then", "do", "done", "{", "}", "(", ")"):
            n += 1
        elif word in ("if", "elif"):
            end = next((m for m in range(n, len(words)) if words[m] == "then"), len(words))
            before = branches.pop()[1] if word == "elif" and branches else False
            holds = not before and _holds(script, words[n + 1 : end])
            branches.append((holds, before or holds))
            n = end + 1
        elif word == "else" and branches:
            branches[-1] = (not branches[-1][1], True)
            n += 1
        elif word == "fi":
            branches = branches[:-1]
            n += 1
        elif (assigned := ASSIGNMENT.fullmatch(word)) or word in DECLARING:
            n = _assigned(script, words, n, assigned, taken=taken) if assigned else n + 1
        else:
            end = next((m for m in range(n, len(words)) if words[m] in BREAKS), len(words))
            if taken:
                script.commands.append(_expanded(script, words[n:end]))
            n = end


def _assigned(script: Script, words: list[str], n: int, assigned: re.Match[str], *, taken: bool) -> int:
    """Set a variable to a word, or to the words in brackets; returns the place after them."""
    name, more, value = assigned.groups()
    end, items = n + 1, [value]
    if not value and words[n + 1 : n + 2] == ["("]:
        end = next((m for m in range(n, len(words)) if words[m] == ")"), len(words))
        items = [word for word in words[n + 2 : end] if word != "\n"]
        end += 1
    if taken:
        expanded = _expanded(script, items)
        script.variables[name] = [*script.variables.get(name, []), *expanded] if more else expanded
        if sum(map(len, script.variables[name])) > MOST_CHARACTERS:
            raise ConfigError(f"variable {name}: stands for more than {MOST_CHARACTERS:,} characters")
    return end


def _expanded(script: Script, words: list[str]) -> list[str]:
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
    if array := ARRAY.fullmatch(reference):
        reference = array[1]
    named = DEFAULTED.fullmatch(reference)
    name, default = (named[1], named[2]) if named else (reference, None)
    if name in script.variables:
        return " ".join(script.variables[name])
    if default is not None:
        return default
    script.unknown["a command's output" if name == "command" else f"${name}"] = None
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


def _holds(script: Script, words: list[str]) -> bool:
    """Whether a condition holds: a comparison, or whether a text is empty; one that is not known does not."""
    if any(word in BREAKS for word in words[:-1]) and {"&", "|"} & set(words):
        return _joined(script, words)
    plain = [word for word in words if word not in ("[", "[[", "]", "]]", "test") and word not in BREAKS]
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


def _joined(script: Script, words: list[str]) -> bool:
    """Whether conditions hold that `&&` and `||` join, from left to right."""
    parts, joints = [list[str]()], list[str]()
    for word in words:
        if word in "&|":
            if parts[-1]:
                joints.append(word)
                parts.append([])
        elif word not in BREAKS:
            parts[-1].append(word)
    holds = _holds(script, parts[0])
    for joint, part in zip(joints, parts[1:], strict=False):
        if part:
            other = _holds(script, part)
            holds = (holds and other) if joint == "&" else (holds or other)
    return holds
