"""The clients, and what is installed for each."""

from __future__ import annotations

import dataclasses
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "clients.md"
PROGRAMS = FOLDER / "programs"


@dataclasses.dataclass(frozen=True)
class Client:
    """A client of others.

    Attributes:
        name: its heading in docs/clients.md.
        package: whose version is told.
        asked_for: what its environment is made for. Nothing: it comes with vLLM.
        program: in ``programs``. None: it is a benchmark, and the commands of docs/clients.md are all that is run.
        needs_torch: it asks for PyTorch; the build for the CPU will do, and is installed without what it asks for.
    """

    name: str
    package: str
    asked_for: tuple[str, ...] = ()
    program: str | None = None
    needs_torch: bool = False

    @property
    def folder_name(self) -> str:
        return "-".join(self.name.lower().replace("(", "").replace(")", "").split())

    @property
    def is_of_npm(self) -> bool:
        return self.program is not None and self.program.endswith(".mjs")

    @property
    def releases(self) -> pathlib.Path:
        """The release of every package in its environment: requirements of pip, or a folder with a lock of npm."""
        name = self.folder_name
        return FOLDER / "releases" / (name if self.is_of_npm else f"{name}.txt")


CLIENTS = (
    Client("openai (Python)", "openai", ("openai",), "with_openai.py"),
    Client("openai (JavaScript)", "openai", ("openai@7", "node@22"), "with_openai.mjs"),
    Client("anthropic", "anthropic", ("anthropic",), "with_anthropic.py"),
    Client("LiteLLM", "litellm", ("litellm",), "with_litellm.py"),
    Client("LangChain", "langchain-openai", ("langchain-openai",), "with_langchain.py"),
    Client("LlamaIndex", "llama-index-llms-openai-like", ("llama-index-llms-openai-like",), "with_llama_index.py"),
    Client("GuideLLM", "guidellm", ("guidellm", "jinja2", "networkx", "sympy"), needs_torch=True),
    Client("lm-eval", "lm-eval", ("lm-eval[api]", "transformers")),
    Client("vllm bench serve", "vllm"),
)
