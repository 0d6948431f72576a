"""Finds a model in an installed Python package, by a name such as ``package:posenc_runtime/zoo/demo``."""

from __future__ import annotations

import importlib.util
import pathlib

PREFIX = "package:"


def located(model: str) -> str:
    """The folder that ``package:NAME/PATH`` names, as an absolute path; any other model as it is.

    The package is found and not imported.

    Raises:
        ValueError: when there is no such package, or no such folder in it.
    """
    if not model.startswith(PREFIX):
        return model
    package, _, path = model.removeprefix(PREFIX).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    places = [pathlib.Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    if not places:
        raise ValueError(
            f"model: must be {PREFIX}NAME/PATH of an installed package, got {model!r}: there is no such package; "
            "install it, or correct the name"
        )
    folders = [place / path for place in places]
    for folder in folders:
        if folder.is_dir():
            return str(folder.resolve())
    raise ValueError(f"model: must name a folder of package {package}, got {model!r}: there is no folder {folders[0]}")
