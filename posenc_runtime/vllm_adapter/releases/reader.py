"""vLLM's reader of configurations, with or without the rest of vLLM, whose import takes seconds.

A process that has not imported vLLM reads a configuration with vLLM's own source of the reader, and with nothing else
of vLLM. Where that does not work, and where the reader alone may not say what all of vLLM would, all of vLLM reads it.
Decision 72.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import pathlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from posenc_runtime.vllm_adapter.releases import later

_READER = "vllm.transformers_utils.config"
# Their __init__ imports what reading a configuration does not need: torch's compiler, and vLLM's own configuration.
_BARE = {"vllm": "", "vllm.config": "config"}
# Modules for images, tokens and weights, from which the reader imports names that it seldom uses. That of vLLM
# registers types with torch, which it may do once in a process.
_FOR_READER = (
    "vllm.utils.torch_utils",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
# The same for what the configurations of transformers check their numbers by.
_VALIDATORS = "transformers.utils.type_validators"
_FOR_VALIDATORS = ("transformers.activations", "transformers.image_utils", "transformers.video_utils")


class NotRead(Exception):
    """The reader alone may not say what all of vLLM would."""


def is_vllm_imported() -> bool:
    """Whether this process has all of vLLM, so that asking it costs nothing."""
    return "vllm" in sys.modules


def reads_alone() -> bool:
    """Whether configurations may be read without the rest of vLLM: no plugin of others can add or replace a model."""
    return not is_vllm_imported() and not _plugins_of_others()


def read_alone(place: str, **arguments: Any) -> Any:
    """A checkpoint's configuration, by vLLM's reader alone.

    Args:
        place: a folder, or a name on a hub.
        arguments: of vLLM's ``get_config``.

    Raises:
        NotRead: when all of vLLM has to read it, whose errors are the ones to show.
    """
    if arguments.get("trust_remote_code") or arguments.get("config_format") not in (None, "auto", "hf"):
        raise NotRead("code or a format of others")
    try:
        with with_vllms_modules(), _undocumented():
            config = _alone().get_config(place, **arguments)
    except Exception as error:
        raise NotRead(str(error)) from error
    if type(config).__module__.startswith("vllm."):
        raise NotRead("a class of vLLM's own")
    return config


def text_config_of(config: Any) -> Any:
    """The configuration of the text's model, by vLLM's ``get_hf_text_config``.

    Raises:
        ValueError: when there is none.
    """
    if is_vllm_imported():
        from vllm.transformers_utils.config import get_hf_text_config

        return get_hf_text_config(config)
    return _alone().get_hf_text_config(config)


@functools.cache
def _alone() -> types.ModuleType:
    """The reader's module; must be called first where ``with_vllms_modules`` holds."""
    transformers = _folder("transformers")
    later.load(_VALIDATORS, transformers / "utils" / "type_validators.py", _FOR_VALIDATORS)
    return later.load(_READER, _folder("vllm") / "transformers_utils" / "config.py", _FOR_READER)


@contextlib.contextmanager
def with_vllms_modules() -> Iterator[None]:
    """Let single modules of vLLM be imported without the ``__init__`` of its packages.

    Afterwards none of them is among the imported ones. Where all of vLLM is imported, nothing happens.
    """
    if is_vllm_imported():
        yield
        return
    for name, folder in _BARE.items():
        package = types.ModuleType(name)
        package.__path__ = [str(_folder("vllm") / folder)]
        sys.modules[name] = package
    sys.modules["vllm"].__dict__["config"] = sys.modules["vllm.config"]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
            del sys.modules[name]


@contextlib.contextmanager
def _undocumented() -> Iterator[None]:
    """Let transformers leave out the docstrings of its configurations, for which it imports its models."""
    import transformers.utils

    stock = transformers.utils.auto_docstring

    def auto_docstring(obj: Any = None, **_: Any) -> Any:
        return obj if obj is not None else auto_docstring_of

    def auto_docstring_of(obj: Any) -> Any:
        return obj

    transformers.utils.auto_docstring = auto_docstring
    try:
        yield
    finally:
        transformers.utils.auto_docstring = stock


@functools.cache
def _folder(package: str) -> pathlib.Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NotRead(f"{package} is not installed")
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def _plugins_of_others() -> bool:
    """Whether a plugin of vLLM is installed that is neither ours nor vLLM's own: those may register models."""
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    return any(not each.value.startswith(("vllm.", "posenc_runtime.")) for each in found)


@functools.cache
def registered_models() -> Mapping[str, tuple[str, str]]:
    """Module and class of each architecture that vLLM registers, from the source of its registry."""
    tree = ast.parse((_folder("vllm") / "model_executor" / "models" / "registry.py").read_text(encoding="utf-8"))
    tables = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    return {name: _whole(*where) for name, where in _entries("_VLLM_MODELS", tables)}


def _entries(name: str, tables: Mapping[str, ast.Dict]) -> Iterator[tuple[str, tuple[str, str]]]:
    if name not in tables:
        raise NotRead(f"{name} is not where it was")
    for key, value in zip(tables[name].keys, tables[name].values, strict=True):
        if key is None and isinstance(value, ast.Name):  # **of another table
            yield from _entries(value.id, tables)
        elif key is not None:
            yield ast.literal_eval(key), ast.literal_eval(value)


def _whole(module: str, name: str) -> tuple[str, str]:
    return (module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"), name
