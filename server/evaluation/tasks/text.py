"""``posenc eval text``: how well a model predicts a book, by position: in one pass, and decoded across a crossing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.contract.names import FORCED_TOKENS
from server.evaluation import averages, texts
from server.evaluation.asking import Asker
from server.evaluation.averages import Bucket, Values
from server.evaluation.intervals import mean
from server.evaluation.items import DECODED_COST, Item, Record, Results
from server.evaluation.result import Picture, Report
from server.evaluation.tokens import Tokens
from server.printing.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NATS = "natural logarithm; 95 % t intervals over pieces"


@dataclasses.dataclass(frozen=True)
class Decoding:
    """What is decoded of a piece.

    Attributes:
        begin: tokens of the prompt.
        count: tokens that are decoded after it; 0 for none.
    """

    begin: int
    count: int

    @property
    def length(self) -> int:
        return self.begin + self.count


class TextTask:
    """Log probabilities of a book's tokens.

    Args:
        text: all of it.
        lengths: of the pieces that go through in one pass, tokens.
        decoding: of the pieces that are decoded; they also go through in one pass, for comparison.
        window: the trained length, tokens.
        bucket: positions that are averaged in the tables of one pass.
    """

    name = "text"

    def __init__(
        self, text: str, tokens: Tokens, *, lengths: Sequence[int], decoding: Decoding, window: int, bucket: int,
        samples: int, seed: int,
    ) -> None:  # fmt: skip
        self._ids, self._tokens = tokens.ids(text), tokens
        self._lengths, self._decoding, self._window, self._bucket = list(lengths), decoding, window, bucket
        self._samples, self._seed = samples, seed
        self.longest = max([length + 1 for length in lengths] + [decoding.length + 1] * bool(decoding.count))
        self.options: dict[str, Any] = {
            "text": texts.fingerprint(text),
            "tokenizer": tokens.fingerprint(),
            "window": window,
            "lengths": self._lengths,
            "decoded": dataclasses.asdict(decoding),
            "samples": samples,
            "seed": seed,
        }

    def items(self) -> list[Item]:
        """A piece after the other."""
        found = [
            Item(f"pass/{length}/{number}", self._seed, length, piece)
            for length in self._lengths
            for number, piece in enumerate(self._pieces(length))
        ]
        if not self._decoding.count:
            return found
        begin, length = self._decoding.begin, self._decoding.length
        cost = begin + length + DECODED_COST * self._decoding.count
        return [
            *(
                Item(f"decoded/{begin}/{number}", self._seed, cost, piece)
                for number, piece in enumerate(self._pieces(length))
            ),
            *found,
        ]

    def _pieces(self, length: int) -> list[list[int]]:
        start = self._tokens.start
        found = texts.pieces(self._ids, length - len(start), self._samples, self._seed)
        return [[*start, *piece] for piece in found]

    async def measure(self, asker: Asker, item: Item) -> Record:
        """The log probability of each token; ``decoded`` is null where the server cannot be told what to say."""
        piece = item.given
        if item.id.startswith("pass/"):
            return {"one_pass": _rounded(await asker.prompt_logprobs(piece))}
        begin = self._decoding.begin
        forced = await asker.forced_logprobs(piece[:begin], piece[begin:])
        one_pass = await asker.prompt_logprobs(piece)
        return {
            "decoded": forced and _rounded(forced.logprobs),
            "crossings": forced.crossings if forced else [],
            "one_pass": _rounded(one_pass[begin - 1 :]),
        }

    def report(self, results: Results) -> Report:
        """Tables by position, the differences from the first target, and a picture of each kind."""
        passes = {length: self._of_one_pass(results, length) for length in self._lengths}
        decoded = self._of_decoding(results)
        tables, pictures = [], []
        for length, rows in passes.items():
            tables += _tables(
                f"Mean log probability by position, in one pass of {length:,} tokens", rows, list(results)
            )
        if passes:
            longest = max(passes)
            pictures.append(_by_position(f"One pass of {longest:,} tokens", "one_pass", passes[longest], self._window))
        remarks = []
        if decoded:
            tables.append(_decoded_table(decoded, list(results)))
            lines = {bucket: each["decoded"] for bucket, each in decoded.items()}
            if any(any(each.values()) for each in lines.values()):
                title = f"Decoded one by one after {self._decoding.begin:,} tokens"
                pictures.append(_by_position(title, "decoded", lines, self._window))
            remarks = list(self._remarks(results))
        found = {
            "one_pass": {str(length): _as_json(rows) for length, rows in passes.items()},
            "decoded": {
                kind: _as_json({bucket: each[kind] for bucket, each in decoded.items()})
                for kind in ("decoded", "one_pass", "difference")
            },
        }
        return Report(found, tables, pictures, remarks)

    def _of_one_pass(self, results: Results, length: int) -> dict[Bucket, Values]:
        prefix = f"pass/{length}/"
        return {
            bucket: {
                target: {
                    item: averages.average(record["one_pass"], 1, bucket)
                    for item, record in records.items()
                    if item.startswith(prefix)
                }
                for target, records in results.items()
            }
            # The first token is not predicted.
            for bucket in averages.buckets(1, length, self._bucket)
        }

    def _of_decoding(self, results: Results) -> dict[Bucket, dict[str, Values]]:
        begin, length = self._decoding.begin, self._decoding.length
        crosses = begin < self._window < length
        width = max(8, (self._window - begin) // 2 if crosses else self._decoding.count // 8)
        edge = self._window if crosses else begin
        found: dict[Bucket, dict[str, Values]] = {}
        for bucket in averages.buckets(begin, length, width, edge=edge) if self._decoding.count else ():
            kinds: dict[str, dict[str, dict[str, float]]] = {"decoded": {}, "one_pass": {}, "difference": {}}
            for target, records in results.items():
                for kind in kinds.values():
                    kind[target] = {}
                for item, record in records.items():
                    if not item.startswith("decoded/"):
                        continue
                    one_pass = averages.average(record["one_pass"], begin, bucket)
                    kinds["one_pass"][target][item] = one_pass
                    if record["decoded"] is not None:
                        decoded = averages.average(record["decoded"], begin, bucket)
                        kinds["decoded"][target][item] = decoded
                        kinds["difference"][target][item] = decoded - one_pass
            found[bucket] = dict(kinds)
        return found

    def _remarks(self, results: Results) -> Iterator[str]:
        for target, records in results.items():
            decoded = [record for item, record in records.items() if item.startswith("decoded/")]
            if not decoded:
                continue
            if all(record["decoded"] is None for record in decoded):
                yield (
                    f"{target}: decoding was not measured, because this server cannot be told what to say. vLLM can, "
                    f"if it is started with `--logits-processors {FORCED_TOKENS}`. A server with one fixed rotation "
                    "computes the same in one pass as by decoding."
                )
                continue
            crossed = sum(bool(record["crossings"]) for record in decoded)
            at = sorted({position for record in decoded for position in record["crossings"]})
            where = f", at {', '.join(f'{each:,}' for each in at)} tokens" if at else ""
            yield f"{target}: {crossed} of {len(decoded)} decoded pieces crossed to another scale{where}."


def _tables(title: str, rows: dict[Bucket, Values], targets: Sequence[str]) -> list[Table]:
    means = [(str(bucket), averages.estimates(values)) for bucket, values in rows.items()]
    found = [averages.table(f"{title} ({_NATS}):", "position", means, targets)]
    if len(targets) > 1:
        first, *others = targets
        apart = [(str(bucket), averages.differences(values, first)) for bucket, values in rows.items()]
        title = f"The same, as difference from {first}, piece by piece; above 0 is better than {first}:"
        found.append(averages.table(title, "position", apart, others, sign=True))
    return found


def _decoded_table(rows: dict[Bucket, dict[str, Values]], targets: Sequence[str]) -> Table:
    lines = []
    for target in targets:
        for bucket, kinds in rows.items():
            cells = [
                mean(list(kinds[kind][target].values())).plus_minus(spec) if kinds[kind][target] else "-"
                for kind, spec in (("decoded", ".3f"), ("one_pass", ".3f"), ("difference", "+.3f"))
            ]
            lines.append((target, str(bucket), *cells))
    return Table(
        f"Mean log probability of tokens that were decoded one by one through the KV cache ({_NATS}):",
        ("target", "position", "decoded", "the same tokens in one pass", "difference"),
        lines,
        "In one pass all tokens of a request are rotated at one scale. Decoding crosses to a larger scale on the way.",
    )


def _by_position(title: str, name: str, rows: dict[Bucket, Values], window: int) -> Picture:
    def draw() -> Figure:
        from server.plots import style

        drawn, (axes,) = style.figure(title)
        for number, target in enumerate(dict.fromkeys(target for values in rows.values() for target in values)):
            known = [
                ((bucket.first + bucket.end) / 2, mean(list(values[target].values())))
                for bucket, values in rows.items()
                if values.get(target)
            ]
            style.band(axes, number, target, [(middle, each.value, each.low, each.high) for middle, each in known])
        if rows and min(rows, key=lambda each: each.first).first < window < max(each.end for each in rows):
            axes.axvline(window, color=style.FAINT, linestyle="--", linewidth=1)
            axes.annotate("trained length", (window, 1), (4, -4), xycoords=("data", "axes fraction"),
                          textcoords="offset points", va="top", color=style.FAINT, fontsize=9)  # fmt: skip
        axes.set_xlabel("position, tokens")
        axes.set_ylabel("mean log probability")
        axes.legend()
        return drawn

    return Picture(name, title, draw)


def _as_json(rows: dict[Bucket, Values]) -> list[dict[str, Any]]:
    return [
        {"from": bucket.first, "to": bucket.end - 1}
        | {target: each.as_json() for target, each in averages.estimates(values).items()}
        for bucket, values in rows.items()
    ]


def _rounded(logprobs: Sequence[float]) -> list[float]:
    return [round(each, 5) for each in logprobs]
