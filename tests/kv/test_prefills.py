"""How far prompts are that have no first token yet."""

from __future__ import annotations

from posenc_runtime.kv.prefills import Prefills


def test_prompts_count_from_their_arrival_until_their_last_token_is_scheduled() -> None:
    prefills = Prefills()
    prefills.arrived("long", 100)
    prefills.arrived("short", 10)
    assert prefills.take_report() == {"computed": 0, "waiting": 110}
    prefills.scheduled([("long", 32), ("decoding", 500)])
    assert prefills.take_report() == {"computed": 32, "waiting": 78}
    prefills.scheduled([("long", 64), ("short", 10)])
    assert prefills.take_report() == {"computed": 64, "waiting": 36}
    prefills.scheduled([("long", 100)])
    assert prefills.take_report() == {"computed": 0, "waiting": 0} and not prefills


def test_nothing_is_reported_where_nothing_changed() -> None:
    prefills = Prefills()
    assert prefills.take_report() == {}
    prefills.arrived("one", 5)
    assert prefills.take_report() and prefills.take_report() == {}


def test_a_preempted_prompt_is_read_again() -> None:
    prefills = Prefills()
    prefills.arrived("one", 100)
    prefills.scheduled([("one", 64)])
    prefills.preempted("one")
    prefills.preempted("ended long ago")
    assert prefills.take_report() == {"computed": 0, "waiting": 100}


def test_a_prompt_that_nobody_wants_any_more_does_not_count() -> None:
    prefills = Prefills()
    prefills.arrived("one", 100)
    prefills.ended("one")
    prefills.ended("one")
    assert prefills.take_report() == {}
