"""The caller's filter: Python's own meaning where a value is present, no match where it is missing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from configs.errors import InvalidRequest
from features.filter_columns import filter_column
from features.filter_expression import MAX_DEPTH, MAX_LENGTH, MAX_LIST, MAX_TERMS, FilterExpression

ROWS = [
    {"id": "a", "year": "1995", "price": 5.0, "genre": ["Comedy", "War"], "new": True, "release date": "2024-01-05"},
    {"id": "b/ü", "year": "2001", "price": 9.5, "genre": ["Drama"], "new": False, "release date": "2023-01-05"},
    {"id": "c", "year": "unknown", "price": -1.0, "genre": [], "new": True, "release date": None},
    {"id": "d", "year": None, "price": None, "genre": None, "new": None, "release date": None},
]
COLUMNS = {name: filter_column(pa.array([row[name] for row in ROWS]), name) for name in ROWS[0]}


def _matches(text: str) -> str:
    mask = FilterExpression(text).mask(COLUMNS)
    assert mask.dtype == bool and mask.shape == (len(ROWS),)
    return "".join(row["id"][0] for row, kept in zip(ROWS, mask, strict=True) if kept)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ('year >= 1990 and "Comedy" in genre and not id in ["a", "z"]', ""),
        ("year >= 1996", "b"),
        ("1990 <= year < 2000", "a"),
        ("2000 > year", "a"),
        ("year == 1995.0", "a"),
        ('year == "1995"', "a"),
        ('year != "1995"', "bc"),
        ("year != 1995", "b"),
        ("year in [1995, 'unknown']", "ac"),
        ("price > -2", "abc"),
        ("price in (5, 9.5)", "ab"),
        ("price not in [5]", "bc"),
        ("not price == 5", "bc"),
        ('"War" in genre or "Drama" in genre', "ab"),
        ('"War" not in genre', "bc"),
        ('genre in ["War", "Drama"]', "ab"),
        ('not genre in ["War"]', "bc"),
        ('"nkn" in year', "c"),
        ("new", "ac"),
        ("not new", "b"),
        ("new == False", "b"),
        ("genre is None", "d"),
        ("genre is not None", "abc"),
        ("not (price is None) and id != 'c'", "ab"),
        ('field("release date") >= "2023-06-01"', "a"),
        ("id == 'b/ü'", "b"),
        ("id in []", ""),
        ("  price > 0  # a comment", "ab"),
        ("price > 0 and (\n  year > 2000\n)", "b"),
        ("price > 1e999", ""),
    ],
)
def test_what_a_filter_matches(text, ids):
    assert _matches(text) == ids


LEAVES = ["price > 2", "year >= 2000", '"War" in genre', "id in ['a', 'c']", "new", "genre is None", "1 < price < 9"]
NESTED = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("(not {})".format, inner)
    ),
    max_leaves=6,
)


@given(NESTED)
def test_complete_rows_agree_with_python_itself(text):
    names = {name: value for name, value in ROWS[0].items() if " " not in name} | {"year": 1995}
    assert ("a" in _matches(text)) == bool(eval(text, {"__builtins__": {}}, names))


@given(NESTED)
def test_nothing_matches_both_a_filter_and_its_negation(text):
    assert not set(_matches(text)) & set(_matches(f"not {text}"))


SNIPPETS = """
    year price genre id new field( ) ( [ ] , and or not in is None True == != < <= > - 1 9.5 "War" 'x' . lambda :
    * { } 1j b"x" "\\ud800" ... x:=1 f"{id}" # é ١ if else for __import__ await
"""
PIECES = st.sampled_from(SNIPPETS.split())


@given(st.text(max_size=40) | st.lists(PIECES, max_size=12).map(" ".join))
@example("(" * 500)
@example("not " * 250 + "new")
@example("-" * 1000 + "1 < price")
@example("price == " + "9" * 900)
@example("[" * 90 + "]" * 90)
@example("\0")
@example("\ud800")
@example("'\ud800' in id")
@example("price < 'a' < year")
def test_any_text_gives_a_mask_or_names_the_filter(text):
    try:
        _matches(text)
    except InvalidRequest as error:
        assert error.field == "filter" and error.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yeer > 3", r"column 1: unknown field 'yeer'; known fields: \['genre', 'id'"),
        ("new and é == 1", "column 9: unknown field 'é'"),
        ("'é' == id and colour == 1", "column 15: unknown field 'colour'"),
        ("price > 'a'", "column 1: 'price' holds numbers; 'a' is none, write a number without quotes"),
        ("price == True", "'price' holds numbers; True is none"),
        ("id > 3", "'id' holds text; compare it with a string in quotes"),
        ('genre == "War"', '"value" in field'),
        ("genre", "holds several values"),
        ("price", "compare it with a number"),
        ("year", "holds text"),
        ("new > True", "by == and != only"),
        ("1 < 2", "expected a field name"),
        ("price > year", "expected a string, a number"),
        ("price == None", "is None"),
        ("price is 3", "asks for None only"),
        ("id.upper() == 'A'", "column 1: expected a field name"),
        ("__import__('os')", "expected a comparison"),
        ("price > 3 +", "column 12"),
        ("new and\n price", "column 1|invalid syntax"),
        ("   ", "empty"),
    ],
)
def test_a_wrong_filter_is_refused_with_place_and_remedy(text, said):
    with pytest.raises(InvalidRequest, match=said):
        _matches(text)


def test_size_is_bounded():
    for text, said in [
        ("x" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH}"),
        ("not " * (MAX_DEPTH + 1) + "new", f"deeper than {MAX_DEPTH}"),
        (" or ".join(["new==1"] * (MAX_TERMS + 1)), f"at most {MAX_TERMS}"),
        ("price in [" + "1," * (MAX_LIST + 1) + "]", f"may hold {MAX_LIST}"),
    ]:
        with pytest.raises(InvalidRequest, match=said):
            FilterExpression(text)


def test_typed_columns_are_compared_as_what_they_are():
    columns = {
        "n": filter_column(pa.array([1, None, 3]), "n"),
        "d": filter_column(pa.array(["a", "b", None]).dictionary_encode(), "d"),
        "t": filter_column(pa.array([0, 10, None], pa.timestamp("s")), "t"),
        "empty": filter_column(pa.nulls(3), "empty"),
    }
    expected_by_text = {"n >= 1": [1, 0, 1], "d != 'a'": [0, 1, 0], "t > 5": [0, 1, 0], "empty > 1": [0, 0, 0]}
    for text, expected in expected_by_text.items():
        assert FilterExpression(text).mask(columns).tolist() == np.array(expected, bool).tolist()
