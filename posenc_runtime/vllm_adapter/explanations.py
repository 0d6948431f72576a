"""What pydantic found wrong with settings, in our words."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from posenc_runtime.vllm_adapter.parameters import parameters_model
from posenc_runtime.vllm_adapter.section import AUTO
from posenc_runtime.vllm_adapter.wording import did_you_mean, rule_of


def explained(error: ValidationError, root: type[BaseModel], rope_type: str) -> list[str]:
    """Each problem of a validation: the setting's path, the rule, the value, and what may have been meant.

    Args:
        root: the model that was validated.
        rope_type: the method that is asked for, in settings that may be wrong.
    """
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if cause is not None:
            lines.append(f"{path}.{cause}" if path else str(cause))
        elif problem["type"] == "extra_forbidden":
            hint = _hint(path, problem["input"], root, rope_type)
            lines.append(f"{path}: is not a known setting, got {problem['input']!r}{hint}")
        elif problem["type"] == "missing":
            lines.append(f"{path}: must be given")
        elif problem["type"] in ("model_type", "dict_type"):
            lines.append(f"{path}: must be a mapping of settings, got {_shown(problem['input'])}")
        else:
            lines.append(f"{path}: {rule_of(problem['msg'])}, got {problem['input']!r}")
    return lines


def _hint(path: str, value: Any, root: type[BaseModel], rope_type: str) -> str:
    """What somebody may have meant by a setting that is not known."""
    *sections, key = path.split(".")
    if path == "scaling.factor":  # fixed in Hugging Face's configurations; here every request has its own
        if rope_type == "default":
            return "; rope_type default does not scale, choose another"
        largest = f"{value:g}" if isinstance(value, int | float) and 1 < value < 1e6 else "4"
        return f"; scaling.scales says it for {rope_type}, as in [1, {largest}]"
    model = root
    for section in sections:
        field = model.model_fields.get(section)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return ""
        model = field.annotation
    known = set(model.model_fields)
    if sections == ["scaling"]:
        known |= set() if rope_type == AUTO else set(parameters_model(rope_type).model_fields)
    return did_you_mean(key, known)


def _shown(value: Any) -> str:
    return "nothing: leave the section out, or give it settings" if value is None else repr(value)
