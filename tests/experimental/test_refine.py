"""Refine: which reply the game plays, when the loop ends, what is trained on, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.actions import Actions
from lit_agentrl.batch import LEFT_OUT, StepBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.episode import PLANNER, EndReason, FinishReason, Segment, Turn
from lit_agentrl.experimental.refinement.refine import Refine, RefineHook, read_answer
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit.advantages import group_mean_std, mc_return
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.hooks import Moment, write_next
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.build.test_structure import built
from tests.conftest import load_task_yaml, tiny_policy
from tests.experimental.test_sentences import make
from tests.rollout.conftest import reply
from tests.rollout.test_collector import Player, collect_group

FALL, UP, TWO = reply("Down"), reply("Up"), reply("Up", "Up")


def play(structure: Structure, script: Any) -> tuple[StepBatch, dict[str, float]]:
    """Play a group of two by a script that gets the number of the reply."""
    player = Player(lambda spec, k: script[k] if isinstance(script, list) else script(spec, k))
    return collect_group(player, structure)


def test_only_the_last_reply_is_played() -> None:
    # a fall that is taken back twice; a draft that is repeated; one that is changed, then kept
    batch, row = play(Refine(), [FALL, TWO, UP, UP, UP, FALL, UP, UP])
    episode = batch.episodes[0]
    assert [turn.player == PLANNER for turn in episode.turns] == [1, 1, 0, 1, 0, 1, 1, 0]
    assert [turn.actions for turn in episode.turns] == [[], [], ["Up"], [], ["Up"], [], [], ["Up"]]
    assert (episode.success, episode.total_reward, episode.env_calls) == (True, 13.0, 4)  # reset, three steps
    assert episode.answers == [("Up",)] * 3 and row["rollout/distinct_answers"] == pytest.approx(1 / 3)
    assert all(turn.is_valid and turn.reward == 0 for turn in episode.turns if turn.player == PLANNER)
    first, again, told = (turn.message for turn in episode.turns[1:4])
    assert first == again == "refine\nturns 4 actions 8\nP 0"  # a draft uses no budget
    assert told == "reward +1.0\nturns 3 actions 7\nP 1"
    assert row["structure/drafts"] == 5.0
    assert row["structure/changed_share"] == pytest.approx(
        3 / 5
    )  # TWO, UP and UP are changes; UP, UP are not
    assert "refine" not in str(episode.opening)


@pytest.mark.parametrize(
    ("says", "stop", "drafts"),
    [("It is Correct", "it is correct", 1), ("It is Correct", None, 3), ("hm", "it is correct", 3)],
)
def test_the_policy_may_say_that_nothing_is_to_be_changed(says: str, stop: str | None, drafts: int) -> None:
    says = f"<think> {says} </think> <answer> Up || Up || Up </answer>"
    batch, _ = play(Refine(rounds=3, stop=stop), [UP, says, FALL, says])
    episode = batch.episodes[0]
    assert [turn.player == PLANNER for turn in episode.turns] == [True] * drafts + [False]
    assert episode.end is EndReason.SUCCESS


def test_the_first_reply_is_a_draft_whatever_it_says() -> None:
    says = "<think> it is correct </think> <answer> Up </answer>"
    turns = play(Refine(rounds=1), [says, reply("Up", "Up", "Up")])[0].episodes[0].turns
    assert [turn.player for turn in turns] == [PLANNER, ""]


def test_answers_are_compared_without_their_thoughts() -> None:
    other = "<think> no </think> <answer> Up </answer>"
    turns = play(Refine(), [FALL, UP, other] * 3)[0].episodes[0].turns
    assert read_answer(turns[1]) == read_answer(turns[2]) != read_answer(turns[0])
    assert turns[1].reply_tokens.tolist() != turns[2].reply_tokens.tolist()
    bare = Turn("", [], [], reply_tokens=[3, 4, 5], reply_segments=[Segment.THINK, Segment.OTHER, Segment.OTHER])  # type: ignore[arg-type]  # fmt: skip
    assert read_answer(bare) == [4, 5]


def test_a_reply_at_the_limit_of_the_context_is_played() -> None:
    turn = Turn("", [], [], reply_tokens=[3], reply_segments=[Segment.OTHER])  # type: ignore[arg-type]
    for turn.finish in FinishReason:
        assert RefineHook(2, "").needs_rewriting(turn, []) == (turn.finish is not FinishReason.CONTEXT)


def test_all_replies_are_trained_on_and_nothing_else() -> None:
    batch, _ = play(Refine(), [FALL, TWO, UP, UP, UP, FALL, UP, UP])
    rows, episode = batch.trajectories, batch.episodes[0]
    assert rows is not None and rows.num_rows == 2 and LEFT_OUT not in batch.columns
    sampled = [token for turn in episode.turns for token in turn.reply_tokens.tolist()]
    assert rows.tokens_BT[0][rows.is_action_BT[0]].tolist() == sampled
    drafts = [token for turn in episode.turns if turn.player for token in turn.reply_tokens.tolist()]
    assert rows.tokens_BT[0][rows.is_plan_BT[0]].tolist() == drafts
    # drafts earn what the game pays later
    ends = rows.is_turn_end_BT[0].nonzero().flatten().tolist()
    assert rows.reward_BT[0, ends].tolist() == [0, 0, 1, 0, 1, 0, 0, 11]
    advantage_BT = bind(partial(mc_return, discount=1.0), rows.to_dict()).advantage_BT
    assert advantage_BT[0, ends].tolist() == [13, 13, 13, 12, 12, 11, 11, 11]
    whole_BT = bind(group_mean_std, rows.to_dict() | {"return_B": torch.tensor([13.0, 3.0])}).advantage_BT
    assert whole_BT[0][rows.is_action_BT[0]].unique().tolist() == pytest.approx([10 / 2 / 50**0.5], abs=1e-5)


def test_each_token_of_a_draft_may_be_paid() -> None:
    """CoT-RO: 0.6 for the right answer at the end, 0.3 for a step that is logical, -0.1 for length; words are steps."""
    batch, _ = play(Refine(rounds=1), [FALL, reply("Up", "Up", "Up")])
    [episode, _] = batch.episodes
    part = make(lambda sentence: 0.3 * (sentence == "Up") - 0.1, split=r"\S+")
    RewardPipeline({"sentences": part}).score([episode], iteration=0)
    draft, last = episode.turns
    words = [len(turn.reply_text.split()) for turn in episode.turns]
    assert draft.training_reward == pytest.approx(-0.1 * words[0])
    assert last.training_reward == pytest.approx(13 + 0.9 - 0.1 * words[1])
    rows = pack([episode])
    paid_T = rows.reward_BT[0, rows.is_plan_BT[0]]
    assert paid_T[paid_T != 0].tolist() == pytest.approx([-0.1] * words[0])


def test_without_rounds_it_is_independent() -> None:
    one, other = (play(made, [UP] * 4)[0].trajectories for made in (Refill(), Refine(rounds=0)))
    assert one is not None and other is not None
    for name, column in one.to_dict().items():
        assert torch.equal(column, other.to_dict()[name]) or column.isnan().all(), name


def test_evaluations_refine_too() -> None:
    told = Evaluation("val", SamplingParams(), plan=Refine(rounds=1).plan_evaluation)
    found, player = StepBatch(0, [7], [0], [0]), Player(lambda spec, k: UP)
    told.collect(found, lambda wave, version: player(wave), 0)
    assert [turn.player for turn in found.episodes[0].turns] == [PLANNER, ""] * 3


def test_what_is_learnt_is_what_the_policy_sampled() -> None:
    """The recorded log-probs of drafts and replies are those of a fresh forward of the packed rows."""
    policy = tiny_policy()
    rules = Rules(
        tasks=[load_task_yaml("frozen_lake")], prompt=Prompt("compact"), chat=ChatRenderer(policy.tokenizer),
        engine=partial(NativeEngine, num_slots=4), max_context_tokens=500,
    )  # fmt: skip
    hook = RefineHook(2, "it is correct")
    specs = tuple(EpisodeSpec(0, 0, m, 0, 50, extra=hook) for m in range(3))
    params = SamplingParams(max_reply_tokens=9, max_context_tokens=500)
    episodes = Scheduler(rules, rules.open_engine(policy.network)).play(Wave("train", 0, params, specs))
    for episode in episodes:
        check_ledger(episode)
        assert sum(turn.player == PLANNER for turn in episode.turns) >= 2
    rows = pack(episodes)
    with torch.no_grad():
        fresh = score_tokens(policy.network, tokens_BT=rows.tokens_BT, is_action_BT=rows.is_action_BT)
    torch.testing.assert_close(fresh.logp_BT, rows.sampler_logp_BT, atol=1e-4, rtol=0)
    assert int(rows.is_action_BT.sum()) == sum(len(t.reply_tokens) for e in episodes for t in e.turns)


def test_words_for_instruction_tuned_models() -> None:
    draft = Turn("", [], [], player=PLANNER)  # type: ignore[arg-type]
    moment = Moment(Prompt("full"), Actions("names", ("Up",)), "P", [draft], turns_left=1, actions_left=1)
    with_text, without = (
        write_next(RefineHook(1, stop), moment, reward=0.0, complaint="") for stop in ("it is correct", "")
    )
    assert with_text.endswith('If nothing is wrong, say "it is correct" and give the same answer again.')
    assert without.endswith("If nothing is wrong, give the same answer again.")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rounds": -1}, "rounds=-1 must be"), ({"stop": " "}, "stop=' ' must be a text that is not blank, or null")],
)  # fmt: skip
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Refine(**options)


@pytest.mark.slow
def test_a_context_that_forgets_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Refine needs a context .*, not given by context=Window"):
        built("algo/structure=refine", "context=window")
