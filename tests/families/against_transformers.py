"""Compare stock vLLM with transformers: ``python -m tests.families.against_transformers gemma3 gpt_oss``.

One line for each family, of the table in README.md: 24 greedy tokens after a prompt of 88 tokens, and once more where
some of these are an image's; how many are those of transformers; and by how much the logprobs of vLLM's tokens differ
from transformers' of the same tokens.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from tests import families
from tests.families import saving
from tests.families.family import Picture

PROMPT = [(37 * token) % 251 for token in range(88)]
GREEDY = 24  # tokens


def stock(
    folder: pathlib.Path, arguments: dict[str, Any], picture: Picture | None
) -> tuple[list[int], list[int], list[float]]:
    """The prompt as vLLM computes it, the tokens that follow, and their logprobs."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder), enforce_eager=True, enable_prefix_caching=False, **arguments)
    asked = SamplingParams(max_tokens=GREEDY, temperature=0, logprobs=0, ignore_eos=True)
    prompt: dict[str, Any] = {"prompt_token_ids": PROMPT}
    if picture:
        (before, after), half = picture.around, len(PROMPT) // 2
        around = [*PROMPT[picture.num_tokens : half], *before, picture.placeholder, *after, *PROMPT[half:]]
        prompt = {"prompt_token_ids": around, "multi_modal_data": {"image": _noise(picture)}}
    output = llm.generate([prompt], asked, use_tqdm=False)[0]
    said = output.outputs[0]
    tokens = list(said.token_ids)
    logprobs = [step[token].logprob for step, token in zip(said.logprobs, tokens, strict=True)]
    return list(output.prompt_token_ids), tokens, logprobs


class Transformers:
    """What transformers says to a prompt, from a forward over all tokens: no cache."""

    def __init__(
        self, folder: pathlib.Path, family: families.Family, prompt: list[int], picture: Picture | None
    ) -> None:
        self.model = saving.build(family, **family.in_transformers)
        self._prompt = prompt
        self._seen: dict[str, torch.Tensor] = {}
        if picture:
            look = transformers.AutoImageProcessor.from_pretrained(folder)
            looked = look(images=[_noise(picture)], return_tensors="pt")
            self._seen = {name: looked[name] for name in ("pixel_values", "image_grid_thw") if name in looked}

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
        seen = dict(self._seen)
        if "pixel_values" in seen:
            seen["pixel_values"] = seen["pixel_values"].to(self.model.dtype)
        if "image_grid_thw" in seen:
            seen["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        logits: torch.Tensor = self.model(ids, use_cache=False, **seen).logits[0]
        return logits


def _noise(picture: Picture) -> Image.Image:
    pixels = np.random.default_rng(0).integers(256, size=(picture.height, picture.width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def compare(name: str, folder: pathlib.Path, picture: Picture | None) -> str:
    family = families.FAMILIES[name]
    if not folder.exists():
        families.make(name, folder)
    # A process of its own: vLLM's Transformers backend changes modules of transformers.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = {"dtype": family.dtype, "max_model_len": family.trained, **family.engine}
        prompt, tokens, of_vllm = pool.apply(stock, (folder, arguments, picture))
    other = Transformers(folder, family, prompt, picture)
    same = sum(ours == theirs for ours, theirs in zip(tokens, other.greedy(), strict=True))
    rounded = other.logprobs(tokens)
    apart = _apart(of_vllm, rounded)
    line = f"{name}{' with an image' if picture else ''}: {same} of {GREEDY} tokens, {len(set(tokens))} kinds; "
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
            picture = families.FAMILIES[name].picture
            for seen in (None, picture) if picture else (None,):
                print(compare(name, pathlib.Path(folder) / name, seen), flush=True)


if __name__ == "__main__":
    main()
