"""What is found once for each episode of an iteration."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.episode import Episode
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from tests.rewards.conftest import episode, turn


def test_what_was_asked_for_last_is_not_found_again_and_all_else_is_forgotten() -> None:
    asked: list[list[Episode]] = []

    def find(episodes: Sequence[Episode]) -> list[int]:
        asked.append(list(episodes))
        return [len(asked)] * len(episodes)

    first, second, third = (episode([turn()]) for _ in range(3))
    cache = EpisodeCache(find)
    assert cache.get([first, second]) == [1, 1]
    assert cache.get([second, third]) == [1, 2]
    assert cache.get([third, second]) == [2, 1]
    assert cache.get([first]) == [3]
    assert [len(each) for each in asked] == [2, 1, 1]
    assert asked[1][0] is third
    assert asked[2][0] is first
