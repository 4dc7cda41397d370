"""Words of a shell script, without comments, continued lines, redirections, and what would have to be computed."""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kareus.errors import ConfigError

BREAKS = (";", "&", "|", "\n", "&&", "||", ";;")
"""Words that end a command."""
BRACKETS = ("(", ")")
SUM = "="
PRINTED = "%"
"""Begin references to `ScriptWords.sums`, of sums and of what commands print, as no variable of bash begins."""
MARKS = re.compile(r"&&|\|\||;;|.", re.DOTALL)
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
REDIRECTION = re.compile(r"(?:\d+|&)?(?:>>|>\||>|<<<|<)[ \t]*(?:&\s*[\d-]+|(?:\"[^\"]*\"|'[^']*'|[^\s;&|()'\"])+)")
"""Where a command's output goes, or its input comes from: a file, a text, or another stream."""
SPACED = re.compile(r"\$\{\w+:?[-=+][^{}'\"\n]* [^{}'\"\n]*\}")
"""A reference with spaces in what stands for its variable."""
PLAIN = re.compile(r"[^\\$`#<>&\d'\"]+")
"""What begins nothing that is computed, left out or quoted."""
UNQUOTED = re.compile(r"[;&|\n()]+|[^;&|\n() \t\r]+")
"""A word of a script without quotes, in which no spaces are but those between words."""
PLACEHOLDER = re.compile(r"<([\w./ -]*\w)>")
"""What a template has where its user writes a value, such as `<path>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptWords:
    """A script in words."""

    words: tuple[str, ...]
    """Line ends, brackets and what joins commands are words of their own."""
    sums: tuple[str, ...]
    """Texts in `$(( ))` and `$( )`, by the number of their place."""


def script_words(text: str) -> ScriptWords:
    """Split a script into words.

    Raises:
        ConfigError: a quote or a bracket does not end.

    Example:
        >>> script_words("TP=8 && run --tp $TP > log # 8").words
        ('TP=8', '&&', 'run', '--tp', '$TP')
    """
    sums = list[str]()
    prepared = _prepared(text.replace("\r\n", "\n"), sums)
    if not any(char in prepared for char in "'\"\\"):
        return ScriptWords(words=tuple(_marked(UNQUOTED.findall(prepared))), sums=tuple(sums))  # in a tenth of the time
    lexer = shlex.shlex(prepared, posix=True, punctuation_chars=";&|\n()")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return ScriptWords(words=tuple(_marked(lexer)), sums=tuple(sums))
    except ValueError as error:
        raise ConfigError(f"line {lexer.lineno}: {error}") from error


def _marked(words: Iterable[str]) -> Iterator[str]:
    """Yield words, those apart that together join commands."""
    for word in words:
        yield from MARKS.findall(word) if word and set(word) <= set(";&|\n()") else [word]


def _prepared(text: str, sums: list[str]) -> str:
    """Return a script without what `_computed` and `_left_out` take from it."""
    out, n, quote = list[str](), 0, ""
    while n < len(text):
        if plain := PLAIN.match(text, n):
            out.append(plain[0])
            n = plain.end()
            continue
        taken = None
        if quote != "'":
            taken = _computed(text, n, sums)
            if taken is None and not quote:
                taken = _left_out(text, n, begins=not out or out[-1][-1:] in " \t\n;&|(")
        if taken is not None:
            instead, n = taken
            out.append(instead)
            continue
        char = text[n]
        if char in "'\"":
            quote = "" if char == quote else quote or char
        out.append(char)
        n += 1
    return "".join(out)


def _computed(text: str, n: int, sums: list[str]) -> tuple[str, int] | None:
    """Return what stands for a continued line, `$(( ))` or `$( )` at a place, and the place after it."""
    char, two = text[n], text[n : n + 2]
    if char == "\\":
        return (" " if two == "\\\n" else two), n + 2
    if text[n : n + 3] == "$((":
        end = _closed(text, n + 1)
        sums.append(text[n + 3 : end - 1])
        return f"${{{SUM}{len(sums) - 1}}}", end + 1
    if two == "$(":
        return _printed(text[n + 2 : (end := _closed(text, n + 1))], sums), end + 1
    return (_printed(text[n + 1 : (end := _index(text, "`", n + 1))], sums), end + 1) if char == "`" else None


def _printed(command: str, sums: list[str]) -> str:
    """Return a reference to what a command prints."""
    sums.append(" ".join(command.split()))
    return f"${{{PRINTED}{len(sums) - 1}}}"


def _left_out(text: str, n: int, *, begins: bool) -> tuple[str, int] | None:
    """Return what stands for a comment, a redirection or a text for a command at a place outside of quotes.

    Args:
        text: a script.
        n: a place in it.
        begins: whether a word may begin there.
    """
    if text[n] == "#" and begins:
        return "", text.find("\n", n) if "\n" in text[n:] else len(text)
    if (heredoc := HEREDOC.match(text, n)) and not text.startswith("<<<", n):
        return _heredoc(text, heredoc)
    if spaced := SPACED.match(text, n):
        return spaced[0].replace(" ", "\\ "), spaced.end()
    if placeholder := PLACEHOLDER.match(text, n):
        return "${" + re.sub(r"\W+", "_", placeholder[1]) + "}", placeholder.end()
    if (begins or text[n] in "<>") and (redirection := REDIRECTION.match(text, n)):
        return "", redirection.end()
    return None


def _heredoc(text: str, tag: re.Match[str]) -> tuple[str, int]:
    """Return the rest of the line that a text for a command begins on, and the place after that text."""
    line_end = text.find("\n", tag.end())
    if line_end < 0:
        return "", len(text)
    ended = re.compile(rf"^\s*{tag[1]}\s*$", re.MULTILINE).search(text, line_end)
    return REDIRECTION.sub("", text[tag.end() : line_end]), ended.end() if ended else len(text)


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
