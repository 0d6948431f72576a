"""Packages of which each file is one member, named after what it answers to: nothing else lists them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any


def names(path: Iterable[str]) -> tuple[str, ...]:
    """The members of a package, sorted.

    Args:
        path: the package's ``__path__``.
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(path)))


def member(package: str, known: tuple[str, ...], key: str, name: str, attribute: str) -> Any:
    """What a member's file holds.

    Args:
        package: the package's ``__name__``.
        known: its ``names``.
        key: what people write the name under.
        attribute: the file's global.

    Raises:
        ValueError: when no member has that name.
    """
    if name not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got {name!r}")
    return getattr(importlib.import_module(f"{package}.{name}"), attribute)
