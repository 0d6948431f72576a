"""Words what pydantic found wrong with settings as our own errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from posenc_runtime.vllm_adapter.contract.errors import rule_of
from posenc_runtime.vllm_adapter.settings.setting_names import SECTIONS, did_you_mean, known_names


def explain_errors(error: ValidationError, rope_type: str, sections: Collection[str] = SECTIONS) -> list[str]:
    """One text for each problem of a validation: the setting's path, the rule, the value, and a suggestion.

    Args:
        rope_type: the method that the settings ask for; there may be no method of that name.
        sections: names of the sections that the settings may have.
    """
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if cause is not None:
            lines.append(f"{path}.{cause}" if path else str(cause))
        elif problem["type"] == "extra_forbidden":
            hint = _hint(path, problem["input"], rope_type, sections)
            lines.append(f"{path}: is not a known setting, got {problem['input']!r}{hint}")
        elif problem["type"] == "missing":
            lines.append(f"{path}: must be given")
        elif problem["type"] in ("model_type", "dict_type"):
            lines.append(f"{path}: must be a mapping of settings, got {_shown(problem['input'])}")
        else:
            lines.append(f"{path}: {rule_of(problem['msg'])}, got {problem['input']!r}")
    return lines


def _hint(path: str, value: Any, rope_type: str, sections: Collection[str]) -> str:
    """The end of an error about an unknown setting: it suggests the setting that was probably meant."""
    if path == "scaling.factor":  # one in Hugging Face's configurations; here each request has its own
        if rope_type == "default":
            return "; rope_type default does not scale: choose another"
        largest = f"{value:g}" if isinstance(value, int | float) and 1 < value < 1e6 else "4"
        return f"; with rope_type {rope_type}, set scaling.scales instead, for example [1, {largest}]"
    section, _, name = path.rpartition(".")
    return did_you_mean(section, name, known_names(rope_type, sections))


def _shown(value: Any) -> str:
    return "nothing: leave the section out, or give it settings" if value is None else repr(value)
