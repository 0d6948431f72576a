"""Looks for a checkpoint's configuration before vLLM is imported, because the import takes seconds. Decision 65."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from posenc_runtime.vllm_adapter.checkpoint.hub import CONFIGURATION, Found, UnreadableCheckpoint, at_hand

# In a folder with one of these files, vLLM may need no config.json.
_OTHERS = ("params.json", "*.gguf")


def look(model: str, engine: Mapping[str, Any]) -> Found:
    """Where vLLM is to read a checkpoint's configuration.

    Args:
        engine: vLLM engine arguments; those that say where the configuration comes from are used.

    Raises:
        UnreadableCheckpoint: when it certainly cannot be read; uncertain cases are left to vLLM.
    """
    source = engine.get("hf_config_path") or model
    found = at_hand(source, engine)
    folder = pathlib.Path(found.place)
    if folder.is_dir() and engine.get("config_format") in (None, "auto") and (reason := _reason_against(folder)):
        raise UnreadableCheckpoint(source, reason)
    return found


def _reason_against(folder: pathlib.Path) -> str | None:
    if any(path for pattern in _OTHERS for path in folder.glob(pattern)):
        return None
    file = folder / CONFIGURATION
    if not file.is_file():
        return f"there is no {CONFIGURATION} in this folder"
    try:
        configuration = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{CONFIGURATION}: {error.strerror}"
    except ValueError as error:
        return f"{CONFIGURATION} is not JSON: {error}"
    if not isinstance(configuration, dict):
        return f"{CONFIGURATION} must be an object of keys and values, got {type(configuration).__name__}"
    return None
