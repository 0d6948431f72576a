"""The habit of agents' clients: when a conversation reaches the model's window, they ask the model to summarise it.

The request for the summary has the whole conversation in it, and a result of a tool that came after the last look at
the window. So it is often longer than the window, and a server that ends there refuses it: the conversation is lost.

``python -m tests.engine.compacting_agent --window 512`` plays it against a server.
"""

from __future__ import annotations

from typing import Annotated, Any

import openai
import typer

_ROOM = 0.75  # of the window; a client compacts once a conversation is longer
RESULT = "The quick brown fox jumps over the lazy dog while seven wizards boil a cauldron of green soup. "
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


def play(
    window: Annotated[int, typer.Option(min=1, help="Tokens of the model's window, as its card says it.")],
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    result: Annotated[str, typer.Option(help="What the tool answers each time.")] = RESULT,
) -> None:
    """Talk to a server until the conversation was compacted once."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    try:
        agent = Agent(client, client.models.list().data[0].id, window)
        longest = agent.work(result)
    except openai.APIConnectionError:
        typer.echo(f"No server answers at {url}: start one, or give --url", err=True)
        raise typer.Exit(1) from None
    except openai.BadRequestError as error:
        typer.echo(f"The conversation is lost. The request for a summary was refused: {error.message}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"The summary was asked for with {longest} tokens, and answered. The conversation went on from it.")


if __name__ == "__main__":
    typer.run(play)
