"""What a server knows of its engine: what the engine has room for, whether it runs, and whether it generates."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
import uuid
from typing import Any

from posenc_runtime.vllm_adapter.refusals.tiers import hands_over

_STARTING = 1024  # sequences at once, as long as no engine says how many
PREFIX = "posenc-probe-"
_PAUSE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """What an engine has now.

    Attributes:
        running: sequences that it runs at once; of all engines of a server.
        held: sequences that it has from this API server.
        transfer_params: fields of a request with parameters that its connectors need of clients.
    """

    running: int = _STARTING
    held: int = 0
    transfer_params: frozenset[str] = frozenset()


def capacity_of(engine: Any) -> Capacity:
    """What vLLM's client of an engine reports. The client is None if the engine does not run yet."""
    config = getattr(engine, "vllm_config", None)
    if config is None:
        return Capacity()
    connectors = (
        ("kv_transfer_params", hands_over(config.kv_transfer_config)),
        ("ec_transfer_params", getattr(config, "ec_transfer_config", None) is not None),
    )
    return Capacity(
        running=config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size,
        held=len(engine.output_processor.request_states),
        transfer_params=frozenset(name for name, is_needed in connectors if is_needed),
    )


class NoToken(RuntimeError):
    """The engine gave no token; the message says why."""


async def one_token(engine: Any, seconds: float) -> None:
    """Have an engine generate one token, at scale 1. The request waits in the queue as others do.

    Args:
        engine: vLLM's client of a running engine.
        seconds: that it may take.

    Raises:
        NoToken: when no token came in time, the engine refused the request, or the model computed no numbers.
    """
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, logprobs=1)
    (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": [_any_token(engine)]}])
    answer = None
    try:
        async with asyncio.timeout(seconds):
            # The class's own method: the instance's writes the log of requests.
            async for output in type(engine).generate(engine, prompt, params, f"{PREFIX}{uuid.uuid4().hex}"):
                answer = output.outputs[0]
    except TimeoutError:
        raise NoToken(f"no token after {seconds:g} s") from None
    except Exception as error:
        raise NoToken(str(error) or type(error).__name__) from error
    if answer is None or not answer.token_ids:
        raise NoToken("the request ended without a token")
    if not all(math.isfinite(each.logprob) for each in answer.logprobs[0].values()):
        raise NoToken("the model computes no finite numbers: its weights may be damaged")


def _any_token(engine: Any) -> int:
    token = getattr(engine.model_config.hf_text_config, "bos_token_id", None)
    return token if isinstance(token, int) else 0


class Pulse:
    """The last answer of the engine's core. At most one question is under way.

    Args:
        engine: vLLM's client of a running engine; with several parallel engines, all are asked.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self.sleeps = False

    def start(self) -> None:
        """Begin to ask, in the running event loop."""
        self._asking = asyncio.create_task(self._ask())

    @property
    def unanswered_seconds(self) -> float:
        """For how long the question under way has had no answer; 0 where there is none."""
        return 0.0 if self._asked is None else time.monotonic() - self._asked

    async def _ask(self) -> None:
        while not self._engine.errored:
            self._asked = time.monotonic()
            with contextlib.suppress(Exception):  # an engine that is about to stop refuses to answer
                self.sleeps = await self._engine.is_sleeping()
            self._asked = None
            await asyncio.sleep(_PAUSE_SECONDS)
