"""Text for training: docstrings, reference topics and sources of the Python standard library, in a fixed order."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"})
SKIPPED_FILES = frozenset({"topics.py"})
MAX_FILE_CHARACTERS = 120_000


def stdlib() -> Path:
    """The folder of the standard library of this Python."""
    return Path(sysconfig.get_paths()["stdlib"])


def stdlib_files(root: Path | None = None) -> list[Path]:
    """Every source file of the standard library outside its tests, sorted by its path inside the library."""
    base = root or stdlib()
    files = [p for p in base.rglob("*.py") if not SKIPPED_FOLDERS.intersection(p.relative_to(base).parts)]
    return sorted(files, key=lambda p: p.relative_to(base).as_posix())


def read_text(path: Path) -> str:
    """The text of a file, or an empty text if the file is not UTF-8 or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return ""


def docstrings(source: str) -> list[str]:
    """The docstrings of a module, of its classes and of its functions, cleaned of their indentation."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, holders)]
    return [text for text in found if text]


def topics() -> list[str]:
    """The chapters of the language reference that pydoc shows, without the lines that underline headings."""
    try:
        from pydoc_data.topics import topics as chapters
    except ImportError:
        return []
    kept = []
    for name in sorted(chapters):
        lines = [line for line in chapters[name].splitlines() if not line or set(line) - set("*=-~^ ")]
        kept.append("\n".join(lines).strip())
    return kept


def documents(root: Path | None = None, without: Collection[str] = ()) -> Iterator[str]:
    """The chapters first; then for every file its docstrings as one document, and its source as another.

    Args:
        without: files to leave out, by their paths inside the library.
    """
    yield from topics()
    base = root or stdlib()
    for path in stdlib_files(root):
        if path.name in SKIPPED_FILES or path.relative_to(base).as_posix() in without:
            continue
        source = read_text(path)[:MAX_FILE_CHARACTERS]
        if not source.strip():
            continue
        prose = "\n\n".join(docstrings(source))
        if prose:
            yield prose
        yield source


def fingerprint(texts: Iterable[str]) -> str:
    """SHA-256 over all documents, so that a recipe can name the corpus that its model was trained on."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()
