"""Position encodings. Each file is one and has the name of its ``position_encoding_type``; no other place lists it."""

from __future__ import annotations

from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.encodings.one_per_file import member, names


def available() -> tuple[str, ...]:
    """The known values of ``position_encoding_type``."""
    return names(__path__)


def encoding(position_encoding_type: str) -> type[PositionEncoding]:
    """The class of the encoding that has this name.

    Raises:
        ValueError: when no encoding has that name.
    """
    found: type[PositionEncoding] = member(
        __name__, available(), "position_encoding_type", position_encoding_type, "ENCODING"
    )
    return found


def owners(parameter: str) -> tuple[str, ...]:
    """The names of the encodings that take a configuration key, or refuse it by name."""
    return tuple(name for name in available() if parameter in {**encoding(name).defaults, **encoding(name).refused})
