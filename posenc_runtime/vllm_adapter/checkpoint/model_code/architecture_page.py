"""The page of the documentation with every architecture of some releases of vLLM, and how its requests may cross."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posenc_runtime.vllm_adapter.checkpoint.model_code.architecture_tables import Release
from posenc_runtime.vllm_adapter.checkpoint.model_code.verdicts import KINDS, Verdict
from posenc_runtime.vllm_adapter.releases import versions

_SAID = {
    "rerotate": "`rerotate`, `recompute`, `pin`",
    "recompute, pin": "`recompute`, `pin`",
    "pin": "`pin`",
    "without scaling": "served without scaling",
    "at load": "known when it is loaded",
    "refused": "refused",
}
_HEAD = """# Model architectures

`make architectures` wrote this page from the sources of vLLM {versions}. A test compares it with those
of the installed one. [Models](models.md) says what the settings mean, and what to do with models that are refused.

* **`rerotate`, `recompute`, `pin`**: each request has a scale, and `on_crossing` may be any of the three.
* **`recompute`, `pin`**: each request has a scale. `on_crossing: rerotate` is refused at start-up, and so is
  `prefix_reuse: rerotate`.
* **`pin`**: each request has a scale, which it keeps.
* **served without scaling**: the model's keys are not rotated, so there is nothing to scale. Leave `scaling` out.
* **known when it is loaded**: no source says it beforehand.
* **refused**: `posenc serve` and `posenc check` fail and name the reason. Serve these models with vLLM, without Posenc.

A row that names versions of vLLM holds for these alone. Every other row holds for all of them.

Some models that are refused read the table of cosines and sines themselves. Their own configuration may say that every
layer that rotates has a window no longer than the trained length, as Beam's does. Then no request needs a scale, and
the model is served at scale 1 with vLLM's own rotation, unless it has images or sound.

No checkpoint was loaded to write this page. When a worker has built a model, it asks the model how each layer rotates
its keys, and refuses what it does not find. Tests have run tiny checkpoints of the architectures in
[`tests/families`](https://github.com/posenc/posenc/blob/main/tests/families/README.md), no others.

## Coverage

Each name in vLLM's registry of models that generate text counts once, also where two names have the same class. Some
multimodal models take their language model from the checkpoint. Where a default of transformers or a file of vLLM names
the usual one, they count as that one. The others are known when they are loaded, and do not count as scaled.
"""


def page(found: Sequence[Release]) -> str:
    """The page, in Markdown.

    Args:
        found: at least one release.
    """
    releases = sorted(found, key=lambda each: versions.as_numbers(each.version))
    *others, last = (each.version for each in releases)
    lines = [_HEAD.format(versions=" and ".join(filter(None, (", ".join(others), last)))), *_coverage(releases)]
    for name in dict.fromkeys(group.name for release in releases for group in release.groups):
        lines += ["", f"## {name}", "", *_table(name, releases)]
    return "\n".join(lines) + "\n"


def _coverage(releases: Sequence[Release]) -> Iterator[str]:
    headings = "in vLLM", "with a scale for each request", "of these by `rerotate`"
    yield f"| vLLM | Architectures | {' | '.join(headings)} | without scaling | known when it is loaded | refused |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for release in releases:
        for group in release.groups:
            rest = (group.count(kind) for kind in ("without scaling", "at load", "refused"))
            figures = (len(group.verdicts), group.num_scaled, group.count("rerotate"), *rest)
            yield f"| {release.version} | {group.name} | {' | '.join(map(str, figures))} |"


def _table(group: str, releases: Sequence[Release]) -> Iterator[str]:
    yield "| Architecture | vLLM | `on_crossing` | Why, or when not |"
    yield "| --- | --- | --- | --- |"
    rows = dict[tuple[str, Verdict], list[str]]()
    for release in releases:
        for name, said in (
            (name, said) for each in release.groups if each.name == group for name, said in each.verdicts.items()
        ):
            rows.setdefault((name, said), []).append(release.version)
    for name, said in sorted(rows, key=lambda row: (KINDS.index(row[1].kind), row[0].casefold())):
        of = rows[name, said]
        yield f"| `{name}` | {', '.join(of) if len(of) < len(releases) else ''} | {_SAID[said.kind]} | {said.reason} |"
