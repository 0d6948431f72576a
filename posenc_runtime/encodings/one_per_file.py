"""Packages in which each file is one member, found by the file's name. No other place lists the members."""

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
    """The object that a member's file defines.

    Args:
        package: the package's ``__name__``.
        known: the package's ``names``.
        key: the configuration key under which people write the name, for the error message.
        name: the member's name.
        attribute: the global variable of the file that holds the object.

    Raises:
        ValueError: when no member has that name.
    """
    if name not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got {name!r}")
    return getattr(importlib.import_module(f"{package}.{name}"), attribute)
