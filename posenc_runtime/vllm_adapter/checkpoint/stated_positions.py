"""Reads what a configuration states about positions: the trained length, under any of its keys, and the rotation.

A value that describes no rotation is named as the file has it. YaRN that somebody added by hand is told apart from
YaRN that the model was trained with.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

from posenc_runtime.encodings.fields import fits, rule_of_type
from posenc_runtime.encodings.scaling import from_parameters, own, own_rope_types
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

# As vLLM looks for them (model_arch_config_convertor.derive_max_model_len_and_key), but for those of encoders.
_NAMES_OF_LENGTH = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
_BEFORE = "original_max_position_embeddings"
# Methods have another name for that key, because a deployment's setting of this name is the trained length.
_BEFORE_IN_METHODS = "old_context_len"
_SECTIONS = ("rope_scaling", "rope_parameters")
_NUMBERS = ("rope_theta", "partial_rotary_factor")
# Any length will do to see whether a method can be made of its parameters.
_SOME_LENGTH = 2**40


@dataclasses.dataclass(frozen=True)
class AddedYarn:
    """YaRN that somebody added: ``max_position_embeddings`` is still that of the model without YaRN.

    The model cards of Qwen advise to add it. It slows the rotation of every request, also of those that the model was
    trained for.

    Attributes:
        factor: of that YaRN.
        unscaled_length: tokens that the model was trained on without it.
    """

    factor: float
    unscaled_length: int

    @property
    def advice(self) -> str:
        """How to change the configuration, and what the change gives."""
        return (
            f"the checkpoint's configuration has YaRN of factor {self.factor:g}, which changes the rotation of every "
            "request, but its max_position_embeddings is that of the model without YaRN. If you added YaRN for long "
            "requests, take it out (rope_parameters or rope_scaling in config.json, or hf_overrides), and set "
            f"scaling.scales to [1, {self.factor:g}]. Requests of up to {self.unscaled_length} tokens then get the "
            "answers of the model without YaRN"
        )


def added_yarn(rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> AddedYarn | None:
    """The YaRN that was added by hand; None where the checkpoint was tuned with it, or has none.

    Args:
        rope_parameters: as Hugging Face writes them, of the layers that are scaled.
        max_position_embeddings: as the checkpoint states it, tokens.
    """
    if rope_parameters["rope_type"] != "yarn":
        return None
    factor, before = rope_parameters["factor"], rope_parameters["original_max_position_embeddings"]
    return AddedYarn(factor, before) if max_position_embeddings < int(factor * before) else None


def stated_length(text_config: Any) -> int | None:
    """The trained length, tokens; None where the configuration does not state it.

    Command-R has the length of its training as ``model_max_length``, and a shorter one as ``max_position_embeddings``.
    Where others state several lengths, the shortest one counts: Qwen's first models have the length of their training
    as ``seq_length``, and a longer one as ``max_position_embeddings``.
    """
    if length := getattr(text_config, "model_max_length", None):
        return int(length)
    lengths = {name: length for name in _NAMES_OF_LENGTH if (length := getattr(text_config, name, None))}
    said = [
        length for name, length in lengths.items() if name == _NAMES_OF_LENGTH[0] or not _is_default(text_config, name)
    ]
    # A length that a class has for every checkpoint (Step 3.5: max_seq_len) is none that this checkpoint states.
    return min(said or lengths.values(), default=None)


def _is_default(text_config: Any, name: str) -> bool:
    parameter = inspect.signature(type(text_config)).parameters.get(name)
    return parameter is not None and parameter.default == getattr(text_config, name)


def with_whole_lengths(rope_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with a whole number as length where a float is written, which transformers takes, too: 32768.0."""
    before = rope_parameters.get(_BEFORE)
    if isinstance(before, float) and before.is_integer():
        return {**rope_parameters, _BEFORE: int(before)}
    return dict(rope_parameters)


def refuse_stated(place: str, engine: Mapping[str, Any]) -> None:
    """Find the fault in the rotation of a configuration that cannot be read or served.

    Whoever serves a checkpoint did not write its configuration: the refusal names the key there, and no setting.

    Args:
        place: folder or name of the checkpoint.
        engine: vLLM engine arguments; those that say where the configuration comes from are used.

    Raises:
        Unsupported: when a value is wrong; the message names its key in config.json, the rule, and the value.
    """
    try:
        source = {"revision": engine.get("revision"), "token": engine.get("hf_token")}
        written, _ = PreTrainedConfig.get_config_dict(place, **source)
    except Exception:  # whatever a hub's client raises: who calls has a reason already
        return
    for problem in _problems(written) if isinstance(written, Mapping) else ():
        raise Unsupported(problem)


def _problems(written: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the rotations of a configuration and of those inside it, worded."""
    length = written.get("max_position_embeddings", 1)
    if type(length) is not int or length < 1:
        yield _refused("max_position_embeddings", "a whole number of at least 1", length)
    for key in _NUMBERS:
        if key in written and written[key] is not None and not isinstance(written[key], list):
            yield from _wrong_type(key, written[key], float)
    for key, value in written.items():
        if key in _SECTIONS:
            yield from _problems_of_section(key, value)
        elif isinstance(value, Mapping) and key.endswith("_config"):
            yield from _problems(value)


def _problems_of_section(name: str, section: Any) -> Iterator[str]:
    if section is None:
        return
    if not isinstance(section, Mapping):
        yield _refused(name, "a mapping", section)
        return
    inner = [key for key, value in section.items() if isinstance(value, Mapping)]
    if inner:
        for key in inner:
            yield from _problems_of_section(f"{name}.{key}", section[key])
        return
    rope_type = section.get("rope_type", section.get("type", "default"))
    if rope_type not in own_rope_types():
        return  # refused by its name
    types: dict[str, Any] = {key: float for key in _NUMBERS} | {_BEFORE: int}
    types |= {field.name: hint for field, hint in _fields(own(rope_type))}
    said = with_whole_lengths(section)
    for key in types.keys() & section.keys():
        yield from _wrong_type(f"{name}.{key}", said[key], types[key])
    yield from _out_of_range(name, rope_type, said)


def _out_of_range(name: str, rope_type: str, section: Mapping[str, Any]) -> Iterator[str]:
    method = own(rope_type)
    try:
        from_parameters(method.rope_type, method.of_checkpoint(section, _SOME_LENGTH).parameters)
    except KeyError as error:
        yield f"{name}.{error.args[0]} of config.json must be given where rope_type is {rope_type}: add it there"
    except (ValueError, TypeError, ArithmeticError) as error:
        for field, _ in _fields(method):
            if str(error).startswith(f"{field.name} "):
                key = _BEFORE if field.name == _BEFORE_IN_METHODS else field.name
                yield f"{name}.{key} of config.json {str(error).removeprefix(field.name).lstrip()}: correct it there"


def _fields(method: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """The parameters of a method, each with its annotation."""
    hints = typing.get_type_hints(method)
    return [(field, hints[field.name]) for field in dataclasses.fields(method)]


def _wrong_type(path: str, value: Any, hint: Any) -> Iterator[str]:
    if not fits(value, hint):
        yield _refused(path, rule_of_type(hint), value)


def _refused(path: str, rule: str, value: Any) -> str:
    advice = "write it without quotes" if isinstance(value, str) and _is_literal(value) else "correct it there"
    return f"{path} of config.json must be {rule}, got {json.dumps(value)}: {advice}"


def _is_literal(text: str) -> bool:
    """Whether a text is a number or a truth value once its quotes are gone."""
    try:
        return isinstance(json.loads(text), int | float)
    except ValueError:
        return False
