"""`hopmix reproduce theorem`: the constructed block answers as Theorem 3.3 states, and float32 fails where it must."""

import json

from program import succeed


def test_the_constructed_block_answers_everything_until_float32_ends():
    rows = json.loads(succeed("reproduce", "theorem", "--draws", "1", "--json"))
    assert {row["m"] for row in rows} == {1, 2, 3, 4, 5, 6}
    assert {(row["set"], row["circles"], row["dtype"]) for row in rows} == {
        (s, c, d) for s in ("cumulative", "exact") for c in (1, 2) for d in ("float32", "float64")
    }
    for row in rows:
        ends = row["circles"] == 1 and row["dtype"] == "float32" and row["n"] >= 8000
        assert (row["right"] < row["asked"]) == ends, row
    assert any(row["exhaustive"] and row["asked"] == 27 * 27 * 3 for row in rows)
