"""One call, one identity."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from serving.idempotency import recommendation_id

WORDS = st.none() | st.text()


@given(st.text(), st.lists(WORDS), st.text(), st.lists(WORDS))
def test_ids_are_equal_exactly_when_key_and_scope_are(key, scope, other_key, other_scope):
    same = (key, scope) == (other_key, other_scope)
    assert (recommendation_id(key, *scope) == recommendation_id(other_key, *other_scope)) == same


def test_neighbouring_parts_do_not_run_together():
    assert recommendation_id("k", "ab", "c") != recommendation_id("k", "a", "bc")
    assert recommendation_id("k", None) != recommendation_id("k", "") != recommendation_id("k")


def test_without_a_key_no_two_calls_are_the_same():
    assert len({recommendation_id(None, "user") for _ in range(1_000)}) == 1_000


def test_an_id_is_32_hexadecimal_digits_with_or_without_a_key():
    for key in (None, "k"):
        assert len(recommendation_id(key)) == 32
        assert set(recommendation_id(key)) <= set(string.hexdigits.lower())
