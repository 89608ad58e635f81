"""A critic ranks proposed actions: a search by hand, what it reads, and answers that are no ranking."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.episode import Episode
from lit_agentrl.experimental.guided import ranked
from lit_agentrl.experimental.guided.pairs import tree_ranked
from lit_agentrl.experimental.guided.ranked import RankedMcts, RankedSearch, read_ranking, write_question
from lit_agentrl.experimental.mcts import Mcts, Node
from lit_agentrl.experimental.tree_steps import tree_state
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import Training
from tests.experimental.test_mcts import over
from tests.experimental.test_tree_steps import PAID, REPLIES, grown, sides


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_ranking_is_read_as_places(count: int) -> None:
    for order in itertools.permutations(range(1, count + 1)):
        found = read_ranking(f"Because 7 > 3.\n{', '.join(map(str, order))}\n\n", count)
        expected = {number: 1 - place / (count - 1) for place, number in enumerate(order)}
        assert found == pytest.approx([expected[number] for number in range(1, count + 1)])
    for answer in ("", "first", "1", "1,1", "2,1,9", "1,2,3,4,5", "2,1\nsorry"):
        assert read_ranking(answer, count) is None


def written(member: int, score: float, turns: int, *branches: tuple[int, int]) -> Episode:
    made = over(member, score, turns, *branches)
    made.opening = [{"role": "system", "content": "rules"}, {"role": "user", "content": "start"}]
    for number, turn in enumerate(made.turns):
        turn.reply_text, turn.message = f"r{member}.{number}", f"m{number}" if number else ""
    return made


def search(answers: Sequence[str], **options: Any) -> tuple[list[Branch], list[tuple[str, int]], RankedMcts]:
    """Members 0 to 3 of a search with scores 4, 0 and 2; what the critic was asked."""
    asked: list[tuple[str, int]] = []
    structure = RankedMcts(engine=print, constant=1.0, **options)
    left = itertools.chain(answers, itertools.repeat("I cannot tell"))

    def ask(questions: Sequence[tuple[str, int]]) -> list[str]:
        asked.extend(questions)
        return [next(left) for _ in questions]

    structure._ask = ask  # type: ignore[method-assign]
    object.__setattr__(structure._rule, "ask", ask)
    rule = structure.branching(6)
    assert isinstance(rule, RankedSearch)
    growth = rule.group(list(range(6)), lambda *address: 0.25, 64)
    found = list(growth.first())
    for member, score in enumerate((4.0, 0.0, 2.0)):
        branch = found[-1]
        branches = [] if branch.parent is None else [(branch.parent, branch.turn)]
        found += growth.after(written(member, score, 3, *branches), is_over=True)
    return found, asked, structure


def test_a_search_by_hand() -> None:
    """Q~ of a and b is 1 and 0 before member 2, N = 1 each: a + (1 - alpha) 0 against b + (1 - alpha) 1.

    With alpha = 0.4 b leads by 0.6 to 0.4.  Then b has the scores 0 and 2, Q~ = (1 - 0) / 4, N = 2, a Q~ = 1, N = 1, of
    3: b 0.4 / 4 + 0.6 + sqrt(ln 3 / 2) = 1.441, a 0.4 + sqrt(ln 3) = 1.448.
    """
    plain, asked, _ = search(["2,1", "2,1"], alpha=1.0)
    assert plain[2:] == [Branch(2, 0, 1), Branch(3, 0, 2)]  # as without a critic
    assert len(asked) == 2  # the opening, and the state after the first reply
    found, asked, structure = search(["The second.\n2,1"], alpha=0.4)
    assert found == [Branch(0, tree=0), Branch(1, tree=0), Branch(2, 1, 1), Branch(3, 0, 1)]
    assert 0.4 / 4 + 0.6 + math.sqrt(math.log(3) / 2) < 0.4 + math.sqrt(math.log(3))
    tie, _, _ = search(["2,1"], alpha=0.5)
    assert tie[2] == Branch(2, 0, 1)  # 0.5 and 0.5: the first
    question, key = asked[0]
    assert key == 2**60 and "rules\nstart\n" in question
    assert "1. r0.0\n2. r1.0" in question and question.endswith("as in 2,1.")
    progress = Progress(0, 1, 6, 0, [], [written(0, 1.0, 1)], False, lambda wave: None)  # type: ignore[arg-type,return-value]
    learnt = structure.learn(progress)
    assert (learnt["ranked_nodes"], learnt["unread_share"]) == ((2, 1), (1, 2))
    assert set(structure.curves) == learnt.keys()
    assert structure.learn(progress)["ranked_nodes"] == (0, 1)


def test_an_answer_that_is_no_ranking_leaves_the_tree_alone() -> None:
    found, _, structure = search(["none of them"], alpha=0.0)
    assert found[2:] == [Branch(2, 0, 1), Branch(3, 0, 2)]
    assert structure._counts == {"asked": 2, "unread": 2}


def test_the_bound_of_an_unranked_node_is_that_of_uct() -> None:
    rule, plain = RankedSearch(2.0, 2, None, 1, "return", alpha=0.3), Mcts(constant=2.0)._rule
    node = Node(1, 0, visits=3, scores=[1.0, 2.0, 6.0])
    assert rule.compute_bound(node, 8, 1.0, 9.0) == pytest.approx(plain.compute_bound(node, 8, 1.0, 9.0))
    rule.critic[id(node)] = 1.0
    expected = 0.3 * 2 / 8 + 0.7 + 2 * math.sqrt(math.log(8) / 3)
    assert rule.compute_bound(node, 8, 1.0, 9.0) == pytest.approx(expected)


def test_the_question_shows_the_dialogue_up_to_the_node() -> None:
    episodes = [written(0, 1.0, 3), written(2, 0.0, 3, (0, 1))]
    question = write_question(episodes, 1, 8000)
    assert "rules\nstart\nReply: r0.0\nm1\n" in question and "1. r0.1\n2. r2.1" in question
    assert "rules" not in write_question(episodes, 1, 8).partition("These replies")[0].partition("last:")[2]


def test_the_critic_lies_on_the_device_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is moved there later: the critic stayed on the CPU of a machine with a GPU."""
    made: list[torch.device] = []
    monkeypatch.setattr(ranked, "Adviser", lambda *given, device: made.append(device))
    training = Training(lambda episode: [], policy=torch.nn.Linear(1, 1), device=torch.device("cuda:0"))
    RankedMcts(engine=print).setup(training)
    assert made == [torch.device("cuda:0")]


def test_wrong_options_are_named() -> None:
    for options, message in (
        ({"alpha": 2.0}, r"alpha=2.0 must be in \[0, 1\]"),
        ({"engine": 1}, "engine=1 must be an engine"),
        ({"most_characters": 0}, "most_characters=0"),
    ):
        with pytest.raises(ValueError, match=message):
            RankedMcts(**({"engine": print} | options))  # type: ignore[arg-type]


def grow(ranks: dict[tuple[int, int], float]) -> dict[str, torch.Tensor]:
    """The tree of test_tree_steps.py, and ranks by episode and turn."""
    tensors = grown()
    tensors["rank_BT"] = torch.full(tensors["tokens_BT"].shape, math.nan)
    for (b, k), value in ranks.items():
        tensors["rank_BT"][b, 4 * k + 2 : 4 * k + 4] = value
    return tensors


def test_pairs_of_the_mixed_q() -> None:
    """Of the opening Q = 0.917 (three episodes), 0.25, 2; below (1, 2): 1, 0, 0.25; all range from 0 to 3."""
    ranks = {(0, 0): 0.0, (3, 0): 1.0, (4, 0): 0.5, (0, 1): 0.0, (1, 1): 1.0, (2, 1): 0.5}
    found, gaps = sides(partial(tree_ranked, alpha=1.0), grow(ranks))
    plain, of_tree = sides(tree_state, grown())
    assert found == plain and gaps == pytest.approx([gap / 3 for gap in of_tree])
    found, gaps = sides(partial(tree_ranked, alpha=0.0), grow(ranks))
    assert found == [((3, 2), (0, 2)), ((1, 6), (0, 6))] and gaps == [1.0, 1.0]
    found, gaps = sides(partial(tree_ranked, alpha=0.5), grow(ranks))
    # 0.153 (tree 0.306, rank 0), 0.542 (0.083, 1) and 0.583 (0.667, 0.5); then 0.167, 0.5 and 0.292
    assert found == [((4, 2), (0, 2)), ((1, 6), (0, 6))]
    assert gaps == pytest.approx([1 / 3 + 1 / 4 - 2.75 / 18, 1 / 2 - 1 / 6])
    # without a rank the tree decides
    assert sides(partial(tree_ranked, alpha=0.5), grow({}))[0] == plain


@pytest.mark.parametrize("seed", range(5))
def test_pairs_against_loops_over_episodes(seed: int) -> None:
    draw = random.Random(seed)
    ranks = {
        (b, k): draw.random()
        for b, turns in enumerate(REPLIES)
        for k in range(len(turns))
        if draw.random() < 0.6
    }
    tensors, alpha = grow(ranks), draw.random()
    states = tensors["state_key_BK"].tolist()
    q: dict[tuple[int, int, tuple[int, int]], list[float]] = {}
    said: dict[tuple[int, int, tuple[int, int]], list[float]] = {}
    wrote: dict[tuple[int, int, tuple[int, int]], tuple[int, int]] = {}
    for b, (replies, paid) in enumerate(zip(REPLIES, PAID, strict=True)):
        for k, reply in enumerate(replies):
            key = (k, states[b][k], reply)
            q.setdefault(key, []).append(sum(paid[k:]))
            wrote.setdefault(key, (b, 4 * k + 2))
            if (b, k) in ranks:
                said.setdefault(key, []).append(ranks[b, k])
    mean = {key: sum(values) / len(values) for key, values in q.items()}
    low, high = min(mean.values()), max(mean.values())
    mixed = {key: (value - low) / (high - low) for key, value in mean.items()}
    for key, values in said.items():
        mixed[key] = alpha * mixed[key] + (1 - alpha) * sum(values) / len(values)
    expected = []
    for state in sorted({key[:2] for key in mixed}):
        here = sorted((value, key) for key, value in mixed.items() if key[:2] == state)
        if len(here) > 1 and here[-1][0] > here[0][0]:
            expected.append((wrote[here[-1][1]], wrote[here[0][1]], here[-1][0] - here[0][0]))
    found, gaps = sides(partial(tree_ranked, alpha=alpha), tensors)
    assert sorted(found) == sorted(pair[:2] for pair in expected)
    assert sorted(gaps) == pytest.approx(sorted(pair[2] for pair in expected), abs=1e-6)


def test_the_search_gives_its_ranks_to_the_rows() -> None:
    _, asked, structure = search(["2,1", "1,2"], alpha=1.0)
    assert len(asked) == 2
    episodes = [written(member, 1.0, 3) for member in range(3)]
    for each in episodes:
        for turn in each.turns:
            turn.prefix_tokens, turn.prefix_segments = [7], [0]
            turn.reply_tokens, turn.reply_segments = [1, 2], [4, 4]
            turn.reply_logps, turn.reply_entropies = [-0.5, -0.5], [0.1, 0.1]
    rows = pack(episodes)
    rank_BT = structure.make_columns(0, rows)["rank_BT"]
    found = {
        (b, int(rows.turn_BT[b, t])): float(rank_BT[b, t]) for b, t in (~rank_BT.isnan()).nonzero().tolist()
    }
    # the opening's replies are those of members 0 and 1; the second state is that after the reply of member 0
    assert found[0, 0] == 0.0 and found[1, 0] == 1.0
    assert found == {(0, 0): 0.0, (1, 0): 1.0, (0, 1): 1.0, (2, 1): 0.0}
    assert structure.make_columns(1, rows)["rank_BT"].isnan().all(), "each iteration has its own"
    assert structure.make_columns(2, TrajectoryBatch.make_empty())["rank_BT"].shape == (0, 0)


def test_the_share_of_the_tree_is_checked() -> None:
    with pytest.raises(ValueError, match=r"alpha=1.5 must be in \[0, 1\]"):
        sides(partial(tree_ranked, alpha=1.5), grow({}))
