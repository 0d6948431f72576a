"""The habit of agents' clients: when a conversation reaches the model's window, they ask the model to summarise it.

The request for the summary has the whole conversation in it, and a result of a tool that came after the last look at
the window. So it is often longer than the window, and a server that ends there refuses it: the conversation is lost.
"""

from __future__ import annotations

from typing import Any

import openai

_ROOM = 0.75  # of the window; a client compacts once a conversation is longer
_TASK, _SUMMARISE = "Read what the tool says.", "Summarise our conversation."


class Agent:
    """Talks to a model, and compacts the conversation by the model's window.

    Args:
        window: tokens, as a model's card says it.

    Attributes:
        compacted: how often it replaced the conversation by a summary.
        used: tokens of the last request and its answer.
    """

    def __init__(self, client: openai.OpenAI, model: str, window: int) -> None:
        self._client, self._model, self._window = client, model, window
        self._messages: list[Any] = [{"role": "user", "content": _TASK}]
        self.compacted = self.used = 0

    def work(self, result: str) -> int:
        """Call a tool again and again until the conversation was compacted once, then go on.

        Args:
            result: of the tool; the last one is four times as long.

        Returns:
            Tokens of the longest request with its answer.
        """
        self._ask(32)
        while self.used < _ROOM * self._window:
            self._hear(result)
            self._ask(32)
        self._hear(4 * result)
        summary = self._compact()
        longest = self.used
        self._messages = [{"role": "user", "content": _TASK}, {"role": "assistant", "content": summary}]
        self._hear(result)
        self._ask(32)
        return longest

    def _hear(self, result: str) -> None:
        self._messages.append({"role": "user", "content": f"The tool says: {result}"})

    def _compact(self) -> str:
        self._messages.append({"role": "user", "content": _SUMMARISE})
        self.compacted += 1
        return self._ask(64)

    def _ask(self, max_tokens: int) -> str:
        answer = self._client.chat.completions.create(
            model=self._model, messages=self._messages, max_tokens=max_tokens, extra_body={"min_tokens": 1}
        )
        assert answer.usage is not None
        self.used = answer.usage.total_tokens
        said = answer.choices[0].message.content or ""
        self._messages.append({"role": "assistant", "content": said})
        return said
