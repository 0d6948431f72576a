"""What a router finds in our KV events: Dynamo's own index, told as Dynamo tells it of vLLM's caches."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import BlockRemoved, BlockStored

from posenc_runtime.kv.deployment import Deployment
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("dynamo") is None,
    reason="needs Dynamo's index: pip install --no-deps ai-dynamo-runtime==1.6.1",
)

BLOCK_SIZE = 4
TRAINED = 32  # tokens
SCALES = (1.0, 2.0, 4.0)
HEADROOM = 4  # tokens
# Dynamo's worker puts this before a request's salt when it passes it on to vLLM. Its reader of events looks for it.
TAG = "dynamo-cache-salt:"


class Gateway:
    """Step by step as docs/operations.md tells gateways, from what ``/posenc/scales`` says of scales 1, 2 and 4."""

    def __init__(self, fingerprint: str, *, continues: bool) -> None:
        self.suffixes = ["", f"~posenc:yarn:2:{fingerprint}", f"~posenc:yarn:4:{fingerprint}"]
        self._continues = continues

    def salt(self, tenant: str, num_prompt_tokens: int, max_tokens: int) -> str:
        return tenant + self.suffixes[self._begins_at(num_prompt_tokens, max_tokens)]

    def find(self, index: DynamoIndex, tenant: str, prompt: list[int], max_tokens: int) -> int:
        """Tokens at the beginning of a prompt that the engine need not compute."""
        own = self._begins_at(len(prompt), max_tokens)
        longest = index.find(prompt[:-1], tenant + self.suffixes[own])
        if self._continues:
            for scale in range(own + 1):
                at_most = min(len(prompt), int(SCALES[scale] * TRAINED)) - 1
                for first in range(scale + 1):
                    end = self.suffixes[scale] + ("" if first == scale else f":from:{SCALES[first]:g}")
                    found = index.find(prompt[:at_most], tenant + end)
                    fewest = 0 if first == scale else SCALES[scale - 1] * TRAINED
                    if found >= max(fewest, len(prompt) / 2):
                        longest = max(longest, found)
        return longest

    def _begins_at(self, num_prompt_tokens: int, max_tokens: int) -> int:
        together = num_prompt_tokens + min(max_tokens, HEADROOM)
        return next(number for number, scale in enumerate(SCALES) if scale * TRAINED >= together)


class DynamoIndex:
    """Dynamo's tree of cached prefixes, with one worker, and a stand-in for Dynamo's reader of vLLM's events.

    The salt is in the extra keys of a chain's first block, behind a tag. Blocks after it have that of their parent.
    """

    def __init__(self, tag: str) -> None:
        from dynamo import _core

        self._core, self._tag = _core, tag
        self._tree = _core.RadixTree()
        self._salts: dict[int, str | None] = {}
        self.num_stored = self.num_removed = 0

    def take(self, event: BlockStored | BlockRemoved) -> None:
        """Tell the tree of an event.

        Raises:
            RuntimeError: by Dynamo, for a parent or a removed block that it does not know.
        """
        data: dict[str, Any]
        if isinstance(event, BlockStored):
            parent = event.parent_block_hash
            salt = self._salts[parent] if parent is not None else self._salt_of(event)
            self._salts.update(dict.fromkeys(event.block_hashes, salt))
            hashes = self._core.compute_block_hash_for_seq(list(event.token_ids), BLOCK_SIZE, cache_namespace=salt)
            names = zip(event.block_hashes, hashes, strict=True)
            blocks = [{"block_hash": name, "tokens_hash": of_tokens} for name, of_tokens in names]
            data = {"stored": {"parent_hash": parent, "blocks": blocks}}
            self.num_stored += len(blocks)
        else:
            data = {"removed": {"block_hashes": list(event.block_hashes)}}
            self.num_removed += len(event.block_hashes)
        numbered = {"event_id": self.num_stored + self.num_removed, "data": data}
        self._tree.apply_event(0, json.dumps(numbered).encode())

    def _salt_of(self, event: BlockStored) -> str | None:
        first = (event.extra_keys or [None])[0]
        if first is None or not first[0].startswith(self._tag):
            return None
        return str(first[0]).removeprefix(self._tag)

    def find(self, tokens: list[int], salt: str) -> int:
        """How many tokens at the beginning are cached under a salt."""
        hashes = self._core.compute_block_hash_for_seq(tokens, BLOCK_SIZE, cache_namespace=salt or None)
        found: int = max(self._tree.find_matches(hashes).scores.values(), default=0)
        return found * BLOCK_SIZE


def text(seed: int, num_tokens: int) -> list[int]:
    return [(seed * 31 + 7 * number) % 500 for number in range(num_tokens)]


@pytest.mark.parametrize(
    ("tag", "tenants", "num_blocks"),
    [
        pytest.param(TAG, ("a", "b"), 45, id="salts as Dynamo tags them, old blocks are evicted"),
        pytest.param("", ("", "b"), 400, id="salts as they are, room for all"),
    ],
)
@pytest.mark.parametrize("prefix_reuse", ["exact", "rerotate", "continue"])
def test_dynamos_index_finds_under_the_salt_of_the_page_what_the_engine_hits(
    prefix_reuse: Any,
    tag: str,
    tenants: tuple[str, ...],
    num_blocks: int,
    vllm_config: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A conversation over all scales, and prompts that begin alike; no two requests compute the same block.

    vLLM caches a block twice that two requests compute, and says twice that it is removed.
    """
    events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    monkeypatch.setattr(vllm_config, "kv_events_config", events_config)
    deployment = Deployment(
        rope_type="yarn",
        scales=SCALES,
        original_max_position_embeddings=TRAINED,
        max_model_len=128,
        headroom_tokens=HEADROOM,
        prefix_reuse=prefix_reuse,
        rerotate_budget_tokens=1000,
    )
    core = EngineCore(
        vllm_config, deployment, block_size=BLOCK_SIZE, num_blocks=num_blocks, model_runner=1, depth=1, ahead=False
    )
    index, gateway = DynamoIndex(tag), Gateway(deployment.fingerprint, continues=prefix_reuse == "continue")
    take, build = core.scheduler.kv_cache_manager.take_events, core.scheduler._half.build_metadata
    hits: dict[str, int] = {}

    def take_events() -> Any:
        taken = take()
        for event in taken or []:
            index.take(event)
        return taken

    def build_metadata(output: Any) -> Any:
        hits.update({new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs})
        return build(output)

    monkeypatch.setattr(core.scheduler.kv_cache_manager, "take_events", take_events)
    monkeypatch.setattr(core.scheduler._half, "build_metadata", build_metadata)
    found = []

    def ask(tenant: str, prompt: list[int], max_tokens: int) -> list[int]:
        name = f"r{len(hits)}"
        found.append(gateway.find(index, tenant, prompt, max_tokens))
        salt = gateway.salt(tenant, len(prompt), max_tokens)
        core.admit(name, Asked(0, prompt, max_tokens, cache_salt=tag + salt if salt else None))
        core.drain()
        # A prefix that is copied from another scale is found at that scale alone.
        copied = sum(each["tokens"] for each in core.responses[name].get("prefixes_reused", ()))
        assert hits[name] - copied == found[-1], (name, core.responses[name])
        return prompt + core.said[name]

    for tenant in tenants:
        tokens = text(1, 10)
        for _ in range(7):
            tokens = ask(tenant, tokens + text(len(tokens), 5), 9)
        for number, beginning in enumerate([text(20, 20), text(40, 40), text(80, 80)]):
            ask(tenant, beginning + text(7, 3), 3)
            under = [index.find(beginning, tenant + suffix) for suffix in gateway.suffixes]
            assert under == [len(beginning) if scale == number else 0 for scale in range(len(SCALES))]
            ask(tenant, beginning + text(8, 4), 3)
    assert {response["scale"] for response in core.responses.values()} == set(SCALES)
    assert any(response["crossings"] for response in core.responses.values())
    assert max(found) >= 2 * TRAINED
    assert index.num_removed > 0 or num_blocks == 400
