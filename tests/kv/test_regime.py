"""Which cached keys may be read, as a salt."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from posenc_runtime.kv.regime import regime, salted
from tests.kv.test_deployment import YARN

SALTS = st.one_of(st.none(), st.text(alphabet="\x00ab:yarn4posenc", max_size=30))


def test_the_unscaled_regime_has_no_name_so_that_stock_hashes_stay() -> None:
    assert regime(YARN, 0) is None
    assert salted(None, None) is None
    assert salted("tenant-1", None) == "tenant-1"


def test_every_scale_and_every_method_is_a_regime_of_its_own() -> None:
    other = dataclasses.replace(YARN, rope_type="ntk", parameters={})
    names = [regime(deployment, index) for deployment in (YARN, other) for index in (1, 2)]
    assert None not in names and len(set(names)) == 4


@given(first=SALTS, second=SALTS, first_scale=st.integers(0, 2), second_scale=st.integers(0, 2))
def test_no_clients_salt_can_name_another_regime(
    first: str | None, second: str | None, first_scale: int, second_scale: int
) -> None:
    # vLLM treats an empty salt as none.
    one, other = (salted(first, regime(YARN, first_scale)) or "", salted(second, regime(YARN, second_scale)) or "")
    assert (one == other) == (first_scale == second_scale and (first or "") == (second or ""))


def test_a_client_that_writes_our_mark_into_its_salt_stays_in_its_own_regime() -> None:
    forged = salted(None, regime(YARN, 2))
    assert forged is not None
    assert salted(forged, None) != forged
