"""``posenc chat``: a conversation with a model, with the scale of each answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from server.client.client import BadAnswer, Server
from server.commands.telling import tell

if TYPE_CHECKING:
    from rich.console import Console

_END, _ANEW = "/quit", "/new"


class Conversation:
    """What was said so far.

    Args:
        is_chat: whether messages go through the model's chat template; otherwise the model completes the text so far.
        system: a message before all others; empty for none.
    """

    def __init__(self, server: Server, console: Console, *, max_tokens: int, is_chat: bool, system: str) -> None:
        self._server, self._console, self._max_tokens, self._is_chat = server, console, max_tokens, is_chat
        self._system = system
        self.model = server.model()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._text = f"{self._system}\n" if self._system else ""

    def say(self, words: str) -> None:
        """Send words and print the answer.

        Where the model has no chat template, the conversation goes on as a text that the model completes.

        Raises:
            NoAnswer: when the server cannot be reached.
            BadAnswer: when it answers with an error.
        """
        if self._is_chat:
            try:
                asked = [*self._messages, {"role": "user", "content": words}]
                answer = tell(self._server.chat(self._body({"messages": asked})), self._console, self._server)
                self._messages = [*asked, {"role": "assistant", "content": answer}]
                return
            except BadAnswer as error:
                if self._messages[1:] or "chat template" not in error.said:
                    raise
                self._is_chat = False
                self._console.print("this model has no chat template: it completes the text so far", style="dim")
        prompt = self._text + words
        self._text = (
            prompt + tell(self._server.completion(self._body({"prompt": prompt})), self._console, self._server) + "\n"
        )

    def _body(self, asked: dict[str, object]) -> dict[str, object]:
        return {"model": self.model, "max_tokens": self._max_tokens, **asked}


def converse(conversation: Conversation, console: Console) -> None:
    """Read lines until the end of the input; an error of the server is shown, and the conversation goes on."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        console.print(f"[bold]{conversation.model}[/]  {_ANEW} begins anew, {_END} ends", highlight=False)
    for line in _lines(console) if is_terminal else sys.stdin:
        match line.strip():
            case "":
                continue
            case command if command == _END:
                return
            case command if command == _ANEW:
                conversation.begin_anew()
            case words:
                try:
                    conversation.say(words)
                except BadAnswer as error:
                    if not is_terminal:
                        raise
                    console.print(str(error), style="red", markup=False, highlight=False)


def _lines(console: Console) -> Iterator[str]:
    import contextlib
    import importlib

    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # lets input() edit the line
    with contextlib.suppress(EOFError):
        while True:
            yield console.input("\n[bold]>[/] ")
