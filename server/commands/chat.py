"""``posenc chat``: a conversation with a model, with the scale of each answer."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.contract.errors import Failed, did_you_mean
from server.client.client import BadAnswer, Report, Server
from server.commands.telling import Told, tell

if TYPE_CHECKING:
    from rich.console import Console

_END, _ANEW, _LOAD = "/quit", "/new", "/load"
_COMMANDS = (_LOAD, _ANEW, _END)
# Lines that a terminal has ready so soon after one another were pasted.
_PASTED_SECONDS = 0.05


class NotUnderstood(Failed):
    """A command of the conversation is unknown, or the file that it names cannot be read."""


class Conversation:
    """What was said so far.

    Args:
        is_chat: whether messages go through the model's chat template; otherwise the model completes the text so far.
        system: a message before all others; empty for none.
        may_stop: whether an interrupt from the keyboard ends an answer alone.
    """

    def __init__(
        self,
        server: Server,
        console: Console,
        *,
        max_tokens: int,
        is_chat: bool,
        system: str,
        may_stop: bool = False,
    ) -> None:
        self._server, self._console, self._max_tokens, self._is_chat = server, console, max_tokens, is_chat
        self._system, self._may_stop = system, may_stop
        self.model = server.model()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was said and loaded."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._text = f"{self._system}\n" if self._system else ""
        self._loaded: list[str] = []

    def load(self, name: str) -> None:
        """Put a file's text before the next words.

        Raises:
            NotUnderstood: when it cannot be read as text.
        """
        try:
            text = pathlib.Path(name).expanduser().read_text(encoding="utf-8")
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or f"it is no text in UTF-8 ({error})"
            raise NotUnderstood(f"{_LOAD}: must be followed by a text file, got {name!r}: {reason}") from None
        self._loaded.append(text)
        self._console.print(
            f"{name}: {len(text):,} characters, before your next message", style="dim", markup=False, highlight=False
        )

    def say(self, words: str) -> bool:
        """Send words, after the files that were loaded, and print the answer; gives whether it came to its end.

        An answer that the keyboard stopped stays in the conversation as far as it came.

        Raises:
            NoAnswer: when the server cannot be reached.
            BadAnswer: when it answers with an error.
        """
        words = "\n\n".join([*self._loaded, words])
        self._loaded = []
        if self._is_chat:
            try:
                asked = [*self._messages, {"role": "user", "content": words}]
                told = self._tell(self._server.chat, {"messages": asked})
                self._messages = [*asked, {"role": "assistant", "content": told.text}]
                return not told.is_stopped
            except BadAnswer as error:
                if self._messages[1:] or "chat template" not in error.said:
                    raise
                self._is_chat = False
                self._console.print("this model has no chat template: it completes the text so far", style="dim")
        prompt = self._text + words
        told = self._tell(self._server.completion, {"prompt": prompt})
        self._text = f"{prompt}{told.text}\n"
        return not told.is_stopped

    def _tell(self, ask: Callable[[dict[str, object]], Iterator[str | Report]], asked: dict[str, object]) -> Told:
        pieces = ask({"model": self.model, "max_tokens": self._max_tokens, **asked})
        return tell(pieces, self._console, self._server, max_tokens=self._max_tokens, may_stop=self._may_stop)


def converse(conversation: Conversation, console: Console) -> None:
    """Read lines until the end of the input; in a terminal, an error is shown and the conversation goes on.

    Raises:
        KeyboardInterrupt: at the second one with nothing said in between.
    """
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if line.strip() == _END:
                return
            _obey(conversation, line.strip())
        return
    console.print(
        f"[bold]{conversation.model}[/]  {_LOAD} FILE puts a file before your message, {_ANEW} begins anew, {_END} "
        "ends; Ctrl-C stops an answer, and twice the chat",
        highlight=False,
    )
    is_interrupted = False
    while True:
        try:
            line = _read_line().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if is_interrupted:
                raise
            is_interrupted = True
            console.print(f"\nCtrl-C once more, or {_END}, ends the chat", style="dim", highlight=False)
            continue
        if line == _END:
            return
        is_interrupted = False
        try:
            is_interrupted = not _obey(conversation, line)
        except (BadAnswer, NotUnderstood) as error:
            console.print(str(error), style="red", markup=False, highlight=False)


def _obey(conversation: Conversation, line: str) -> bool:
    """Do what a line asks for; gives whether the answer, if it asks for one, came to its end."""
    word, _, rest = line.partition(" ")
    if not line:
        return True
    if word == _ANEW:
        conversation.begin_anew()
    elif word == _LOAD:
        conversation.load(rest.strip())
    elif re.fullmatch(r"/[a-z]+", word):
        hint = did_you_mean(word, _COMMANDS)
        raise NotUnderstood(f"{word}: must be one of {', '.join(_COMMANDS)}, got {line!r}{hint}")
    else:
        return conversation.say(line)
    return True


def _read_line() -> str:
    """A line from the terminal, or all lines that were pasted at once."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # lets input() edit the line
    lines = [input("\n> ")]
    while select.select([sys.stdin], [], [], _PASTED_SECONDS)[0]:
        try:
            lines.append(input())
        except EOFError:
            break
    return "\n".join(lines)
