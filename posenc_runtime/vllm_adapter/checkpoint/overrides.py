"""Reads ``hf_overrides``: which of them change how positions are rotated, and what the others make of a configuration.

The text of a multimodal model has a configuration inside the checkpoint's, so overrides are looked at at every depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

# Imported where a configuration is changed: arguments are made without the long import of transformers.
if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_SERVED_LENGTH = "max_position_embeddings"
_OF_ROTATION = ("rope_parameters", "rope_scaling", "rope_theta")


def rotations_in(overrides: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each entry that changes how positions are rotated: its path, the names joined by dots, and its value.

    At the top, the length belongs to them, too. Inside it is what we tell the text of a multimodal model.
    """
    for key, value in overrides.items():
        if key in (*_OF_ROTATION, _SERVED_LENGTH):
            yield key, value
        elif isinstance(value, Mapping):
            yield from (
                (f"{key}.{path}", found) for path, found in rotations_in(value) if not path.endswith(_SERVED_LENGTH)
            )


def without_rotations(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides but for those that change how positions are rotated, which are refused once more is known."""
    return {
        key: without_rotations(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
        if key not in _OF_ROTATION
    }


def flat(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that vLLM passes on to the configuration: no mappings, and no served length."""
    return {key: value for key, value in _others(overrides).items() if not isinstance(value, Mapping)}


def apply(config: PreTrainedConfig, overrides: Mapping[str, Any]) -> None:
    """Change a configuration by the mappings among the overrides, as vLLM does, but leave out the served length."""
    from transformers import PreTrainedConfig

    for key, value in _others(overrides).items():
        if isinstance(value, Mapping):
            part = getattr(config, key, None)
            if isinstance(part, PreTrainedConfig):
                _update(part, value)
            else:
                setattr(config, key, value)


def _update(target: Any, updates: Mapping[str, Any]) -> None:
    for key, value in _others(updates).items():
        part = target.get(key) if isinstance(target, dict) else getattr(target, key, None)
        if isinstance(value, Mapping) and (isinstance(part, dict) or hasattr(part, "__dict__")):
            _update(part, value)
        elif isinstance(target, dict):
            target[key] = value
        else:
            setattr(target, key, value)


def _others(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in overrides.items() if key != _SERVED_LENGTH}
