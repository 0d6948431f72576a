"""Position encodings. One is one file, named after its ``position_encoding_type``; nothing else lists it."""

from __future__ import annotations

import importlib
import pkgutil

from posenc_runtime.zoo.model.encoding import PositionEncoding


def available() -> tuple[str, ...]:
    """The known values of ``position_encoding_type``."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def encoding(position_encoding_type: str) -> type[PositionEncoding]:
    """
    Raises:
        ValueError: when no encoding has that name.
    """
    if position_encoding_type not in available():
        raise ValueError(
            f"position_encoding_type must be one of {', '.join(available())}, got {position_encoding_type!r}"
        )
    found: type[PositionEncoding] = importlib.import_module(f"{__name__}.{position_encoding_type}").ENCODING
    return found


def owners(parameter: str) -> tuple[str, ...]:
    """The encodings that know a key of the configuration, be it to refuse it."""
    return tuple(name for name in available() if parameter in {**encoding(name).defaults, **encoding(name).refused})
