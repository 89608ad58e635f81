"""The comparison of summaries: demonstrations read as the game is played, and its table by hand."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.envs.base import Task
from lit_agentrl.experimental.summaries.summary import Summarised, Summary
from lit_agentrl.experimental.summaries.t_maze import TMaze
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.text.chat import ChatRenderer
from scripts.bench.campaigns.summaries import (
    LENGTH,
    TURNS,
    as_csv,
    demonstrate,
    format_table,
    write_demonstrations,
)
from tests.conftest import nano_tokenizer
from tests.rollout.test_collector import Player


@pytest.mark.parametrize("named", ["Left", "Right"])
def test_demonstrations_read_as_the_game_is_played(named: str) -> None:
    """Where the policy replies as demonstrated, it reads what the demonstration holds."""
    first, second = demonstrate(TMaze(length=LENGTH), 7, named)
    replies = [*first[1::2], *second[1::2]]
    player = Player(lambda spec, k: replies[k])
    object.__setattr__(
        player.rules,
        "tasks",
        [Task("t_maze", partial(TMaze, length=LENGTH), max_turns=TURNS, max_actions=TURNS)],
    )
    object.__setattr__(player.rules, "context", Summarised())
    made = Collector(
        player.rules, RolloutSettings(prompts=1, members=1, max_context_tokens=400), structure=Summary(tokens=50),
        select_groups=filters.keep_all,
        further_prompts=lambda iteration, wave: StepBatch(iteration, [], [], [], wave=wave),
    )  # fmt: skip
    batch = StepBatch(0, seed_P=[7], task_P=[0], group_P=[0])
    made.collect(batch, player, device=torch.device("cpu"))
    (episode,) = batch.episodes
    assert len(episode.turns) == len(replies)
    chat = ChatRenderer(nano_tokenizer())
    starts = [number for number, turn in enumerate(episode.turns) if turn.starts_row]
    assert starts == [0, len(first) // 2]
    for number, texts in zip(starts, (first, second), strict=True):
        opening = chat.render_opening([{"role": "user", "content": texts[0]}]).tokens
        assert episode.turns[number].prefix_tokens.tolist() == opening
        following = episode.turns[number + 1 : number + len(texts) // 2]
        assert [turn.message for turn in following] == texts[2::2]


def test_the_named_way_is_random(tmp_path: Path) -> None:
    write_demonstrations(tmp_path / "rows.jsonl", seed=3, episodes=40)
    rows = [json.loads(line)["messages"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    right = [row[0]["content"].split()[-1] for row in rows[::2]]
    named = [row[-1]["content"].split()[-2] for row in rows[1::2]]
    assert len(right) == 40 and set(right) == set(named) == {"Left", "Right"}
    assert 10 <= sum(map(str.__eq__, right, named)) <= 30


def test_the_table_by_hand() -> None:
    """Gains of 1/4 and 3/4 over two seeds: 1/2 ± 12.706 x 1/4."""

    def games(sampled: int, greedy: int, tokens: int) -> dict[str, object]:
        return {
            "solved": {
                "1.0": [True] * sampled + [False] * (4 - sampled),
                "0.0": [True] * greedy + [False] * (4 - greedy),
            },
            "tokens": tokens,
        }

    found = {
        ("start", 1): games(2, 2, 0), ("trained", 1): games(3, 4, 9), ("masked", 1): games(2, 1, 8),
        ("start", 2): games(2, 2, 0), ("trained", 2): games(4, 4, 9), ("masked", 2): games(1, 2, 8),
    }  # fmt: skip
    lines = format_table(found).splitlines()
    assert lines[0] == "| policy | temperature | seed 1 | seed 2 | mean [95 % over seeds] |"
    assert lines[2] == "| start | 1 | 0.500 | 0.500 | 0.500 [0.500, 0.500] |"
    assert lines[-1] == "| trained less masked | 1 | +0.250 | +0.750 | +0.500 [-2.677, +3.677] |"
    del found["masked", 1]
    assert format_table(found).splitlines()[-1] == "| trained less masked | 1 | – | +0.750 | +0.750 |"
    assert as_csv(found).splitlines()[3:5] == ["trained,1,9,1.0,4,0.75", "trained,1,9,0.0,4,1.0"]
