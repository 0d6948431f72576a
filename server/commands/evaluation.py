"""``posenc eval``: compares how well deployments read long texts."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.commands import options
from server.printing.terminal import console, refusals

# What takes long to import is imported in the commands, so that help and errors appear at once.
if TYPE_CHECKING:
    from server.evaluation.evaluating import Setting
    from server.evaluation.items import Task
    from server.evaluation.targets import Target

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure how well deployments read long texts, over any server of OpenAI's API.",
    short_help="Measure how well deployments read long texts.",
)

Targets = Annotated[
    list[str],
    typer.Option(
        "--target",
        metavar="[NAME=]TARGET",
        help="What to measure: the address of a running server, or anything that `posenc serve` takes: the command "
        "then starts a server, and stops it afterwards. With `unscaled:` in front, it serves without scales; "
        "with `static:` in front, it is stock vLLM, with the largest scale for all requests. May be repeated: "
        "all targets get the same samples, and are compared with the first.",
        autocompletion=options.targets,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[NAME:]PATH=VALUE",
        help="Override a setting of all deployments that the command starts, or of the one with the name. May be "
        "repeated.",
    ),
]
Out = Annotated[
    pathlib.Path,
    typer.Option("--out", metavar="FOLDER", help="Where results go. The same command again goes on where it was."),
]
Text = Annotated[
    pathlib.Path,
    typer.Option("--text", metavar="PATH", help="A file of text, or a folder of text, Markdown or HTML."),
]
PieceLength = Annotated[
    int | None, typer.Option("--length", min=4, help="Tokens of a piece; an eighth of the trained length.")
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Pieces of text that are measured.")]
Seed = Annotated[int, typer.Option("--seed", help="Chooses the samples.")]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="MODEL", help="A model's folder or name; what the targets say when left out."),
]
Window = Annotated[
    int | None,
    typer.Option("--window", min=1, help="The trained length, tokens; what the targets say when left out."),
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Requests at once.")]
Key = Annotated[
    str | None,
    typer.Option("--api-key", metavar="KEY", envvar="OPENAI_API_KEY", help="The servers' key.", show_default=False),
]


@app.command(short_help="Log probability of a book by position, in one pass and by decoding.")
def text(
    target: Targets,
    text: Text,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=2,
            help="Tokens of a piece that goes through in one pass. May be repeated; without it, the trained length "
            "times 1, 2, 4 and 8, as far as all targets serve it.",
        ),
    ] = None,
    decode_from: Annotated[
        int | None,
        typer.Option(
            "--decode-from",
            min=1,
            help="Tokens of the prompt before decoding begins; shortly before the trained length.",
        ),
    ] = None,
    decode: Annotated[
        int | None,
        typer.Option(
            "--decode",
            min=0,
            help="Tokens that are decoded, 0 for none; without it, as many past the trained length as before it.",
        ),
    ] = None,
    bucket: Annotated[int | None, typer.Option("--bucket", min=1, help="Positions in a row of the tables.")] = None,
    samples: Samples = 20,
    seed: Seed = 0,
    out: Out = pathlib.Path("eval-text"),
    overrides: Overrides = None,
    tokenizer: Tokenizer = None,
    window: Window = None,
    concurrency: Concurrency = 4,
    key: Key = None,
) -> None:
    """Measure the mean log probability of a book's tokens by position.

    It is measured in one pass, and by decoding: the server is told to say the text token by token through its KV cache,
    from a prompt within the trained length to a length past it, so that a request of Posenc crosses on the way.
    """
    with refusals():
        from server.evaluation import EvaluationRefused, texts
        from server.evaluation.tasks.text import Decoding, TextTask

        book = texts.read(text)
        found, setting = _looked_at(target, overrides, key, tokenizer, window)
        trained = setting.window
        longest = setting.longest or 8 * trained + 1
        begin = decode_from or trained - max(64, trained // 16)
        if begin < 1:
            raise EvaluationRefused(f"--decode-from: must be given for a trained length of {trained:,} tokens")
        decoding = Decoding(begin, min(2 * (trained - begin), longest - 1 - begin) if decode is None else decode)
        if decoding.count < 0:
            raise EvaluationRefused(
                f"--decode-from: must be less than the trained length ({trained:,}) and than what the targets serve "
                f"({longest:,}), got {begin:,}: give fewer, or --decode"
            )
        # The request has one more token: what the server answers.
        lengths = length or [min(trained * n, longest - 1) for n in (1, 2, 4, 8) if trained * n <= longest]
        task = TextTask(
            book, setting.tokens, lengths=lengths, decoding=decoding, window=trained,
            bucket=bucket or max(1, trained // 2), samples=samples, seed=seed,
        )  # fmt: skip
        _run(found, task, out, concurrency, {"text file": str(text)}, forces_tokens=decoding.count > 0)


@app.command(short_help="What requests within the trained length lose.")
def short(
    target: Targets,
    text: Text,
    length: PieceLength = None,
    answer: Annotated[int, typer.Option("--answer", min=0, help="Tokens of each greedy answer; 0 for none.")] = 32,
    samples: Samples = 40,
    seed: Seed = 0,
    out: Out = pathlib.Path("eval-short"),
    overrides: Overrides = None,
    tokenizer: Tokenizer = None,
    window: Window = None,
    concurrency: Concurrency = 1,
    key: Key = None,
) -> None:
    """Measure what short requests lose: the log probability of short texts, and greedy answers that changed.

    A static scale rotates short requests, too, although they have no need of it. Compare such a deployment with one
    that is not scaled, the first target. Requests go one by one, because a batch may change an answer's last digits.
    """
    with refusals():
        from server.evaluation import texts
        from server.evaluation.tasks.short import ShortTask

        book = texts.read(text)
        found, setting = _looked_at(target, overrides, key, tokenizer, window)
        chosen = length or max(4, setting.window // 8)
        task = ShortTask(book, setting.tokens, length=chosen, answer=answer, samples=samples, seed=seed)
        _run(found, task, out, concurrency, {"text file": str(text)})


@app.command(short_help="The same text at other positions.")
def shift(
    target: Targets,
    text: Text,
    length: PieceLength = None,
    padding: Annotated[
        list[int] | None,
        typer.Option(
            "--padding",
            min=0,
            help="Tokens before a piece. May be repeated; without it, eighths of the trained length from 1 to 12.",
        ),
    ] = None,
    samples: Samples = 20,
    seed: Seed = 0,
    out: Out = pathlib.Path("eval-shift"),
    overrides: Overrides = None,
    tokenizer: Tokenizer = None,
    window: Window = None,
    concurrency: Concurrency = 4,
    key: Key = None,
) -> None:
    """Measure how much the log probability of a text changes when it stands at a later position.

    Paddings of one token put the same text at several positions, within the trained length and past it. A relative
    encoding reads it alike at all positions within the trained length; an absolute one need not.
    """
    with refusals():
        from server.evaluation import texts
        from server.evaluation.tasks.shift import ShiftTask

        book = texts.read(text)
        found, setting = _looked_at(target, overrides, key, tokenizer, window)
        chosen = length or max(4, setting.window // 8)
        longest = (setting.longest or 2 * setting.window) - chosen - 2
        eighth = max(1, setting.window // 8)
        shifts = padding or [each for each in range(eighth, 12 * eighth + 1, eighth) if each <= longest]
        task = ShiftTask(
            book, setting.tokens, shifts=shifts, length=chosen, skipped=chosen // 4, samples=samples, seed=seed
        )
        _run(found, task, out, concurrency, {"text file": str(text)})


@app.command(short_help="Which of two values was the later one.")
def order(
    target: Targets,
    text: Text,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=128,
            help="Tokens of prompt and value. May be repeated; without it, the trained length times 1/2, 1 and 2, as "
            "far as all targets serve it.",
        ),
    ] = None,
    samples: Samples = 20,
    seed: Seed = 0,
    out: Out = pathlib.Path("eval-order"),
    overrides: Overrides = None,
    tokenizer: Tokenizer = None,
    window: Window = None,
    concurrency: Concurrency = 1,
    key: Key = None,
) -> None:
    """Measure whether the order of far text is kept: a value is given twice, and the later one counts.

    The two sentences are alike, and both stand in the first two thirds of the text. A model that reads them without
    their order takes either value for the latest.
    """
    with refusals():
        from server.evaluation import texts
        from server.evaluation.tasks.order import OrderTask

        book = texts.read(text)
        found, setting = _looked_at(target, overrides, key, tokenizer, window)
        lengths = length or _usual_lengths(setting, (1, 2, 4))
        task = OrderTask(book, setting.tokens, lengths=lengths, samples=samples, seed=seed)
        _run(found, task, out, concurrency, {"text file": str(text)}, forces_tokens=True)


@app.command(short_help="RULER's 13 tasks by length, the effective length, and needles by depth.")
def ruler(
    target: Targets,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=256,
            help="Tokens of prompt and answer. May be repeated; without it, the trained length times 1/2, 1, 2 and 4, "
            "as far as all targets serve it.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", metavar="TASK", help="One of RULER's tasks, such as vt. May be repeated; all without it."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples of each task at each length.")] = 20,
    seed: Annotated[int, typer.Option("--seed", help="Makes the samples; 42 is RULER's.")] = 42,
    chat: Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.")] = False,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold", min=0, max=1, help="The mean score from which on a length is effective; the paper's."
        ),
    ] = 0.856,  # what Llama 2 7B has at 4,096 tokens
    out: Out = pathlib.Path("eval-ruler"),
    overrides: Overrides = None,
    tokenizer: Tokenizer = None,
    window: Window = None,
    concurrency: Concurrency = 4,
    key: Key = None,
) -> None:
    """Measure RULER's 13 tasks by length: needles, variables, words and questions.

    NVIDIA's own package makes the samples and scores the answers: pip install 'posenc[eval]'.
    """
    with refusals():
        from server.evaluation import EvaluationRefused
        from server.evaluation.ruler import samples as made
        from server.evaluation.tasks.ruler import RulerTask

        if unknown := [each for each in task or () if each not in made.TASKS]:
            raise EvaluationRefused(f"--task: must be one of {', '.join(made.TASKS)}, got {', '.join(unknown)}")
        made.version()
        found, setting = _looked_at(target, overrides, key, tokenizer, window)
        chosen = length or _usual_lengths(setting, (1, 2, 4, 8))
        folder = out / f"samples-{samples}-{seed}"
        evaluated = RulerTask(
            folder, setting.tokens, tasks=task or made.TASKS, lengths=chosen, num_samples=samples, seed=seed,
            is_chat=chat, threshold=threshold,
        )  # fmt: skip
        _run(found, evaluated, out, concurrency, {"threshold": threshold})


def _usual_lengths(setting: Setting, halves: Sequence[int]) -> list[int]:
    """So many halves of the trained length each, as far as all targets serve them."""
    lengths = [setting.window * each // 2 for each in halves]
    return [each for each in lengths if each <= (setting.longest or lengths[-1])]


def _looked_at(
    specs: list[str], overrides: list[str] | None, key: str | None, tokenizer: str | None, window: int | None
) -> tuple[list[Target], Setting]:
    from server.evaluation import targets
    from server.evaluation.evaluating import Setting

    found = targets.parse_targets(specs, overrides or (), key)
    return found, Setting(found, tokenizer, window)


def _run(
    found: list[Target],
    task: Task,
    out: pathlib.Path,
    concurrency: int,
    about: dict[str, Any],
    *,
    forces_tokens: bool = False,
) -> None:
    from server.evaluation import result
    from server.evaluation.evaluating import evaluate
    from server.evaluation.result import show
    from server.printing.version import version_line

    told = {**result.describe_run(sys.argv[1:]), "version": version_line(), "concurrency": concurrency, **about}
    try:
        reported = evaluate(
            found, task, out, told, console(stderr=True), concurrency=concurrency, forces_tokens=forces_tokens
        )
    except KeyboardInterrupt:
        console(stderr=True).print(
            f"interrupted: {out} keeps what was measured, and the same command goes on", highlight=False
        )
        raise
    show(reported, console())
