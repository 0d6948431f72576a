"""The files of Swagger UI that come with vLLM."""

from __future__ import annotations

import importlib.util
import pathlib

_FOLDER = "vllm.entrypoints.serve.instrumentator"
_NAMES = ("swagger-ui-bundle.js", "swagger-ui.css")


def swagger_files() -> list[pathlib.Path]:
    """Script and style sheet of Swagger UI; none where this vLLM does not have both."""
    spec = importlib.util.find_spec(_FOLDER)
    folders = [pathlib.Path(place) / "static" for place in (spec and spec.submodule_search_locations) or ()]
    found = [folder / name for folder in folders for name in _NAMES if (folder / name).is_file()]
    return found if len(found) == len(_NAMES) else []
