"""Limits: a number, a share, a random subset."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodebench.errors import UserError
from decodebench.evaluation.selection import parse_limit, select_documents


def test_numbers_and_shares() -> None:
    assert select_documents(5, None) == [0, 1, 2, 3, 4]
    assert select_documents(5, 2) == [0, 1]
    assert select_documents(5, 9) == [0, 1, 2, 3, 4]
    assert select_documents(5, 0.3) == [0, 1]
    assert select_documents(1000, 0.001) == [0]


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
def test_random_subsets(n_docs: int, small: int, large: int, seed: int) -> None:
    small, large = sorted((small, large))
    few, many = select_documents(n_docs, small, seed), select_documents(n_docs, large, seed)
    assert few == sorted(set(few))
    assert len(few) == min(small, n_docs)
    assert set(few) <= set(many) <= set(range(n_docs))
    assert few == select_documents(n_docs, small, seed)


def test_another_seed_is_another_subset() -> None:
    assert len({tuple(select_documents(100, 10, seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("limit", [0, -1, 1.5, -0.5, math.nan])
def test_no_limit_at_all(limit: float) -> None:
    with pytest.raises(UserError, match="limit"):
        select_documents(5, limit)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("20", 20), ("1", 1), ("0.1", 0.1), ("10%", 0.1), ("0.5%", 0.005), ("100%", None), ("1.0", None), ("1e3", 1000)],
)
def test_limits_as_users_write_them(text: str, limit: float | None) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "0.0", "150%", "0%", "-1%", "many", "", "%", "nan", "inf", "2,5"])
def test_limits_that_mean_nothing(text: str) -> None:
    with pytest.raises(UserError, match=r"--limit .*: give a number of documents"):
        parse_limit(text)
