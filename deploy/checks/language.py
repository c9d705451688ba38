"""`python -m deploy.checks.language [PATH ...]`: refuse words that docs/language.md does not allow.

It reads Python (identifiers, comments, docstrings, other strings), SQL, Markdown, and the subjects of commits since
this check exists. With paths, it reads only these files or folders, and no commit. `--count` prints the number of
findings of each folder instead of the findings.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from deploy.setup.repository import ROOT

REFUSED: Final = {
    "tell": "report, return or log",
    "tells": "reports, returns or logs",
    "telling": "reporting, returning or logging",
    "told": "reported, returned or logged",
    "say": "report, state or show",
    "says": "reports, states or shows",
    "said": "reported, stated or shown",
    "saying": "reporting, stating or showing",
    "hear": "receive",
    "hears": "receives",
    "heard": "received",
    "speak": "support",
    "speaks": "supports",
    "spoke": "supported",
    "spoken": "supported",
    "believe": "verify or trust",
    "believes": "verifies or trusts",
    "believed": "verified or trusted",
    "knows": "stores, has or can",
    "knew": "stored, had or could",
    "he": "it",
    "him": "it",
    "his": "its",
    "who": "the caller, client, process or node that",
    "whom": "the caller, client, process or node that",
    "whose": "with its, of which",
    "whoever": "the caller, client, process or node that",
    "nobody": "no caller, client, process or node",
    "somebody": "a caller, client, process or node",
    "everybody": "every caller, client, process or node",
    "stranger": "foreign",
    "strangers": "foreign",
    "anew": "again",
    "for ever": "permanently",
    "forever": "permanently",
    "otherwise than": "different from",
    "wish": "desired state",
    "wishes": "desired state",
    "wished": "desired",
    "mend": "repair",
    "mends": "repairs",
    "mended": "repaired",
    "mending": "repairing",
    "withheld": "quarantined",
    "withhold": "quarantine",
    "sighting": "observed state",
    "sightings": "observed state",
    "overtaken": "superseded",
    "waived": "overridden",
    "break glass": "force-release",
    "harm": "fault",
    "harms": "faults",
    "rival": "foreign, another",
    "rivals": "foreign, others",
    "sweeper": "task sender",
    "unheard": "unreachable",
    "askable": "requestable",
    "patience": "timeout",
    "in hand": "in flight",
    "given back": "requeued",
    "put back": "requeued",
    "put right": "repaired",
    "make good": "repair",
    "way in": "ingress rule",
    "ways in": "ingress rules",
}
"""Refused words and phrases, each with what to write instead."""
OPENINGS: Final = ("Of", "Those", "That", "By", "Whose", "Who", "The same", "Or")
"""Words with which a docstring must not begin, because such a sentence has no subject."""
EXCEPTIONS: Final = ROOT / "deploy/checks/language_exceptions.txt"
SUFFIXES: Final = {".py", ".sql", ".md"}
_WORDS: Final = re.compile(
    r"(?<![^\W_])("
    + "|".join(each.replace(" ", r"\s+") for each in sorted(REFUSED, key=len, reverse=True))
    + r")(?![^\W_])",
    re.IGNORECASE,
)
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_OPENING: Final = re.compile(rf"({'|'.join(OPENINGS)})\b")
_SUBJECT: Final = re.compile(r"[a-z][\w, /.-]*: [a-z]")


class Finding(NamedTuple):
    """One refused word in one line of one file, or in a commit's subject."""

    path: str
    line: int
    word: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: {self.advice}"


def findings(path: Path) -> Iterator[Finding]:
    """Return the refused words of one file, in the order of its lines."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from sorted({*_of_python(name, text)}, key=lambda each: each.line)
    else:
        yield from _of_text(name, text, 1)


def _of_python(name: str, text: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            for part in _PARTS.findall(token.string):
                yield from _of_text(name, part, token.start[0])
        elif token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from _of_text(name, token.string, token.start[0])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Expr):
            yield from _of_docstring(name, node)


def _of_docstring(
    name: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Expr
) -> Iterator[Finding]:
    if isinstance(node, ast.Expr):
        constant = node.value.value if isinstance(node.value, ast.Constant) else None
        text, line = (constant if isinstance(constant, str) else ""), node.lineno
    else:
        text, line = ast.get_docstring(node) or "", node.body[0].lineno if node.body else 1
    if opening := _OPENING.match(text.lstrip()):
        yield Finding(name, line, opening[1], "begin with an imperative or a noun phrase that stands alone")


def _of_text(name: str, text: str, first: int) -> Iterator[Finding]:
    for found in _WORDS.finditer(text):
        word = " ".join(found[1].lower().split())
        yield Finding(name, first + text.count("\n", 0, found.start()), word, f"write {REFUSED[word]}")


def subjects() -> Iterator[Finding]:
    """Return the refused words in the subjects of the commits since this file was added."""
    added = _git("log", "--diff-filter=A", "--format=%H", "--", str(Path(__file__).relative_to(ROOT))).split()
    if not added:
        return
    for line in _git("log", "--no-merges", "--format=%h %s", f"{added[-1]}..HEAD").splitlines():
        commit, _, subject = line.partition(" ")
        yield from _of_text(f"commit {commit}", subject, 1)
        if not _SUBJECT.match(subject):
            yield Finding(f"commit {commit}", 1, subject, "write 'component: imperative change'")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def without_exceptions(found: Iterable[Finding], exceptions: Sequence[str]) -> Iterator[Finding]:
    """Return the findings, except those whose path and word are a line of the list of exceptions."""
    allowed = {
        tuple(line.split("#")[0].split(maxsplit=1)) for line in exceptions if line.split("#")[0].strip()
    }
    allowed = {(path, word.strip()) for path, word in allowed}
    return (each for each in found if (each.path, each.word) not in allowed)


def _files(arguments: Sequence[str]) -> Iterator[Path]:
    for name in _git("ls-files", "--", *arguments).splitlines():
        path = ROOT / name
        if path.suffix in SUFFIXES and path.exists() and path != Path(__file__):
            yield path


def main(arguments: Sequence[str]) -> int:
    """Print the findings. Return 1 if there is one, else 0."""
    paths = [each for each in arguments if each != "--count"]
    found = [one for path in _files(paths) for one in findings(path)]
    found += [] if paths else subjects()
    exceptions = EXCEPTIONS.read_text(encoding="utf-8").splitlines() if EXCEPTIONS.exists() else []
    found = [*without_exceptions(found, exceptions)]
    if "--count" in arguments:
        counts = Counter(str(Path(each.path).parent) for each in found)
        sys.stdout.writelines(f"{count:6} {folder}\n" for folder, count in sorted(counts.items()))
    else:
        sys.stdout.writelines(f"{each}\n" for each in found)
    sys.stdout.write(f"{len(found)} findings\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
