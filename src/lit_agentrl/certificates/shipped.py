"""The games in which every shipped algorithm is certified."""

from __future__ import annotations

from dataclasses import replace

from lit_agentrl.certificates.games import Move, TableGame

ONE_TURN = TableGame(
    "one turn", "one token of three, with returns 0, 0.4 and 1", ("a",),
    {"a": (Move(), Move(reward=0.4), Move(reward=1.0))},
    {"a": (0.3, 0.0, -0.4)},
)  # fmt: skip
PROMPTS = TableGame(
    "prompts", "an easy prompt and a hard one, solved with probability 1/2 and 1/10", ("easy", "hard"),
    {"easy": (Move(), Move(reward=1.0)), "hard": (Move(), Move(reward=1.0))},
    {"hard": (2.1972245773362196, 0.0)},  # log 9
)  # fmt: skip
LENGTHS = TableGame(
    "lengths", "replies of one, two and three tokens, with unequal returns", ("a",),
    {
        "a": (Move(reward=0.3), Move(to="b", ends_turn=False)),
        "b": (Move(reward=1.0), Move(to="c", ends_turn=False)),
        "c": (Move(), Move(reward=0.7)),
    },
    {"a": (0.2, 0.0), "b": (0.0, 0.5), "c": (-0.3, 0.0)},
)  # fmt: skip
TURNS = TableGame(
    "turns", "two turns, each of which pays", ("a",),
    {
        "a": (Move(to="b"), Move(to="c", reward=0.5)),
        "b": (Move(), Move(reward=1.0)),
        "c": (Move(reward=0.2), Move(reward=0.4)),
    },
    {"a": (0.4, 0.0), "b": (0.1, 0.0), "c": (0.0, 0.6)},
)  # fmt: skip
# every turn pays 1; the gradient of the return in the logit of going on is p (1 - p) = 1/4
STOP = TableGame(
    "stop", "the policy may end the episode after its first turn; every turn pays 1", ("a",),
    {"a": (Move(reward=1.0), Move(to="b", reward=1.0)), "b": (Move(reward=1.0),)},
)  # fmt: skip
REPEAT = TableGame(
    "repeat", "two ways to one state, so that it repeats within a group", ("a",),
    {"a": (Move(to="b"), Move(to="b", reward=0.3)), "b": (Move(), Move(reward=1.0))},
    {"a": (0.4, 0.0), "b": (0.7, 0.0)},
)  # fmt: skip
LAG_1 = replace(LENGTHS, name="lag 1", says="`lengths`, played by the policy of one step before", lag=1)
LAG_4 = replace(LENGTHS, name="lag 4", says="`lengths`, played by the policy of four steps before", lag=4)
REFERENCE = replace(
    ONE_TURN, name="KL", says="`one turn`, with a reference that differs from the policy",
    reference={"a": (-0.5, 0.5, 0.0)},
)  # fmt: skip
GAMES = (ONE_TURN, PROMPTS, LENGTHS, TURNS, STOP, REPEAT, LAG_1, LAG_4, REFERENCE)
