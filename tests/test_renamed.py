"""The table of earlier names: each leads to something that exists, and back."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lit_agentrl.config.composition import compose_job, format_search_path, load_option
from lit_agentrl.paths import list_configs
from lit_agentrl.renamed import get_current_name, get_first_name, read_table, rename_targets
from lit_agentrl.rl.credit.advantages import group_mean


@pytest.mark.parametrize("today", sorted(set(read_table().values())))
def test_every_name_of_today_exists(today: str) -> None:
    try:
        importlib.import_module(today)
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("lit_agentrl"):
            pytest.skip(f"{error.name} is not installed")
        module, _, name = today.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_a_name_of_today_stays() -> None:
    for today in read_table().values():
        assert get_current_name(f"{today}.Thing") == f"{today}.Thing"
    assert (
        get_current_name("mine.rl.advantages.own")
        == get_first_name("mine.rl.advantages.own")
        == "mine.rl.advantages.own"
    )


def test_no_shipped_target_is_renamed() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in list_configs())
    targets = set(re.findall(r"_target_: ([\w.]+)", text))
    assert len(targets) > 300 and {name for name in targets if get_current_name(name) != name} == set()


def test_a_package_with_the_name_of_an_old_module_is_told_apart() -> None:
    old, new = "lit_agentrl.rollout.worlds.Worlds", "lit_agentrl.rollout.worlds.pool.Worlds"
    assert get_current_name(old) == get_current_name(new) == new and get_first_name(new) == old


def test_targets_in_lists_and_sections_are_renamed_and_nothing_else_is() -> None:
    old = {"a": [{"_target_": "lit_agentrl.rl.ratios.none", "text": "lit_agentrl.rl.ratios.none"}], "b": 1}
    new = {
        "a": [{"_target_": "lit_agentrl.rl.policy.ratios.none", "text": "lit_agentrl.rl.ratios.none"}],
        "b": 1,
    }
    assert rename_targets(old) == new


def test_a_config_of_ones_own_may_have_an_earlier_name(tmp_path: Path) -> None:
    folder = tmp_path / "algo" / "advantage"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text("_target_: lit_agentrl.rl.advantages.group_mean\n_partial_: true\n")
    cfg = compose_job("train", ["algo/advantage=own"], format_search_path([tmp_path]))
    assert cfg.algo.advantage._target_ == f"{group_mean.__module__}.group_mean"
    folder = tmp_path / "reference"
    folder.mkdir()
    (folder / "old.yaml").write_text("_target_: lit_agentrl.rl.advantages.group_mean\n")
    assert load_option("reference", "old", [tmp_path])._target_ == cfg.algo.advantage._target_
