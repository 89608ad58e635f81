"""Branches and trees: which episodes go on from which, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.games.frozen_lake import FrozenLake
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.branching import Admission, Branch, Branching
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.structures.base import Progress, Structure
from lit_agentrl.rollout.structures.tree import Trees
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL, Window
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.conftest import load_task_yaml

POLICY = cache(load_nano)  # it plays, and not always the same way
TREES = Trees(rounds=2, expansions=2)


class Forgetful(FrozenLake):
    """Has no state to save: it is played again."""

    has_state = False

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError


def play(
    structure: Structure | None, *, members: int = 10, slots: int = 64, game: Any = None, context: Any = FULL
) -> list[Episode]:
    task = load_task_yaml("frozen_lake")
    if game is not None:
        task = replace(task, game=partial(game, size=4, success_rate=0.8, max_solution=10))
    policy = POLICY()
    rules = Rules(
        tasks=[replace(task, max_turns=4)], chat=ChatRenderer(policy.tokenizer), context=context, seed=3,
        prompt=Prompt(style="compact"), max_context_tokens=400, engine=partial(NativeEngine, num_slots=slots),
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, g, m, 0, 50 + g) for g in range(2) for m in range(members))
    params = SamplingParams(max_reply_tokens=40, max_context_tokens=400)
    wave = Wave("train", 0, params, specs, branching=structure and structure.branching(members))
    return Scheduler(rules, rules.open_engine(policy.network)).play(wave)


PLAYED = cache(play)


def told(episodes: Sequence[Episode]) -> list[Any]:
    """What was played, whatever it cost and in whatever precision it was computed."""
    return [
        (
            e.group, e.member, e.tree_member, e.branches, e.end,
            [(t.reply_tokens.tolist(), t.actions, t.reward, t.observation) for t in e.turns],
        )
        for e in episodes
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sweep
def test_a_branch_costs_its_own_tokens_and_is_an_episode_like_any_other() -> None:
    check_branches(PLAYED(TREES))


def check_branches(episodes: Sequence[Episode]) -> None:
    """Branches share the turns of their parents, and are played, counted and packed as other episodes."""
    branches = [e for e in episodes if e.branches]
    assert (
        len(branches) > 4
        and len({e.branch_turn for e in branches}) > 1
        and not any(e.failed for e in episodes)
    )
    by_place = {(e.group, e.member): e for e in episodes}
    for episode in branches:
        check_ledger(episode)
        parent, turn = by_place[episode.group, episode.parent], episode.branch_turn
        for own, theirs in zip(episode.turns[:turn], parent.turns, strict=False):
            assert own == theirs and own is not theirs
        own, theirs = episode.turns[turn], parent.turns[turn]
        assert own.observation == theirs.observation and np.array_equal(
            own.prefix_tokens, theirs.prefix_tokens
        )
        # one token of what it took over is read again, for what comes after it
        further = (
            sum(len(t.prefix_tokens) for t in episode.turns[turn + 1 :])
            if len(episode.turns) > turn + 1
            else 0
        )
        assert episode.num_prefilled == episode.num_new == 1 + further and episode.num_shared == 0
    first = {(e.group, e.member): e.turns[e.branch_turn].reply_tokens.tolist() for e in branches}
    there = [by_place[e.group, e.parent].turns[e.branch_turn].reply_tokens.tolist() for e in branches]
    assert any(own != theirs for own, theirs in zip(first.values(), there, strict=True))  # draws of its own
    assert sum(e.num_new for e in episodes) == sum(e.num_prefilled + e.num_shared for e in episodes)
    batch, network = pack(episodes), POLICY().network
    with torch.no_grad():
        fresh = score_tokens(network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
    torch.testing.assert_close(fresh.logp_BT, batch.sampler_logp_BT, atol=1e-4, rtol=0)
    # a token has one number, in whatever rows it stands
    shared = batch.node_BT[batch.is_action_BT].unique().numel()
    assert shared == sum(e.num_sampled for e in episodes) < int(batch.is_action_BT.sum())
    for node in batch.node_BT[batch.is_action_BT].unique()[::7]:
        assert len(set(batch.tokens_BT[batch.node_BT == node].tolist())) == 1
    trees = set(zip(batch.group_B.tolist(), batch.tree_B.tolist(), strict=True))
    assert len(trees) == len(batch.tree_B.unique()) < len(episodes)


@pytest.mark.slow
@pytest.mark.sweep
def test_what_branches_does_not_depend_on_room() -> None:
    # most parents have left the engine, and are read again
    assert told(play(TREES, slots=3)) == told(PLAYED(TREES))


@pytest.mark.slow
@pytest.mark.sweep
def test_a_group_begins_where_there_is_room_for_its_parents() -> None:
    """Half of the slots that all would take: the second group waits, and nothing is read again."""
    episodes = play(TREES, slots=10)
    assert told(episodes) == told(PLAYED(TREES))
    assert sum(e.num_new for e in episodes) == sum(e.num_prefilled + e.num_shared for e in episodes)


@pytest.mark.slow
def test_a_game_without_a_state_is_played_again() -> None:
    again = play(TREES, game=Forgetful)
    assert told(again) == told(PLAYED(TREES))
    assert sum(e.env_calls for e in again) > sum(e.env_calls for e in PLAYED(TREES))


@pytest.mark.slow
def test_contexts_that_cut_episodes_into_rows_branch_too() -> None:
    episodes = play(TREES, context=Window(1))
    assert any(e.branches for e in episodes) and not any(e.failed for e in episodes)
    batch = pack(episodes)
    shared = batch.node_BT[batch.is_action_BT].unique().numel()
    assert shared == sum(e.num_sampled for e in episodes) < int(batch.is_action_BT.sum())


@pytest.mark.slow
def test_without_branches_episodes_are_the_independent_ones_to_the_bit() -> None:
    assert play(Trees(rounds=0)) == PLAYED(None)


def test_trees_have_the_leaves_that_they_say() -> None:
    episodes = PLAYED(TREES)
    for group in range(2):
        trees = [e.tree_member for e in episodes if e.group == group]
        assert sorted(trees) == [0] * 5 + [1] * 5
    progress = Progress(0, 1, 10, 7, episodes, episodes, False, lambda wave: StepBatch(0, [], [], []))
    kept = Trees(rounds=2, expansions=2, leaves=3).train_on(progress)
    assert len(kept) == 12 and {(e.group, e.tree_member) for e in kept} == {
        (g, t) for g in range(2) for t in (0, 1)
    }


def episode(
    member: int, entropies: Sequence[float], *branches: tuple[int, int], tree: int | None = None
) -> Episode:
    turns = [
        Turn("", np.zeros(1), np.zeros(1), reply_tokens=np.ones(2), reply_entropies=np.full(2, h))
        for h in entropies
    ]
    return Episode(
        0, 0, member, 0, "", 0, end=EndReason.TURN_LIMIT, turns=turns, branches=list(branches), tree=tree
    )


def group(structure: Structure, members: int, draw: Any = lambda *_: 0.0, vocabulary: int = 1) -> Any:
    rule = structure.branching(members)
    assert rule is not None
    return rule.group(list(range(members)), draw, vocabulary)


def test_nodes_of_a_tree_are_drawn_by_hand() -> None:
    """Two trees, two rounds of two: members 0, 1 name them; 2, 3 | 4, 5 and 6, 7 | 8, 9 expand them."""
    draws = {(0, 0, 0): 0.0, (0, 0, 1): 0.99, (0, 1, 0): 0.5, (0, 1, 1): 0.79}
    growth = group(TREES, 10, lambda *at: draws[at])
    assert growth.first() == [Branch(0), Branch(1)]
    assert growth.after(episode(0, [0.0] * 3), is_over=False) == ()
    # nodes: the opening, and turns 1 and 2 of member 0
    assert growth.after(episode(0, [0.0] * 3), is_over=True) == [Branch(2, tree=0), Branch(3, 0, 2)]
    assert growth.after(episode(2, [0.0] * 2, tree=0), is_over=True) == []
    # and turn 1 of member 2, turn 3 of member 3, whose turn 2 is one of member 0
    found = growth.after(episode(3, [0.0] * 4, (0, 2), tree=0), is_over=True)
    assert found == [Branch(6, 0, 2), Branch(7, 2, 1)]
    for member in (6, 7):
        assert growth.after(episode(member, [0.0], tree=0), is_over=True) == []


class Scripted:
    """A rule that begins what it is told."""

    def __init__(self, first: Sequence[Branch], then: Sequence[Branch]) -> None:
        self._first, self._then = first, then

    def group(self, members: Sequence[int], draw: Any, vocabulary: int) -> Any:
        return self

    def first(self) -> Sequence[Branch]:
        return self._first

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        return self._then


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ([Branch(0), Branch(0)], [], "starts member 0 of group 4 twice"),
        (
            [Branch(0)],
            [Branch(1, 1, 1)],
            "starts member 1 of group 4 at turn 1 of member 1; start the parent",
        ),
        ([Branch(0)], [Branch(1, 0, 0)], "at turn 0 of member 0; start the parent"),
        ([Branch(0)], [], "member 1 of group 4 was never started"),
    ],
)
def test_a_rule_that_makes_no_sense_is_named(first: Any, then: Any, message: str) -> None:
    rule: Branching = Scripted(first, then)
    with pytest.raises(ValueError, match=rf"^algo\.structure.*{message}"):
        admission = Admission([(4, 0), (4, 1)], rule, lambda *_: 0.0, 4)
        admission.after(0, episode(0, [0.0]), is_over=True)
        admission.require_all_started()


def test_room_is_that_of_all_who_are_yet_to_begin() -> None:
    places = [(group, member) for group in (4, 5) for member in range(3)]
    then = [Branch(1, 0, 1), Branch(2, 0, 1)]
    admission = Admission(places, Scripted([Branch(0)], then), lambda *_: 0.0, 4)
    assert admission.room == 3  # nobody has begun: those of the first group
    admission.take_next()
    assert admission.room == 2 + 3  # the second group is next, and two of the first one are to come
    admission.after(0, episode(0, [0.0, 0.0]), is_over=False)
    assert admission.room == 0  # they are next: their group has begun
    assert Admission(places, None, lambda *_: 0.0, 4).room == 0  # nobody needs a parent


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Trees(trees=2, rounds=1, expansions=2).branching(8),
            r"^expansions=2 .* set rollout\.members=6",
        ),
        (lambda: Trees(rounds=2, expansions=2).branching(8), r"trees of 5 leaves.* set rollout\.members=5"),
        (lambda: Trees(leaves=5), r"^leaves=5 must be a whole number from 1 to 4"),
        (lambda: Trees(rounds=-1), r"^rounds=-1 must be"),
    ],
)
def test_options_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
