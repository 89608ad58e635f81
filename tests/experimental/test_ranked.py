"""A critic ranks proposed actions: a search by hand, what it reads, and answers that are no ranking."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

from lit_agentrl.episode import Episode
from lit_agentrl.experimental.guided.ranked import RankedMcts, RankedSearch, read_ranking, write_question
from lit_agentrl.experimental.mcts import Mcts, Node
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.structures.base import Progress
from tests.experimental.test_mcts import over


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


def test_wrong_options_are_named() -> None:
    for options, message in (
        ({"alpha": 2.0}, r"alpha=2.0 must be in \[0, 1\]"),
        ({"engine": 1}, "engine=1 must be an engine"),
        ({"most_characters": 0}, "most_characters=0"),
    ):
        with pytest.raises(ValueError, match=message):
            RankedMcts(**({"engine": print} | options))  # type: ignore[arg-type]
