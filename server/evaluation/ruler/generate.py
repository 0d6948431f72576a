"""Runs RULER's own programs that make samples: ``python -m server.evaluation.ruler.generate``, told by JSON on stdin.

The programs are made for a machine that downloads NLTK's model of English sentences, and they load tokenizers with code
of strangers. Here the same model comes from a package, and no such code is run. Each program has a process of its own,
forked from this one after what takes long was imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

# The programs try again for ever where a length is too short for their task, some without counting a text's tokens.
_TRIES = 200
_SECONDS = 60.0  # of the CPU's time
_TOO_SHORT = "it is too short for this task"


def main() -> None:
    """Run ``[[program, tokens of a prompt, arguments], ...]``; print a line for each: why it failed, or nothing."""
    jobs = json.load(sys.stdin)
    import nltk.tokenize
    import punkt
    import transformers
    from long_context_eval.data import tokenizer

    for module in ("scipy.special", "wonderwords"):
        importlib.import_module(module)
    loaded: dict[str, Any] = {}

    def load(self: Any, model_path: str) -> None:
        if model_path not in loaded:
            loaded[model_path] = transformers.AutoTokenizer.from_pretrained(model_path)
        self.tokenizer = loaded[model_path]

    nltk.tokenize.sent_tokenize = punkt.sent_tokenize
    tokenizer.HFTokenizer.__init__ = load
    cut = tokenizer.HFTokenizer.text_to_tokens
    sys.modules["tokenizer"] = tokenizer  # the name under which some of the programs import it
    for program, room, arguments in jobs:
        tokenizer.HFTokenizer.text_to_tokens = _bounded(cut, room)
        print(_ran(program, arguments), flush=True)


def _bounded(cut: Callable[[Any, str], list[str]], room: int) -> Callable[[Any, str], list[str]]:
    """A tokenizer's method that ends the process after many texts that are too long, or none for long."""
    tries = 0

    def bounded(self: Any, text: str) -> list[str]:
        nonlocal tries
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        tokens = cut(self, text)
        tries = tries + 1 if len(tokens) > room else 0
        if tries == _TRIES:
            print(_TOO_SHORT, file=sys.stderr, flush=True)
            os._exit(1)
        return tokens

    return bounded


def _ran(program: str, arguments: list[str]) -> str:
    """Run a program in a process of its own; gives why it failed, in one line, or nothing."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        if not (child := os.fork()):
            status = 1
            with contextlib.suppress(BaseException):
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
                sys.argv = [program, *arguments]
                sys.path.insert(0, str(pathlib.Path(program).parent))
                try:
                    runpy.run_path(program, run_name="__main__")
                    status = 0
                except BaseException as error:
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGVTALRM:
            return _TOO_SHORT
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
        return "" if status == 0 else (lines or [f"status {status}"])[-1]


if __name__ == "__main__":
    main()
