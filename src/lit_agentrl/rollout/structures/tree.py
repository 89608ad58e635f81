"""Trees of episodes, each grown from turns of its own episodes in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl import seeds
from lit_agentrl.checks import require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.facts import BRANCHES, FORK, PLAYED
from lit_agentrl.rollout.branching import Branch, Branching, Draw
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(frozen=True)
class Rounds:
    """The rule of `Trees`: numbers of trees, rounds, and expansions per tree and round."""

    trees: int
    rounds: int
    expansions: int

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, list(members), draw)


class _Group:
    """A group whose first members start a tree each; the others expand them."""

    def __init__(self, rule: Rounds, members: list[int], draw: Draw) -> None:
        self._rule, self._members, self._draw = rule, members, draw
        self._finished: dict[int, list[Episode]] = {}  # by tree

    def first(self) -> Sequence[Branch]:
        return [Branch(member) for member in self._members[: self._rule.trees]]

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        if not is_over:
            return ()
        rule, tree = self._rule, episode.tree_member
        finished = self._finished.setdefault(tree, [])
        finished.append(episode)
        round_index, remainder = divmod(len(finished) - 1, rule.expansions)
        return [] if remainder or round_index >= rule.rounds else self._start_round(tree, round_index)

    def _start_round(self, tree: int, round_index: int) -> list[Branch]:
        rule, nodes = self._rule, self._list_nodes(tree)
        start = rule.trees + (round_index * rule.trees + self._members.index(tree)) * rule.expansions
        branches = []
        for expansion, member in enumerate(self._members[start : start + rule.expansions]):
            parent, turn = nodes[int(self._draw(tree, round_index, expansion) * len(nodes))]
            branches.append(Branch(member, parent, turn) if turn else Branch(member, tree=tree))
        return branches

    def _list_nodes(self, tree: int) -> list[tuple[int, int]]:
        """Return member and turn of each node: the opening and every later turn, once each."""
        nodes = [(tree, 0)]
        for episode in sorted(self._finished[tree], key=lambda episode: episode.member):
            num_written = sum(len(turn.reply_tokens) > 0 for turn in episode.turns)
            nodes += [(episode.member, turn) for turn in range(episode.branch_turn + 1, num_written)]
        return nodes


class Trees(Refill):
    """Groups of ``trees``, each expanded in ``rounds``: Tree-GRPO, arXiv 2509.21240.

    Each tree of a prompt starts with one episode.  A node is what the policy reads before a turn: the opening is a
    node, the end of an episode is not.  In a round ``expansions`` nodes of each tree are drawn, uniformly and with
    replacement, and an episode continues from each node.  ``rollout.members`` is the number of leaves,
    ``trees (1 + rounds expansions)``.  `Refill` says how groups are refilled.

    Args:
        trees: Trees per prompt; None for as many as ``rollout.members`` allows.
        rounds: Number of rounds; 0 plays independent episodes.
        expansions: Expansions of each tree in each round.
        leaves: Leaves of each tree that are trained on, drawn without replacement; None for all.
        max_waves: See `Refill`.

    Raises:
        ValueError: A value is out of range.
    """

    requires = frozenset({FORK, PLAYED})
    provides = Refill.provides | {BRANCHES}

    def __init__(
        self,
        trees: int | None = None,
        rounds: int = 1,
        expansions: int = 3,
        leaves: int | None = None,
        max_waves: int | None = None,
    ) -> None:
        if trees is not None:
            require_whole("trees", trees, 1, alternative=", or null for as many as rollout.members gives")
        require_whole("rounds", rounds, 0)
        require_whole("expansions", expansions, 1)
        self._size = 1 + rounds * expansions
        if leaves is not None:
            require_whole("leaves", leaves, 1, self._size, ", which a tree has, or null for all")
        self._trees, self._rounds, self._expansions, self._leaves = trees, rounds, expansions, leaves
        super().__init__(max_waves)

    def branching(self, members: int) -> Branching | None:
        trees = members // self._size if self._trees is None else self._trees
        if trees * self._size != members:
            num_leaves = max(trees, 1) * self._size
            raise ValueError(
                f"expansions={self._expansions} in each of rounds={self._rounds} grow trees of {self._size} leaves, "
                f"which do not make rollout.members={members}; set rollout.members={num_leaves}, or other trees"
            )
        return Rounds(trees, self._rounds, self._expansions) if self._rounds else None

    def train_on(self, progress: Progress) -> Sequence[Episode]:
        if self._leaves is None:
            return progress.sampled
        leaves_by_tree: dict[tuple[int, int], list[Episode]] = {}
        for episode in progress.sampled:
            if episode.num_action_tokens and not episode.failed:
                leaves_by_tree.setdefault((episode.group, episode.tree_member), []).append(episode)

        def draw(leaf: Episode) -> float:
            return seeds.draw_uniform(progress.seed, "leaf", progress.iteration, leaf.group, leaf.member)

        chosen = [
            leaf for leaves in leaves_by_tree.values() for leaf in sorted(leaves, key=draw)[: self._leaves]
        ]
        chosen_members = {(leaf.group, leaf.member) for leaf in chosen}
        return [episode for episode in progress.sampled if (episode.group, episode.member) in chosen_members]
