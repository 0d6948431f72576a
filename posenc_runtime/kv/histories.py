"""Which cached beginnings a request may go on from, where turns of a conversation go on from each other.

A history is a first scale and a scale: that of requests which began at the first scale and have crossed, by
``rerotate``, up to the other. By Decision 15 both and the tokens decide what such a request has cached. So whoever goes
on from a history's blocks computes what one request would compute that had begun there and never ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from posenc_runtime.kv.scales import ScaleSet


@dataclasses.dataclass(frozen=True)
class History:
    """A beginning that other requests may have cached.

    Attributes:
        first_index: scale at which its first token was computed.
        scale_index: scale that its keys have now.
        fewest_tokens: with fewer tokens, a request of this history would not have crossed to the scale yet.
        most_tokens: with more tokens, it would have crossed to the next one; or nothing would be left to compute.
    """

    first_index: int
    scale_index: int
    fewest_tokens: int
    most_tokens: int


def histories_of(scale_set: ScaleSet, first_index: int, up_to_index: int, num_tokens: int) -> Iterator[History]:
    """The histories that a request of ``num_tokens`` may go on from, of one first scale; the furthest one first."""
    lengths = scale_set.lengths
    for scale_index in range(up_to_index, first_index - 1, -1):
        fewest = lengths[scale_index - 1] if scale_index > first_index else 1
        most = min(num_tokens, lengths[scale_index]) - 1
        if fewest <= most:
            yield History(first_index, scale_index, fewest, most)


def histories_to_continue(scale_set: ScaleSet, admitted_index: int, num_tokens: int) -> Iterator[History]:
    """The histories that a new request may go on from instead of beginning at the scale it is admitted at.

    Half of its prompt must be cached. Otherwise the request would compute most of a long prompt at small scales and
    cross, only because a few tokens at its beginning, such as a system prompt, are known from shorter requests.
    """
    half = -(-num_tokens // 2)
    for first_index in range(admitted_index, -1, -1):
        for history in histories_of(scale_set, first_index, admitted_index, num_tokens):
            if history.scale_index == history.first_index == admitted_index or history.most_tokens < half:
                continue
            yield dataclasses.replace(history, fewest_tokens=max(history.fewest_tokens, half))
