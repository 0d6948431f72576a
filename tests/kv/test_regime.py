"""Which cached keys may be read, as a salt."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenc_runtime.kv.regime import refuse_other_marks, regime, salted, suffix
from tests.kv.test_deployment import YARN

ENDS = [suffix(YARN, index) for index in range(3)]
SALTS = st.one_of(st.none(), st.text(alphabet="~ab:yarn4posenc", max_size=30))


def test_the_unscaled_regime_has_no_name_so_that_stock_hashes_stay() -> None:
    assert regime(YARN, 0) is None
    assert salted(None, None) is None
    assert salted("tenant-1", None) == "tenant-1"


def test_every_scale_and_every_method_is_a_regime_of_its_own() -> None:
    other = dataclasses.replace(YARN, rope_type="ntk", parameters={})
    names = [regime(deployment, index) for deployment in (YARN, other) for index in (1, 2)]
    assert None not in names and len(set(names)) == 4


SALTS_WITH_MARKS = st.one_of(
    SALTS, st.lists(st.sampled_from(["~posenc", ":", "a", "~posenc:yarn:2:0", *ENDS])).map("".join)
)


@given(first=SALTS_WITH_MARKS, second=SALTS_WITH_MARKS, first_scale=st.integers(0, 2), second_scale=st.integers(0, 2))
def test_no_clients_salt_can_name_another_regime(
    first: str | None, second: str | None, first_scale: int, second_scale: int
) -> None:
    # vLLM treats an empty salt as none. A salt that ends with what would be added is that of a router.
    one, other = (salted(first, regime(YARN, first_scale)) or "", salted(second, regime(YARN, second_scale)) or "")
    first, second = (
        (salt or "").removesuffix(ENDS[scale]) for salt, scale in ((first, first_scale), (second, second_scale))
    )
    assert (one == other) == (first_scale == second_scale and first == second)


def test_a_client_that_writes_our_mark_into_its_salt_stays_in_its_own_regime() -> None:
    forged = salted(None, regime(YARN, 2))
    assert forged is not None
    assert salted(forged, None) != forged and salted(forged, regime(YARN, 1)) != forged


def test_a_router_may_send_the_salt_that_it_has_computed() -> None:
    for index in (0, 1, 2):
        salt = salted("tenant", regime(YARN, index))
        assert salt == "tenant" + suffix(YARN, index) == salted(salt, regime(YARN, index))


def test_a_salt_can_be_printed_and_has_nothing_that_routers_give_a_meaning() -> None:
    for end in ENDS:
        assert end.isprintable() and not set(end) & set("@/\\ ") and len(end) <= 64


@pytest.mark.parametrize("salt", ["tenant", "~posen", "tenant" + ENDS[1], ENDS[2]])
def test_salts_of_clients_and_routers_are_taken(salt: str) -> None:
    refuse_other_marks(YARN, salt)


@pytest.mark.parametrize(
    "salt",
    ["~posenc:", "~posenc:yarn:2:0123456789abcdef", ENDS[1] + "tenant", ENDS[1] + ENDS[2], ENDS[1][:-1], ENDS[1] * 2],
)
def test_any_other_mark_in_a_salt_is_refused(salt: str) -> None:
    with pytest.raises(
        ValueError, match=r"^cache_salt: must have '~posenc:' only at its end, followed by what /posenc/"
    ):
        refuse_other_marks(YARN, salt)
