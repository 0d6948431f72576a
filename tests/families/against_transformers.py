"""Compare stock vLLM with transformers: ``python -m tests.families.against_transformers gemma3 gpt_oss``.

One line for each family, of the table in README.md: 24 greedy tokens after a prompt of 88 tokens, and of 102 with an
image where a family is one of Qwen's that see; how many of them are those of transformers; and by how much the logprobs
of vLLM's tokens differ from transformers' of the same tokens.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import transformers

from tests import families
from tests.families import saving, vision

PROMPT = [(37 * token) % 251 for token in range(88)]  # an image is 14 tokens more
GREEDY = 24  # tokens


def stock(folder: pathlib.Path, arguments: dict[str, Any], image: bool) -> tuple[list[int], list[float]]:
    """The tokens of vLLM and their logprobs."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder), enforce_eager=True, enable_prefix_caching=False, **arguments)
    asked = SamplingParams(max_tokens=GREEDY, temperature=0, logprobs=0, ignore_eos=True)
    prompt: dict[str, Any] = {"prompt_token_ids": PROMPT}
    if image:
        prompt = {"prompt_token_ids": _around([vision.IMAGE]), "multi_modal_data": {"image": _picture(folder)}}
    said = llm.generate([prompt], asked, use_tqdm=False)[0].outputs[0]
    tokens = list(said.token_ids)
    return tokens, [step[token].logprob for step, token in zip(said.logprobs, tokens, strict=True)]


class Transformers:
    """What transformers says to the prompt, from a forward over all tokens: no cache."""

    def __init__(self, folder: pathlib.Path, family: families.Family, image: bool) -> None:
        self.model = saving.build(family, **family.in_transformers)
        self._prompt = PROMPT
        self._seen: dict[str, torch.Tensor] = {}
        if image:
            look = transformers.AutoImageProcessor.from_pretrained(folder)
            self._seen = dict(look(images=[_picture(folder)], return_tensors="pt"))
            self._prompt = _around([vision.IMAGE] * (int(self._seen["image_grid_thw"].prod()) // look.merge_size**2))

    def greedy(self) -> list[int]:
        tokens: list[int] = []
        for _ in range(GREEDY):
            tokens.append(int(self._logits(tokens)[-1].argmax()))
        return tokens

    def logprobs(self, tokens: list[int]) -> list[float]:
        """Of each of these tokens, after those before it."""
        every = self._logits(tokens).float().log_softmax(-1)[len(self._prompt) - 1 : -1]
        chosen: list[float] = every.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return chosen

    @torch.no_grad()
    def _logits(self, tokens: list[int]) -> torch.Tensor:
        ids = torch.tensor([self._prompt + tokens])
        seen = self._seen | {"mm_token_type_ids": (ids == vision.IMAGE).int()} if self._seen else {}
        logits: torch.Tensor = self.model(ids, use_cache=False, **seen).logits[0]
        return logits


def _around(image: list[int]) -> list[int]:
    half = len(PROMPT) // 2
    return [*PROMPT[:half], vision.START, *image, vision.END, *PROMPT[half:]]


def _picture(folder: pathlib.Path) -> np.ndarray[Any, Any]:
    """A picture of 4 times 3 tokens, whose size no processor has to change."""
    token = 2 * json.loads((folder / "preprocessor_config.json").read_text())["patch_size"]
    return np.random.default_rng(0).integers(256, size=(3 * token, 4 * token, 3), dtype=np.uint8)


def compare(name: str, folder: pathlib.Path, image: bool) -> str:
    family = families.FAMILIES[name]
    if not folder.exists():
        families.make(name, folder)
    # A process of its own: vLLM's Transformers backend changes modules of transformers.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = {"dtype": family.dtype, "max_model_len": family.trained, **family.engine}
        tokens, of_vllm = pool.apply(stock, (folder, arguments, image))
    other = Transformers(folder, family, image)
    same = sum(ours == theirs for ours, theirs in zip(tokens, other.greedy(), strict=True))
    rounded = other.logprobs(tokens)
    apart = _apart(of_vllm, rounded)
    line = f"{name}{' with an image' if image else ''}: {same} of {GREEDY} tokens, {len(set(tokens))} kinds; "
    line += f"logprobs apart by at most {apart:.1e}"
    if family.dtype == "float32":
        return line
    other.model.float()
    return f"{line}; transformers' own, if not rounded, by {_apart(other.logprobs(tokens), rounded):.1e}"


def _apart(ours: list[float], theirs: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    """Print a line for each family that the command line names, vLLM in a process of its own."""
    os.environ |= {"VLLM_PLUGINS": "none", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            for image in (False, True) if families.FAMILIES[name].tokens == vision.TOKENS else (False,):
                print(compare(name, pathlib.Path(folder) / name, image), flush=True)


if __name__ == "__main__":
    main()
