"""Flags and overrides."""

from __future__ import annotations

import pytest

from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import check_overrides, get_flag_values, split_arguments


def test_flags_and_overrides_in_any_order() -> None:
    flags, overrides = split_arguments(
        ["seed=1", "-m", "--config-dir", "mine", "~a.b", "--config-dir=theirs", "env=bandit", "--info", "x=1"]
    )
    assert flags == ["-m", "--config-dir", "mine", "--config-dir=theirs", "--info"]
    assert overrides == ["seed=1", "~a.b", "env=bandit", "x=1"]
    assert get_flag_values(flags, "--config-dir", "-cd") == ["mine", "theirs"]


def test_what_is_no_sweep_needs_no_multirun() -> None:
    check_overrides(["a=[1,2]", "b='1,2'", "c={x:1}"], is_multirun=False)
    check_overrides(["a=1,2"], is_multirun=True)
    with pytest.raises(UserError, match=r"write a=\[1,2\] for one list"):
        check_overrides(["a=1,2"], is_multirun=False)


def test_one_key_in_two_spellings_is_given_twice() -> None:
    with pytest.raises(UserError, match="a.b is given twice"):
        check_overrides(["+a.b=1", "a.b=2"], is_multirun=False)
