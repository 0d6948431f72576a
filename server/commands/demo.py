"""``posenc demo``: a short request, a long one, one that crosses, and what the metrics say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.commands.client import Server
from server.commands.telling import tell

if TYPE_CHECKING:
    from rich.console import Console

_KEY = "The pass key is 48213. Remember it. 48213 is the pass key. "
_FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_CROSSING = " ".join(["The sky is blue."] * 73)
_QUESTION = "What is the pass key? The pass key is"


def show(server: Server, console: Console) -> None:
    """Send the requests and print the answers.

    Raises:
        NoAnswer: when the server cannot be reached.
        BadAnswer: when it answers with an error.
    """
    model = server.model()

    def ask(title: str, why: str, prompt: str, **asked: object) -> None:
        console.print(f"\n[bold]{title}[/]\n{why}", highlight=False)
        tell(server.completion({"model": model, "prompt": prompt, "temperature": 0, **asked}), console, server)

    console.print("The demo model was trained on 512 tokens, and is served to 4,096 by YaRN.", highlight=False)
    ask(
        "A short request",
        "It fits the trained length, and runs exactly as the model was trained.",
        _KEY + _FILLER * 2 + _QUESTION,
        max_tokens=6,
    )
    ask(
        "A long request",
        "It needs scale 8: its frequencies are slowed down, those of other requests are not.",
        _FILLER * 45 + _KEY + _FILLER * 45 + _QUESTION,
        max_tokens=6,
    )
    ask(
        "A request that grows past its scale",
        "It starts at scale 1. At 512 tokens its cached keys are turned to scale 2, and it goes on.",
        _CROSSING,
        max_tokens=100,
        ignore_eos=True,
    )
    console.print("\n[bold]What /metrics says[/]", highlight=False)
    for metric in server.metrics():
        for sample in metric.samples:
            if sample.name in ("posenc_requests_total", "posenc_crossings_total") and sample.value:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                console.print(f"{sample.name}{{{labels}}} {sample.value:g}", markup=False, highlight=False)
