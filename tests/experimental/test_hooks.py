"""The hook of experimental structures: it travels with an episode's address, and older records are read."""

from __future__ import annotations

import json
import pickle

import pytest

from lit_agentrl.episode import PLANNER, Episode, Turn
from lit_agentrl.experimental.experience import LessonsHook
from lit_agentrl.experimental.hint import HintHook
from lit_agentrl.experimental.opponent import OpponentHook
from lit_agentrl.experimental.refinement.refine import RefineHook
from lit_agentrl.experimental.retry import RetryHook
from lit_agentrl.experimental.two_level import PlanHook
from lit_agentrl.rollout.hooks import NO_HOOK, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec


@pytest.mark.parametrize(
    "hook",
    [
        NO_HOOK,
        HintHook(0.5),
        RetryHook(3, "No."),
        LessonsHook("G0: go"),
        PlanHook(2),
        OpponentHook(),
        RefineHook(2, ""),
    ],
)
def test_a_hook_travels_with_its_spec(hook: PlayHook) -> None:
    spec = EpisodeSpec(0, 1, 2, 0, 7, extra=hook)
    assert pickle.loads(pickle.dumps(spec)) == spec and len({spec, EpisodeSpec(0, 1, 2, 0, 7)}) == 1 + (
        hook != NO_HOOK
    )


def test_plans_recorded_by_0_2_are_read() -> None:
    turns = [Turn("", [], [], player=player) for player in (PLANNER, "")]  # type: ignore[arg-type]
    episode = Episode(0, 0, 0, 0, "g", 1, turns=turns)
    plain = json.loads(json.dumps(episode.to_plain()))
    for turn in plain["turns"]:
        turn["is_plan"] = turn.pop("player") == PLANNER
    assert Episode.from_plain(plain) == episode
