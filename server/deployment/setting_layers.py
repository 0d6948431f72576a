"""The layers of a deployment's settings: file, environment variables and ``--set``, all with values in YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from posenc_runtime.vllm_adapter.settings.api_keys import VARIABLE as API_KEYS
from posenc_runtime.vllm_adapter.settings.setting_names import TOP_LEVEL, known_names, meant
from posenc_runtime.vllm_adapter.settings.transfer_key import VARIABLE as TRANSFER_KEY

PREFIX = "POSENC_"
# No settings: deploy/environment.sh reads the first two, and the API server reads the keys.
NO_SETTINGS = {"POSENC_DEVICE", "POSENC_VENV", API_KEYS, TRANSFER_KEY}


class UniqueKeysLoader(yaml.SafeLoader):
    """YAML that reads 1e-3 as a number, and refuses a key given twice; plain YAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be a text, got {key!r}: put it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be given once, got {key} twice: remove one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# PyYAML reads YAML 1.1, in which a number with an exponent needs a point; without it, 1e-3 would be a text.
UniqueKeysLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def environment_layer(environment: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    """``POSENC_SCALING__HEADROOM_TOKENS=64`` as ``{"scaling": {"headroom_tokens": 64}}``.

    Raises:
        ValueError: when a variable with our prefix names no setting.
    """
    layer: dict[str, Any] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NO_SETTINGS:
            continue
        path = variable.removeprefix(PREFIX).lower().split("__")
        if path[0] not in known:
            closest = meant(TOP_LEVEL, path[0], known_names("default"))
            hint = f"; did you mean {_variable(*closest)}?" if closest else ""
            raise ValueError(
                f"{variable}: the part after {PREFIX} must begin with one of {', '.join(sorted(known))}, got "
                f"{path[0]}{hint}"
            )
        _put(layer, path, read_value(variable, text), variable)
    return layer


def _variable(section: str, name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + (f"{section}__{name}" if section else name).upper()


def set_layer(override: str) -> dict[str, Any]:
    """``scaling.headroom_tokens=64`` as ``{"scaling": {"headroom_tokens": 64}}``.

    Raises:
        ValueError: when it is not of the form path=value.
    """
    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")):
        raise ValueError(f"--set {override}: must be PATH=VALUE, as in --set scaling.headroom_tokens=64")
    layer: dict[str, Any] = {}
    _put(layer, path.split("."), read_value(f"--set {path}", text), f"--set {path}")
    return layer


def merge_layers(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All layers in one. A later layer replaces values of an earlier one: in a section, key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                value = merge_layers([below, value])
            result[key] = value
    return result


def read_value(name: str, text: str) -> Any:
    """A value as YAML reads it.

    Args:
        name: what it is the value of, for the error.

    Raises:
        ValueError: when it is not YAML.
    """
    try:
        return yaml.load(text, Loader=UniqueKeysLoader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None)
        raise ValueError(f"{name}: must be a YAML value, got {text!r}{f': {problem}' if problem else ''}") from None


def _put(layer: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    *sections, key = path
    for section in sections:
        layer = layer.setdefault(section, {})
        if not isinstance(layer, dict):
            raise ValueError(
                f"{name}: {section} must be a section, got the value {layer!r} from another variable: unset one of them"
            )
    layer[key] = value
