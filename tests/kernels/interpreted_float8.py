"""What Triton's interpreter gets wrong about float8, put right: it drops carries into the exponent."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter


def mend() -> None:
    """From here on the interpreter rounds float32 to the nearest float8. Past 448 that is a NaN: e4m3 has no infinity.

    Whether a cast saturates instead is the device's affair. A kernel that does not clamp is seen here.
    """
    convert = interpreter._convert_float

    def convert_float(values: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source == tl.float32 and target == tl.float8e5:
            return torch.from_numpy(values).to(torch.float8_e5m2).view(torch.uint8).numpy()
        if (source, target) == (tl.float32, tl.float8e4nv):
            given = torch.from_numpy(values)
            given = given.masked_fill(given.abs() > torch.finfo(torch.float8_e4m3fn).max, torch.nan)
            return given.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return convert(values, source, target, rounding_mode)

    interpreter._convert_float = convert_float
