"""Ask a server for pass keys and score its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posenc_runtime.zoo.passkey import PasskeySample, is_correct
from tests.benchmarks.client import ask_cell_by_cell
from tests.benchmarks.variants import Variant

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclasses.dataclass(frozen=True)
class Haystack:
    """What the samples of one cell have in common.

    Attributes:
        length: of prompt and answer together, tokens.
        decoys: other codes beside the pass key, which make it harder to find.
    """

    length: int
    decoys: int = 0


@dataclasses.dataclass
class Cell:
    """How one deployment answered the samples of one haystack.

    Attributes:
        scales: how many responses named which scale; ``none`` for those that named none.
        wrong_scales: responses that named another scale than the request's length asks for.
        wrong_lengths: prompts that the server counted other than we did.
        right: seeds of the samples that were answered correctly, with which deployments are compared sample by sample.
    """

    haystack: Haystack
    samples: int = 0
    correct: int = 0
    scales: dict[str, int] = dataclasses.field(default_factory=dict)
    wrong_scales: int = 0
    wrong_lengths: int = 0
    right: list[int] = dataclasses.field(default_factory=list)

    def count(self, sample: PasskeySample, answer: str, scale: float | None, expected: float | None) -> None:
        """Take one response in."""
        self.samples += 1
        if is_correct(sample, answer):
            self.correct += 1
            self.right.append(sample.seed)
        label = "none" if scale is None else f"{scale:g}"
        self.scales[label] = self.scales.get(label, 0) + 1
        self.wrong_scales += scale != expected


async def ask(
    address: str,
    model: str,
    variant: Variant,
    samples: Mapping[Haystack, Sequence[PasskeySample]],
    *,
    trained: int,
    concurrency: int,
    advance: Callable[[], None],
) -> list[Cell]:
    """Send every sample, haystack by haystack, and score the answers.

    Args:
        concurrency: requests at once.
        advance: called after every response.
    """

    async def one(client: AsyncOpenAI, cell: Cell, sample: PasskeySample) -> None:
        response = await client.completions.create(
            model=model,
            prompt=sample.prompt,
            temperature=0,
            max_tokens=sample.total_tokens - sample.prompt_tokens,
        )
        expected = variant.expected_scale(cell.haystack.length, trained)
        cell.count(sample, response.choices[0].text, scale_of(response.model_extra), expected)
        cell.wrong_lengths += response.usage is None or response.usage.prompt_tokens != sample.prompt_tokens

    cells = [(Cell(haystack), made) for haystack, made in samples.items()]
    return await ask_cell_by_cell(address, cells, one, concurrency=concurrency, advance=advance)


def scale_of(extra: dict[str, Any] | None) -> float | None:
    """The scale that a response names beside OpenAI's own fields; None when it names none."""
    params = (extra or {}).get("kv_transfer_params") or {}
    said = params.get("posenc")
    # Positions at read time have no scales.
    return None if said is None or "scale" not in said else float(said["scale"])
