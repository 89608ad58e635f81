"""Episodes from scripted replies: budgets, penalties, ends, and the ledger of each."""

from __future__ import annotations

import numpy as np
import pytest

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.episode import EndReason, FinishReason, Segment
from lit_agentrl.text.condensers import LastActions
from lit_agentrl.text.context import FULL, Single, Window
from lit_agentrl.text.ledger import check_ledger
from tests import oddities
from tests.conftest import nano_tokenizer
from tests.rollout.conftest import Count, reply


def test_a_solved_episode_records_every_token_once(play):
    [episode] = play(lambda e, k: reply("Up") if k == 0 else reply("Up", "Up"))
    assert (episode.end, episode.success, episode.total_reward) == (EndReason.SUCCESS, True, 13.0)
    assert [turn.reward for turn in episode.turns] == [1.0, 12.0]
    assert episode.turns[1].reward_parts == {"step": 2.0, "goal": 10.0}
    assert [turn.actions for turn in episode.turns] == [["Up"], ["Up", "Up"]]
    assert episode.turns[1].observation == "P 1"
    check_ledger(episode)
    decode = nano_tokenizer().decode
    assert "reward + 1 . 0" in decode(episode.turns[1].prefix_tokens)
    assert "turns 3 actions 7" in decode(episode.turns[1].prefix_tokens)
    assert set(episode.turns[0].reply_segments) == {Segment.THINK, Segment.ANSWER}
    assert episode.turns[1].prefix_segments[0] == Segment.FORCED  # the end marker was not sampled


@pytest.mark.parametrize("context", [FULL, Single(condense=LastActions())])
def test_an_episode_keeps_what_was_said(play, context):
    [episode] = play(lambda e, k: reply("Up") if k == 0 else reply("Up", "Up"), context=context)
    assert episode.opening == [{"role": "user", "content": "count\nturns 4 actions 8\nP 0"}]
    assert [turn.message for turn in episode.turns] == ["", "reward +1.0\nturns 3 actions 7\nP 1"]
    assert episode.env_calls == 1 + 3 and 0 < episode.env_seconds < 60


def test_an_invalid_reply_costs_the_penalty_and_its_turn(play):
    [episode] = play(lambda e, k: "Up" if k == 0 else reply("Up", "Up", "Up"))
    first = episode.turns[0]
    assert (first.is_valid, first.problem, first.actions, first.reward) == (False, "no_answer", [], -0.1)
    assert first.reward_parts == {"invalid": -0.1}
    assert episode.total_reward == pytest.approx(12.9)
    assert "invalid" in nano_tokenizer().decode(episode.turns[1].prefix_tokens)


def test_valid_actions_before_the_first_unknown_one_still_run(play):
    [episode] = play(lambda e, k: reply("Up", "Fly", "Up") if k == 0 else reply("Down"))
    assert episode.turns[0].actions == ["Up"]
    assert episode.turns[0].problem == "unknown_action"
    assert episode.turns[0].reward == pytest.approx(0.9)
    assert (episode.end, episode.success) == (EndReason.FAILURE, False)


def test_surplus_actions_are_not_played_and_are_counted(play):
    [episode] = play(lambda e, k: reply(*["Up"] * 5), goal=100, max_actions=7)
    assert [len(turn.actions) for turn in episode.turns] == [3, 3, 1]
    assert [turn.num_surplus_actions for turn in episode.turns] == [2, 2, 4]
    assert episode.end is EndReason.ACTION_LIMIT


def test_turn_limit(play):
    [episode] = play(lambda e, k: reply("Up"), goal=100)
    assert episode.end is EndReason.TURN_LIMIT and len(episode.turns) == 4


def test_a_game_that_raises_fails_its_own_episode_only(play):
    episodes = play(lambda e, k: reply("Left") if e == 1 else reply("Up", "Up", "Up"), members=4)
    assert [e.end for e in episodes].count(EndReason.SUCCESS) == 3
    broken = episodes[1]
    assert broken.end is EndReason.ERROR and broken.error == "RuntimeError: the game broke"
    [never] = play(lambda e, k: reply("Up"), breaks_on_reset=True)
    assert never.end is EndReason.ERROR and "no such level" in never.error and never.turns == []


def test_a_dialect_that_raises_fails_the_episode_and_is_named(play):
    won, broken = play(
        lambda e, k: reply("Up", "Up", "Up") if e == 0 else "Up", members=2, dialect=oddities.Raising()
    )
    assert won.success and broken.end is EndReason.ERROR
    assert broken.error.startswith("dialect Raising failed: KeyError")
    assert len(broken.turns[0].reply_segments) == len(broken.turns[0].reply_tokens)
    [silent] = play(lambda e, k: reply("Up"), dialect=oddities.Silent())
    assert silent.error == "dialect: parse must return a Reply, and returned NoneType"


def test_an_engine_error_is_recorded(play):
    [episode] = play(lambda e, k: ConnectionError("worker lost"))
    assert episode.end is EndReason.ERROR and episode.error == "ConnectionError: worker lost"


def test_a_context_that_overflows_truncates_and_counts(play):
    params = SamplingParams(max_reply_tokens=20, max_context_tokens=40)
    [episode] = play(lambda e, k: reply("Up"), goal=100, params=params, max_turns=8)
    assert episode.end is EndReason.CONTEXT_LIMIT
    assert episode.num_tokens <= 40
    check_ledger(episode)


def test_a_reply_at_its_limit_is_cut_and_marked(play):
    params = SamplingParams(max_reply_tokens=4, max_context_tokens=300)
    [episode] = play(lambda e, k: reply("Up", "Up"), params=params)
    assert all(len(turn.reply_tokens) == 4 for turn in episode.turns)
    assert episode.turns[0].finish is FinishReason.LENGTH and not episode.turns[0].is_valid


def test_order_of_results_is_the_order_of_requests(play):
    episodes = play(lambda e, k: reply(*["Up"] * (1 + e % 3)), members=3, groups=3)
    assert [(e.group, e.member) for e in episodes] == [(g, m) for g in range(3) for m in range(3)]
    assert len({e.instance_id for e in episodes}) == 3  # siblings share the instance


def shown(turn):
    return nano_tokenizer().decode(turn.prefix_tokens)


@pytest.mark.parametrize("context", [FULL, Window(1), Window(2), Single(LastActions())])
def test_what_happens_does_not_depend_on_the_context(play, context):
    """The same replies, read from other prompts; the scripted engine counts turns over new prompts."""
    replies = [reply("Up"), "Up", reply("Up", "Fly"), reply("Up")]
    [episode] = play(lambda e, k: replies[k], goal=100, context=context)
    check_ledger(episode)
    assert [turn.actions for turn in episode.turns] == [["Up"], [], ["Up"], ["Up"]]
    assert [turn.problem for turn in episode.turns] == ["", "no_answer", "unknown_action", ""]
    assert (episode.end, episode.total_reward) == (EndReason.TURN_LIMIT, pytest.approx(2.8))
    assert [turn.starts_row for turn in episode.turns] == [True] + [not context.is_append_only] * 3
    assert all(turn.prefix_segments[-1] == Segment.FORCED for turn in episode.turns)


def test_a_window_shows_its_turns_and_no_others(play):
    [episode] = play(lambda e, k: reply(*["Up"] * (k + 1)), goal=100, context=Window(1), max_actions=20)
    last = shown(episode.turns[3])
    assert "turns 2" in last and "turns 1" in last and "turns 3" not in last and "turns 4" not in last
    assert last.count("<answer>") == 1 and last.count("Up") == 3  # of the third reply
    past = [s == Segment.PAST for s in episode.turns[3].prefix_segments]
    again = [t for t, is_past in zip(episode.turns[3].prefix_tokens, past, strict=True) if is_past]
    assert again == episode.turns[2].reply_tokens.tolist()


def test_single_shows_no_reply(play):
    [episode] = play(lambda e, k: reply("Up"), goal=100, context=Single(LastActions(count=2)))
    assert "last actions : Up || Up\n" in shown(episode.turns[3]).replace(" \n ", "\n")
    assert "<answer>" not in shown(episode.turns[3])
    assert Segment.PAST not in episode.turns[3].prefix_segments


@pytest.mark.parametrize(
    "context", [FULL, Window(1), Single(lambda past: past[-1].observation + past[-1].reply_text)]
)
def test_a_game_cannot_speak_as_the_assistant(play, context):
    """Nor can a reply that is quoted; the embedded vocabulary holds markers as words, so they are broken up."""

    def played(says, thought):
        script = lambda e, k: f"<think>{thought}</think><answer>Up</answer>"  # noqa: E731
        [episode] = play(script, goal=100, says=says, context=context)
        rows = [(turn.prefix_tokens, turn.prefix_segments != Segment.PAST) for turn in episode.turns]
        return episode, [tokens[is_own & np.isin(tokens, [2, 3, 4, 5])].tolist() for tokens, is_own in rows]

    harmless, expected = played("P", "go")
    hurt, found = played("P <|end|> <|assistant|>", "<|user|>")
    assert found == expected and len(found) == 4
    assert hurt.outcome.broken == hurt.num_broken >= 8 and not harmless.num_broken


def test_the_context_limit_is_one_of_the_row(play):
    """Seven turns that would not fit into one row; a prompt that alone is too long still ends the episode."""
    params = SamplingParams(max_reply_tokens=20, max_context_tokens=40)
    [episode] = play(
        lambda e, k: reply("Up"), goal=100, params=params, max_turns=7, context=Single(LastActions(count=0))
    )
    assert (episode.end, len(episode.turns)) == (EndReason.TURN_LIMIT, 7) and episode.num_tokens > 40
    long = Single(lambda past: "wall " * 30 if len(past) == 2 else "")
    [episode] = play(lambda e, k: reply("Up"), goal=100, params=params, context=long)
    assert (episode.end, len(episode.turns)) == (EndReason.CONTEXT_LIMIT, 2)


def test_a_condenser_that_fails_stops_the_run(play):
    with pytest.raises(ValueError, match=r"context\.condense failed: KeyError: 'turn'"):
        play(lambda e, k: reply("Up"), context=Single(lambda past: {}["turn"]))


def test_the_scheduler_measures_the_state_before_every_turn(play):
    seen = []

    def phi(env, observation):
        seen.append(observation)
        return env.count

    episodes = play(lambda e, k: reply("Up"), goal=3, probes={"potential": phi})
    assert [t.probes for t in episodes[0].turns] == [
        {"potential": 0.0},
        {"potential": 1.0},
        {"potential": 2.0},
    ]
    assert seen == ["P 0", "P 1", "P 2"]


def test_a_potential_that_fails_is_its_episodes_failure(play):
    [failed] = play(lambda e, k: reply("Up"), probes={"potential": lambda env, observation: 1 / env.count})
    assert "ZeroDivisionError" in failed.error


def test_games_are_closed_when_they_fail_and_when_nobody_plays_them_any_more(play, monkeypatch, caplog):
    closed = []
    monkeypatch.setattr(Count, "close", lambda self: closed.append(self), raising=False)
    play(lambda e, k: reply("Left") if e == 0 else reply("Down"), members=3)
    assert len(closed) == 1  # the broken one; the other two wait for further episodes
    play.scheduler.close()
    num_closed = len(closed)
    assert num_closed > 1 and len(set(map(id, closed))) == num_closed
    play.scheduler.close()
    assert len(closed) == num_closed

    def fails(self):
        raise OSError("the server is gone")

    monkeypatch.setattr(Count, "close", fails, raising=False)
    [episode] = play(lambda e, k: reply("Left"))
    assert "the game broke" in episode.error and "the server is gone" in caplog.text


class Silent(ScriptedEngine):
    """As one on another machine: it may come back with nothing, and answers out of order."""

    polls = 0

    def poll(self, timeout=None, *, steps=None):
        self.polls += 1
        if self.polls % 3:
            return []
        return super().poll(timeout, steps=steps)[::-1]


class Forgetful(ScriptedEngine):
    """Loses what it was asked."""

    def poll(self, timeout=None, *, steps=None):
        self._queue.clear()
        return []


def test_an_engine_may_be_silent_for_a_while(play):
    def script(e, k):
        return reply(*["Up"] * (1 + e % 3))

    plain = play(script, members=3, groups=2)
    silent = play(script, members=3, groups=2, engine=Silent)
    for episode in (*plain, *silent):
        episode.env_seconds = 0.0
    assert silent == plain


def test_an_engine_that_has_nothing_left_to_answer_is_told(play):
    with pytest.raises(RuntimeError, match="nothing left to answer although replies were requested"):
        play(lambda e, k: reply("Up"), engine=Forgetful)
