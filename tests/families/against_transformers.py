"""Compare stock vLLM with transformers on the tiny checkpoints: ``python -m tests.families.against_transformers gemma3``.

One line for each family, of the table in README.md: 24 greedy tokens after a prompt of 100, how many are those of
transformers, and by how much the logprobs of vLLM's tokens differ from transformers' of the same tokens.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
import tempfile
from typing import Any

import torch
import transformers

from tests import families

PROMPT = [(37 * token) % 251 for token in range(100)]
GREEDY = 24  # tokens


def stock(folder: pathlib.Path, arguments: dict[str, Any]) -> tuple[list[int], list[float]]:
    """The tokens of vLLM and their logprobs."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder), enforce_eager=True, enable_prefix_caching=False, **arguments)
    asked = SamplingParams(max_tokens=GREEDY, temperature=0, logprobs=0, ignore_eos=True)
    said = llm.generate([{"prompt_token_ids": PROMPT}], asked, use_tqdm=False)[0].outputs[0]
    tokens = list(said.token_ids)
    return tokens, [step[token].logprob for step, token in zip(said.logprobs, tokens, strict=True)]


@torch.no_grad()
def greedy(model: Any) -> list[int]:
    """The tokens of transformers, each from a forward over all that is before it: no cache."""
    tokens = list(PROMPT)
    for _ in range(GREEDY):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@torch.no_grad()
def logprobs(model: Any, tokens: list[int]) -> list[float]:
    logits = model(torch.tensor([PROMPT + tokens]), use_cache=False).logits[0].float()
    every = logits.log_softmax(-1)[len(PROMPT) - 1 : -1]
    chosen: list[float] = every.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return chosen


def in_transformers(folder: pathlib.Path, family: families.Family) -> Any:
    """Its model, in evaluation mode."""
    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in family.in_transformers.items():
        setattr(config.get_text_config(), name, value)
    model = getattr(transformers, family.architecture).from_pretrained(
        folder, config=config, dtype=getattr(torch, family.dtype), attn_implementation="eager"
    )
    return model.eval()


def compare(name: str, folder: pathlib.Path) -> str:
    family = families.FAMILIES[name]
    families.make(name, folder)
    # A process of its own: vLLM's Transformers backend changes modules of transformers.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = {"dtype": family.dtype, "max_model_len": family.trained, **family.engine}
        tokens, of_vllm = pool.apply(stock, (folder, arguments))
    model = in_transformers(folder, family)
    same = sum(ours == theirs for ours, theirs in zip(tokens, greedy(model), strict=True))
    rounded = logprobs(model, tokens)
    apart = _apart(of_vllm, rounded)
    line = f"{name}: {same} of {GREEDY} tokens, {len(set(tokens))} kinds; logprobs apart by at most {apart:.1e}"
    if family.dtype == "float32":
        return line
    return f"{line}; transformers' own, if not rounded, by {_apart(logprobs(model.float(), tokens), rounded):.1e}"


def _apart(ours: list[float], theirs: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    """Print a line for each family that the command line names, vLLM in a process of its own."""
    os.environ |= {"VLLM_PLUGINS": "none", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            print(compare(name, pathlib.Path(folder) / name), flush=True)


if __name__ == "__main__":
    main()
