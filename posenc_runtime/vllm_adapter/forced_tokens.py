"""A logits processor for vLLM that makes a request say a given text, token by token.

A request names the tokens in ``vllm_xargs``, as ``{"forced_token_ids": [5, 7, 7]}``. The server decodes them one by one
like any others, and reports their log probabilities as the model gave them: vLLM takes those before it calls a logits
processor (``logprobs_mode: raw_logprobs``, the default). So the log probability of any text can be measured while the
text grows in the KV cache. A server takes such requests if it was started with ``--logits-processors`` and
``FORCED_TOKENS``; it needs no other part of Posenc.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.logits_processor import LogitsProcessor as OfRunnerOne
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as OfRunnerTwo

from posenc_runtime.vllm_adapter.contract.names import FORCED_TOKEN_IDS


class ForcedTokens(OfRunnerOne, OfRunnerTwo):
    """Leaves a request no choice until it has said what it was told to say.

    vLLM's two model runners have interfaces of their own, and load a class by one name. This class has both.
    """

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool | None = None) -> None:
        self._by_row: dict[int, tuple[list[int], list[int]]] = {}  # runner 1: what to say, and what was said
        self._by_slot: dict[int, list[int]] = {}  # runner 2
        self._requests = device  # runner 2 gives its requests in the place of runner 1's device

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check a request.

        Raises:
            ValueError: when what it is to say is no list of token ids.
        """
        asked = (sampling_params.extra_args or {}).get(FORCED_TOKEN_IDS)
        if asked is not None and not (
            isinstance(asked, list) and all(type(each) is int and each >= 0 for each in asked)
        ):
            raise ValueError(f"vllm_xargs.{FORCED_TOKEN_IDS} must be a list of token ids, got {asked!r:.80}")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows of runner 1's batch."""
        process_dict_updates(self._by_row, batch_update, lambda params, _, said: _row(params, said))

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Follow the slots of runner 2's requests."""
        forced = _forced(sampling_params)
        if forced:
            self._by_slot[req_idx] = forced
        else:
            self._by_slot.pop(req_idx, None)
        return bool(forced)

    def apply(self, logits: Tensor, ctx: LogitsContext | None = None) -> Tensor:
        """Give all probability to the next token of each request that is told what to say.

        Args:
            logits: of shape (rows, vocabulary).
            ctx: runner 2's batch; None for runner 1.
        """
        if ctx is None:
            for row, (forced, said) in self._by_row.items():
                _force(logits[row], forced, len(said))
        elif self._by_slot:
            for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
                if slot in self._by_slot:
                    num_said = int(ctx.seq_lens_upper_bound_np[row]) - int(self._requests.prompt_len.np[slot])
                    _force(logits[row], self._by_slot[slot], num_said)
        return logits


def _force(logits: Tensor, forced: list[int], num_said: int) -> None:
    if 0 <= num_said < len(forced):
        logits.fill_(float("-inf"))
        logits[forced[num_said]] = 0.0


def _forced(params: SamplingParams) -> list[int]:
    found: list[int] = (params.extra_args or {}).get(FORCED_TOKEN_IDS) or []
    return found


def _row(params: SamplingParams, said: list[int]) -> tuple[list[int], list[int]] | None:
    forced = _forced(params)
    return (forced, said) if forced else None
