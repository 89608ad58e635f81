"""Tree search in which a language model ranks the actions proposed at a node: AgentQ."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.experimental.mcts import Mcts, Node, Search, _Group
from lit_agentrl.facts import PLAYED_HERE, RANKS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.adviser import Adviser
from lit_agentrl.rollout.branching import Draw
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import Training

Ask = Callable[[Sequence[tuple[str, int]]], list[str]]

_QUESTION = """An agent works on a task. This is what happened so far, most recent last:

{history}

These replies were proposed as its next one:

{replies}

Rank them by how far each helps to solve the task.
End your answer with one line: their numbers, best first, as in {example}."""


def read_ranking(answer: str, count: int) -> list[float] | None:
    r"""Read the values of replies 1 … ``count`` from a ranking.

    A value is ``(count - place) / (count - 1)``, with places from 1 for the best.  The last line that is not blank must
    hold each number once; otherwise the result is None.

    >>> read_ranking("The second one moves.\n2, 1", 2)
    [0.0, 1.0]
    """
    last = next((line for line in reversed(answer.splitlines()) if line.strip()), "")
    places = [int(number) for number in re.findall(r"[0-9]{1,4}", last)]
    if sorted(places) != list(range(1, count + 1)):
        return None
    return [(count - 1 - places.index(number)) / (count - 1) for number in range(1, count + 1)]


def write_question(episodes: Sequence[Episode], turn: int, most_characters: int) -> str:
    """Write the prompt that asks to rank the replies of a turn after one history."""
    first = episodes[0]
    lines = [message["content"] for message in first.opening]
    for before, after in zip(first.turns[:turn], first.turns[1 : turn + 1], strict=True):
        lines += [f"Reply: {before.reply_text}", after.message]
    replies = [f"{number}. {each.turns[turn].reply_text}" for number, each in enumerate(episodes, 1)]
    return _QUESTION.format(
        history="\n".join(lines)[-most_characters:], replies="\n".join(replies),
        example=",".join(map(str, range(len(replies), 0, -1))),
    )  # fmt: skip


@dataclass(frozen=True)
class RankedSearch(Search):
    """The search rule of `RankedMcts`.

    ``critic`` has the values of ranked nodes of one group by the id of the node.
    """

    alpha: float = 0.5
    most_characters: int = 8000
    ask: Ask | None = None
    counts: Counter[str] = field(default_factory=Counter, compare=False)
    critic: dict[int, float] = field(default_factory=dict, compare=False)
    # values of the iteration's ranked replies, by group, member and turn; all groups write to one
    ranks: dict[tuple[int, int, int], float] = field(default_factory=dict, compare=False)

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _RankedGroup(replace(self, critic={}), members, draw)

    def compute_bound(self, node: Node, parent: int, low: float, high: float) -> float:
        """Compute the UCT bound of the mixed Q.

        The mixed Q is ``alpha Q + (1 - alpha) Q_critic``, or Q for a node that was not ranked.
        """
        mean = sum(node.scores) / len(node.scores)
        q = (mean - low) / (high - low) if high > low else 0.0
        q_critic = self.critic.get(id(node), q)
        mixed = self.alpha * q + (1 - self.alpha) * q_critic
        return mixed + self.constant * math.sqrt(math.log(parent) / node.visits)


class _RankedGroup(_Group):
    """A search tree that ranks the children of a node once all were sampled."""

    _rule: RankedSearch

    def __init__(self, rule: RankedSearch, members: Sequence[int], draw: Draw) -> None:
        super().__init__(rule, members)
        self._draw = draw
        self._episodes: dict[int, Episode] = {}

    def _propagate_score(self, episode: Episode) -> None:
        parent = self._paths[episode.member][-1]
        self._episodes[episode.member] = episode
        super()._propagate_score(episode)
        if len(parent.children) == self._rule.width and not episode.failed:
            self._rank_children(parent)

    def _rank_children(self, node: Node) -> None:
        """Ask the critic to rank the replies of a node that gets no further ones."""
        assert self._rule.ask is not None, "RankedMcts sets it"
        episodes = [self._episodes[child.member] for child in node.children]
        question = write_question(episodes, node.turn, self._rule.most_characters)
        key = int(self._draw(node.turn, node.member) * 2**62)
        [answer] = self._rule.ask([(question, key)])
        values = read_ranking(answer, len(episodes))
        self._rule.counts.update(asked=1, unread=values is None)
        if values is not None:
            self._rule.critic.update(zip(map(id, node.children), values, strict=True))
            for child, episode, value in zip(node.children, episodes, values, strict=True):
                self._rule.ranks[episode.group, child.member, node.turn] = value


class RankedMcts(Mcts):
    """A tree search in which a critic ranks proposed actions: AgentQ, arXiv 2408.07199.

    Selection takes the child with the largest ``alpha Q~ + (1 - alpha) Q_critic + constant sqrt(ln N(parent) / N)``.
    ``Q~`` is that of `Mcts`, from 0 to 1.  Once ``width`` replies were sampled at a state, a language model reads the
    dialogue and ranks them: ``Q_critic = (n - place) / (n - 1)`` of n replies, 1 for the best.  If a ranking cannot be
    read, it is not asked for again, and Q~ is used without it.  The search waits for each answer.

    Departs: the paper was not at hand.  From memory, its critic is the policy itself and ranks before any reply is
    played; here it is a model with weights of its own, and each reply was played once.  ``algo/pairing=tree_ranked``
    compares pairs by the mixed Q too, as the paper does; ``tree_state`` compares them by Q, so that the critic only
    affects which states are searched.

    Args:
        engine: constructor of the engine that answers, as in ``reward=judge``.
        model: constructor of the policy whose network answers; None if the model is behind an API.
        alpha: weight of the tree's Q, in [0, 1].
        most_characters: number of last characters of the dialogue that the model reads.
        temperature, max_reply_tokens, max_context_tokens: sampling options of the answers.
        constant, width, depth, together, score, critic_share, max_waves: see `Mcts`.

    Raises:
        ValueError: a value is out of range; :meth:`setup`: the model cannot be asked.
    """

    curves: Sequence[str] = (*Mcts.curves, "ranked_nodes", "unread_share")

    def __init__(
        self, *, engine: Callable[..., Any], model: Callable[..., Any] | None = None, alpha: float = 0.5,
        most_characters: int = 8000, temperature: float = 0.0, max_reply_tokens: int = 512,
        max_context_tokens: int = 8192, constant: float = math.sqrt(2), width: int = 2, depth: int | None = None,
        together: int = 1, score: str = "return", critic_share: float = 0.0, max_waves: int | None = None,
    ) -> None:  # fmt: skip
        require(callable(engine), "engine", engine, "an engine with _partial_: true")
        require_number("alpha", alpha, "in [0, 1]", lambda share: 0 <= share <= 1)
        require_whole("most_characters", most_characters, 1)
        super().__init__(constant, width, depth, together, score, critic_share, max_waves)
        self.requires |= {Requirement(PLAYED_HERE, reason="the search asks a critic")}
        self.provides = frozenset({*self.provides, RANKS})
        self._engine, self._model = engine, model
        self._params = {
            "temperature": temperature, "max_reply_tokens": max_reply_tokens,
            "max_context_tokens": max_context_tokens,
        }  # fmt: skip
        self._counts: Counter[str] = Counter()
        self._ranks: dict[tuple[int, int, int], float] = {}
        self._adviser: Adviser | None = None
        self._rule = RankedSearch(
            constant, width, depth, together, score, critic_share, None, alpha, most_characters, self._ask,
            self._counts, ranks=self._ranks,
        )  # fmt: skip

    def setup(self, training: Training) -> None:
        super().setup(training)
        if self._adviser is None:
            self._adviser = Adviser(self._engine, self._model, self._params, device=training.device)

    def make_columns(self, iteration: int, rows: TrajectoryBatch) -> Mapping[str, Tensor]:
        """Return ``rank_BT``, ``Q_critic`` at the tokens of ranked replies; NaN elsewhere."""
        rank_BT = torch.full(rows.tokens_BT.shape, math.nan)
        members = zip(rows.group_B.tolist(), rows.member_B.tolist(), strict=True)
        for row, (group, member) in enumerate(members):
            for turn in set(rows.turn_BT[row, rows.is_action_BT[row]].tolist()):
                is_reply_T = rows.is_action_BT[row] & (rows.turn_BT[row] == turn)
                rank_BT[row, is_reply_T] = self._ranks.get((group, member, turn), math.nan)
        self._ranks.clear()
        return {"rank_BT": rank_BT}

    def _ask(self, questions: Sequence[tuple[str, int]]) -> list[str]:
        assert self._adviser is not None, "setup() makes it before anything is played"
        return self._adviser.ask(questions)

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        asked, unread = self._counts["asked"], self._counts["unread"]
        self._counts.clear()
        if self._adviser is not None:
            self._adviser.close()  # its engine is opened again for the next iteration
        groups = len({episode.group for episode in progress.sampled})
        return {**super().learn(progress), "ranked_nodes": (asked, groups), "unread_share": (unread, asked)}
