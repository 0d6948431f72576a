"""What Triton's interpreter does again for every call of a function, done once for every launch."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def mend() -> None:
    """From here on it does not look for what to replace in a language of which it has replaced everything."""
    patch = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        languages = [member for member in function.__globals__.values() if member is tl or member is tl.core]
        if languages and not any(tl.core.is_builtin(language.arange) for language in languages):
            return interpreter._LangPatchScope()
        return patch(function)

    interpreter._patch_lang = patch_once
