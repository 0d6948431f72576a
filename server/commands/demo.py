"""``posenc demo``: a short request, a long one, one that crosses, and what the metrics say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.client.client import Server
from server.commands.telling import tell

if TYPE_CHECKING:
    from rich.console import Console

_KEY = "The pass key is 48213. Remember it. 48213 is the pass key. "
_FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_CROSSING = " ".join(["The sky is blue."] * 73)
_QUESTION = "What is the pass key? The pass key is"
_OF_SCALES = ("posenc_requests_total", "posenc_crossings_total")
_OF_VLLM = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


# What is said of the requests, by whether the method has scales or turns queries.
_SCALED = (
    "The demo model was trained on 512 tokens, and is served to 4,096 by {rope_type}.",
    "It fits the trained length, and runs exactly as the model was trained.",
    "It needs scale 8: its frequencies are slowed down, those of other requests are not.",
    "A request that grows past its scale",
    "It starts at scale 1. At 512 tokens its cached keys are turned to scale 2, and it goes on.",
)
_TURNED = (
    "The demo model was trained on 512 tokens, and is served to 4,096 by {rope_type}: keys stay as they were cached.",
    "It fits the trained length: it is stock vLLM's, to the bit.",
    "Its queries past 512 tokens see at least the last {window} as trained, and all others at most {farthest} tokens "
    "away.",
    "A request that grows past the trained length",
    "At 512 tokens its queries begin to turn. Nothing that is cached changes.",
)


def show(server: Server, console: Console) -> None:
    """Send the requests and print the answers.

    Raises:
        NoAnswer: when the server cannot be reached.
        BadAnswer: when it answers with an error.
    """
    model, deployment = server.model(), server.scales()
    distances = deployment.get("distances")
    served, short, long, grows, growing = _TURNED if distances else _SCALED
    shown = _OF_VLLM if distances else _OF_SCALES
    if distances:
        long = long.format(window=distances["window"], farthest=distances["farthest"])

    def ask(title: str, why: str, prompt: str, **asked: object) -> None:
        console.print(f"\n[bold]{title}[/]\n{why}", highlight=False)
        tell(server.completion({"model": model, "prompt": prompt, "temperature": 0, **asked}), console, server)

    console.print(served.format(rope_type=deployment["rope_type"]), highlight=False)
    ask("A short request", short, _KEY + _FILLER * 2 + _QUESTION, max_tokens=6)
    ask("A long request", long, _FILLER * 45 + _KEY + _FILLER * 45 + _QUESTION, max_tokens=6)
    ask(grows, growing, _CROSSING, max_tokens=100, ignore_eos=True)
    console.print("\n[bold]What /metrics says[/]", highlight=False)
    for metric in server.metrics():
        for sample in metric.samples:
            if sample.name in shown and sample.value:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                console.print(f"{sample.name}{{{labels}}} {sample.value:g}", markup=False, highlight=False)
