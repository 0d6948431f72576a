"""Converts a GGUF file into a checkpoint that vLLM serves: ``python -m server.wheels.conversion FILE FOLDER``.

It runs in a process of its own: its memory is free again at the end, and the server's process, which may be forked for
the engine, has not started threads of PyTorch.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys

# transformers reads GGUF files with these, and imports them only then.
PACKAGES = ("accelerate", "gguf")

# How SmolLM's tokenizer splits text: each digit by itself, and the rest as GPT-2 does. The GGUF file names this rule
# ("smollm"), but transformers has only the rule of GPT-2, with which spaces before digits become other tokens.
_SPLIT = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


def convert(file: pathlib.Path, folder: pathlib.Path) -> None:
    """Write a checkpoint in bfloat16, with its tokenizer, chat template and generation configuration.

    Args:
        file: a GGUF file of a Llama with the tokenizer of SmolLM.
        folder: an empty folder for the checkpoint.
    """
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # transformers reads the file three times, each of which takes seconds for the words of the vocabulary, and asks for
    # the names of its tensors once for each module.
    for name in ("GGUFReader", "get_tensor_name_map"):
        setattr(gguf, name, functools.cache(getattr(gguf, name)))
    read = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.bfloat16)
    # transformers refuses to save what it read from a quantised file, although the weights no longer are quantised.
    del read.config.quantization_config
    with torch.device("meta"):
        plain = type(read)(read.config)
    plain.load_state_dict(read.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = read.generation_config
    plain.save_pretrained(str(folder))

    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(str(folder))
    written = folder / "tokenizer.json"
    tokenizer = json.loads(written.read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"] = _SPLIT
    written.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    convert(*map(pathlib.Path, sys.argv[1:]))
