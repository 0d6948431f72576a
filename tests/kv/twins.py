"""Runs of the state machine that random ones seldom come to, such as twins that outgrow their scale side by side."""

from __future__ import annotations

from posenc_runtime.kv.deployment import Deployment
from tests.kv.model_groups import MODELS, ONE, Groups
from tests.kv.test_state_machine import Arrival, Serving


def three_where_two_can_run() -> None:
    _serve(Arrival([0, 1], 18, None, 3), num_spare_blocks=1, rerotate_budget_tokens=7)


def two_where_no_block_is_spare() -> None:
    _serve(Arrival([0, 1, 0], 9, None, 2), num_spare_blocks=0, rerotate_budget_tokens=1)


def one_whose_scaled_keys_are_all_in_a_chunk_that_is_over() -> None:
    groups = MODELS["chunks among layers without rope"]
    _serve(Arrival([0, 1], 18, None, 1), num_spare_blocks=4, rerotate_budget_tokens=7, trained=8, groups=groups)


def _serve(
    arrival: Arrival, *, num_spare_blocks: int, rerotate_budget_tokens: int, trained: int = 6, groups: Groups = ONE
) -> None:
    """Requests that come at once, to their end."""
    deployment = Deployment(
        rope_type="linear",
        scales=(1.0, 2.0, 4.0),
        original_max_position_embeddings=trained,
        max_model_len=3 * trained,
        headroom_tokens=1,
        rerotate_budget_tokens=rerotate_budget_tokens,
    )
    machine = Serving()
    machine.start(
        deployment=deployment,
        block_size=1,
        num_spare_blocks=num_spare_blocks,
        max_running=2,
        late=False,
        replaces_as_new=False,
        arrivals=[arrival],
        groups=groups,
    )
    machine.teardown()
