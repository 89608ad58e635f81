"""Parts of replies in loss and advantages: worked numbers, readers and loops written anew, the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_agentrl.batch import LEFT_OUT, SKIPPED, StepBatch
from lit_agentrl.experimental.parts.masked import Parts, find_tagged
from lit_agentrl.rl.policy.filters import keep_all
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.hook import Training
from lit_agentrl.text.token_bytes import get_token_pieces
from lit_agentrl.update.minibatches import drop_skipped, prepare_rows
from tests.conftest import nano_tokenizer
from tests.rl.ragged import fresh, ragged
from tests.rollout.test_collector import Player

SAYS = "<think> go <state> P _ </state> wall </think> <answer> Up </answer>"


def test_worked_tokens() -> None:
    pieces = [b"a ", b"<st", b"ate>", b"P", b"</state>x", b" ", b"<State>", b"_", b""]
    assert find_tagged(pieces, ["state"]) == ["", *["state"] * 4, "", "state", "state", ""]
    assert find_tagged(pieces, []) == [""] * 9
    # a tag inside another one is text, and the first closing tag closes
    nested = [b"<state>", b"<plan>", b"</plan>", b"</state>", b"</state>", b"<plan>"]
    assert find_tagged(nested, ["plan", "state"]) == ["state"] * 4 + ["", "plan"]


def tag_by_character(pieces: list[bytes], tags: list[str]) -> list[str]:
    """Read one character after the other, and take the first tag that a token touches."""
    text, labels, inside, k = b"".join(pieces).decode("latin-1"), [], "", 0
    lower = "".join(c.lower() if c.isascii() else c for c in text)
    while k < len(text):
        opened = next((tag for tag in tags if not inside and lower.startswith(f"<{tag}>", k)), "")
        if opened:
            inside, size = opened, len(opened) + 2
            labels += [inside] * size
        elif inside and lower.startswith(f"</{inside}>", k):
            size = len(inside) + 3
            labels += [inside] * size
            inside = ""
        else:
            size = 1
            labels.append(inside)
        k += size
    found, begin = [], 0
    for piece in pieces:
        start, end = begin + len(piece) - len(piece.lstrip() or piece), begin + len(piece)
        found.append(next(filter(None, labels[start : max(end, start + 1)]), ""))
        begin = end
    return found


WORDS = [
    "<state>",
    "</state>",
    "</STATE>",
    "<plan>",
    "</plan>",
    "<",
    "state>",
    " ",
    "\n",
    "P",
    "é",
    "<think>",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join), st.lists(st.integers(0, 60), max_size=20))
def test_any_text_however_it_is_cut(text: str, cuts: list[int]) -> None:
    raw = text.encode()
    ends = [*sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    assert b"".join(pieces) == raw
    for tags in (["state"], ["plan", "state"]):
        assert find_tagged(pieces, tags) == tag_by_character(pieces, tags)


def collect(**options: Any) -> tuple[Any, dict[str, torch.Tensor], dict[str, float]]:
    structure = Parts(**options)
    structure.setup(Training(lambda episode: [], tokenizer=nano_tokenizer()))
    player = Player(lambda spec, k: SAYS)
    made = Collector(
        player.rules, RolloutSettings(prompts=1, members=2, max_context_tokens=400), structure=structure,
        select_groups=keep_all,
        further_prompts=lambda iteration, wave: StepBatch(iteration, [], [], [], wave=wave),
    )  # fmt: skip
    batch = StepBatch(0, seed_P=[7], task_P=[0], group_P=[0])
    row = made.collect(batch, player, device=torch.device("cpu"))
    assert batch.trajectories is not None
    return batch.trajectories, batch.columns, row


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, "<answer> Up </answer>"),
        ({"masked": ["answer"]}, "<think> go <state> P _ </state> wall </think>"),
        ({"masked": ["answer", "state"], "tags": ["state"]}, "<think> go wall </think>"),
        ({"masked": ["think", "answer"], "tags": ["State"]}, "<state> P _ </state>"),
        ({"masked": ["state"], "tags": ["state", "plan"]}, "<think> go wall </think> <answer> Up </answer>"),
    ],
)
def test_what_is_left_of_each_reply(options: dict[str, Any], left: str) -> None:
    rows, columns, row = collect(**options)
    left_out_BT = columns[LEFT_OUT]
    assert SKIPPED not in columns and math.isnan(row.get("structure/skipped_share", math.nan))
    assert not (left_out_BT & ~rows.is_action_BT).any()
    piece_of, turns = get_token_pieces(nano_tokenizer()), 0
    for tokens_T, turn_T, is_left_T in zip(
        rows.tokens_BT, rows.turn_BT, rows.is_action_BT & ~left_out_BT, strict=True
    ):
        for turn in range(int(turn_T.max()) + 1):
            kept = tokens_T[is_left_T & (turn_T == turn)].tolist()
            assert b"".join(map(piece_of, kept)).decode().replace(" ", "") == left.replace(" ", "")
            turns += 1
    assert turns == 6
    share = float(left_out_BT.sum() / rows.is_action_BT.sum())
    assert row["structure/masked_share"] == pytest.approx(share) and 0 < share < 1


def test_the_loss_is_the_mean_over_what_is_left() -> None:
    """Of GRPO on-policy: -A of each kept token over their number; the advantage is that of whole replies."""
    rows, columns, _ = collect(masked=["think"], tags=["state"])
    left_out_BT = columns[LEFT_OUT]
    tensors = rows.to_dict() | {"return_B": torch.tensor([2.0, 0.0])}
    tensors |= {"old_logp_BT": tensors["sampler_logp_BT"], LEFT_OUT: left_out_BT}
    objective = fresh("grpo")
    prepared, _ = prepare_rows(objective, dict(tensors), at_least=1)
    assert prepared is not None
    logp_BT = tensors["sampler_logp_BT"].clone().requires_grad_()
    given = prepared | {"logp_BT": logp_BT, "entropy_BT": torch.zeros_like(logp_BT)}
    loss, _ = objective.loss(given | objective.count(given))
    loss.backward()
    is_kept_BT = tensors["is_action_BT"] & ~left_out_BT
    advantage_B1 = torch.tensor([[1.0], [-1.0]]) / (torch.tensor([2.0, 0.0]).std() + 1e-6)
    expected_BT = torch.where(is_kept_BT, -advantage_B1 / is_kept_BT.sum(), 0.0)
    assert logp_BT.grad is not None
    torch.testing.assert_close(logp_BT.grad, expected_BT, atol=1e-6, rtol=1e-4)
    assert float(loss.detach()) == pytest.approx(float(expected_BT.sum()), abs=1e-6)


def prepare(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    objective = fresh(name, "advantage.whiten=false")
    prepared, _ = prepare_rows(objective, dict(tensors), at_least=1)
    assert prepared is not None
    return prepared


def test_worked_numbers() -> None:
    """Two turns of a thought and a two-token answer: the advantage steps from answer to answer.

    discount 1, lambda 0.5, V = (9, 1, 2 | 9, 3, 4), r = (0, 0, 1 | 0.5, 0, 2) and thoughts skipped: the 0.5 of the
    second thought counts at the answer before it.  Errors: 4: 2 - 4 = -2, then 0 + 4 - 3 = 1, 1.5 + 3 - 2 = 2.5,
    0 + 2 - 1 = 1; A = -2, 1 - 1 = 0, 2.5, 1 + 1.25 = 2.25.
    """
    tensors = {
        "is_action_BT": torch.ones(1, 6, dtype=torch.bool),
        "is_turn_end_BT": torch.tensor([[False, False, True, False, False, True]]),
        "reward_BT": torch.tensor([[0.0, 0.0, 1.0, 0.5, 0.0, 2.0]]),
        "value_BT": torch.tensor([[9.0, 1.0, 2.0, 9.0, 3.0, 4.0]]),
        "return_B": torch.tensor([3.5]),
        "group_B": torch.tensor([0]),
        "trajectory_B": torch.tensor([0]),
        "first_turn_B": torch.tensor([0]),
        SKIPPED: torch.tensor([[True, False, False, True, False, False]]),
    }
    objective = fresh("ppo", "advantage.whiten=false", "advantage.gae_lambda=0.5")
    prepared, _ = prepare_rows(objective, dict(tensors), at_least=1)
    assert prepared is not None
    assert prepared["advantage_BT"].tolist() == [[0, 2.25, 2.5, 0, 0, -2]]
    assert prepared["return_BT"].tolist() == [[0, 3.25, 4.5, 0, 3, 2]]
    assert prepared["is_value_target_BT"].tolist() == [[False, True, True, False, True, True]]
    assert prepared["is_action_BT"].all(), "the loss still has every token"
    # answers skipped: the turn ends at its thought, and the reward before all kept tokens is in no return
    seen = drop_skipped(tensors, ~tensors[SKIPPED] | (torch.arange(6) == 0))
    assert seen["is_turn_end_BT"].tolist() == [[False, False, False, True, False, False]]
    assert seen["reward_BT"].tolist() == [[0, 0, 0, 2.5, 0, 0]]


def compute_by_loop(steps: list[dict[str, float]], *, by_turn: bool) -> list[float]:
    """GAE of one trajectory's kept tokens, backwards one by one; discount 1 within a turn and 0.95 between turns."""
    kept: list[dict[str, float]] = []
    for step in steps:
        if not step["skipped"]:
            kept.append(dict(step))
        elif kept:
            kept[-1]["r"] += step["r"]
            kept[-1]["end"] = max(kept[-1]["end"], step["end"])
    found = [0.0] * len(kept)
    turn_value = turn_advantage = value = advantage = 0.0
    for k in reversed(range(len(kept))):
        step = kept[k]
        if by_turn and step["end"]:
            turn_advantage = step["r"] + 0.95 * turn_value - step["v"] + 0.95 * turn_advantage
            turn_value, found[k] = step["v"], turn_advantage
        else:
            found[k] = step["r"] + value - step["v"] + (1.0 if by_turn else 0.95) * advantage
        value, advantage = step["v"], found[k]
    return found


@pytest.mark.parametrize(("name", "by_turn"), [("ppo", False), ("bilevel_ppo", True)])
def test_advantages_against_a_loop_over_tokens(name: str, by_turn: bool) -> None:
    for seed in range(6):
        tensors = ragged(seed)
        draw = torch.Generator().manual_seed(seed)
        is_action_BT = tensors["is_action_BT"]
        tensors["trajectory_B"] = torch.arange(len(is_action_BT)) // 2  # two rows each, the later one first
        tensors["first_turn_B"] = (1 - torch.arange(len(is_action_BT)) % 2).int()
        tensors["reward_BT"] = torch.where(
            is_action_BT, torch.randn(is_action_BT.shape, generator=draw).double(), 0.0
        )
        is_skipped_BT = is_action_BT & (torch.rand(is_action_BT.shape, generator=draw) < 0.5)
        prepared = prepare(name, tensors | {SKIPPED: is_skipped_BT})
        assert not prepared["advantage_BT"][~is_action_BT | is_skipped_BT].any()
        assert torch.equal(prepared["is_value_target_BT"], is_action_BT & ~is_skipped_BT)
        for k in range(len(is_action_BT) // 2):
            places = [
                (b, t) for b in (2 * k + 1, 2 * k) for t in is_action_BT[b].nonzero().flatten().tolist()
            ]
            steps = [
                {
                    "r": float(tensors["reward_BT"][at]), "v": float(tensors["value_BT"][at]),
                    "end": float(tensors["is_turn_end_BT"][at]), "skipped": float(is_skipped_BT[at]),
                }
                for at in places
            ]  # fmt: skip
            kept = [at for at in places if not is_skipped_BT[at]]
            expected = torch.tensor(compute_by_loop(steps, by_turn=by_turn), dtype=torch.float64)
            got = torch.stack([prepared["advantage_BT"][at] for at in kept]) if kept else expected
            torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)  # 0.95 is a float32


def test_nothing_skipped_changes_nothing() -> None:
    tensors = ragged(3)
    none = prepare("bilevel_ppo", tensors | {SKIPPED: torch.zeros_like(tensors["is_action_BT"])})
    for name, column in prepare("bilevel_ppo", tensors).items():
        torch.testing.assert_close(none[name], column, atol=1e-12, rtol=1e-12, equal_nan=True)


def test_advantages_and_loss_have_masks_of_their_own() -> None:
    rows, columns, row = collect(masked=[], skipped=["think"])
    assert LEFT_OUT not in columns and row["structure/skipped_share"] > 0
    rows, columns, row = collect(masked=["answer"], skipped=["think"])
    is_thought_BT = rows.is_action_BT & (rows.segment_BT == 3)
    assert torch.equal(columns[SKIPPED], is_thought_BT)
    assert not (columns[SKIPPED] & columns[LEFT_OUT]).any()
    assert row["structure/skipped_share"] + row["structure/masked_share"] == pytest.approx(1.0)
    tensors = rows.to_dict() | {"return_B": torch.tensor([2.0, 0.0]), **columns}
    prepared, _ = prepare_rows(fresh("grpo"), dict(tensors), at_least=1)
    assert prepared is not None
    is_rated_BT = rows.is_action_BT & ~is_thought_BT
    assert torch.equal(prepared["advantage_BT"] != 0, is_rated_BT)
    assert torch.equal(prepared["is_action_BT"], is_thought_BT)


def test_wrong_names_are_one_line() -> None:
    for options, message in (
        (
            {"masked": ["state"]},
            r"masked=\['state'\]: state is not a part; choose from think, answer, other, or add it",
        ),
        (
            {"masked": []},
            r"masked=\[\] and skipped=\[\] leave nothing out; set algo/structure=refill",
        ),
        ({"skipped": ["plan"]}, r"skipped=\['plan'\]: plan is not a part; choose from think, answer, other"),
        ({"skipped": ["think", "answer", "other"]}, "leaves no part to learn"),
        ({"masked": ["think", "answer", "other"]}, "leaves no part to learn"),
        ({"tags": ["<state>"]}, "<state> is not a name of a tag; write it without brackets"),
        ({"tags": ["answer"]}, "answer is not a name of a tag"),
        ({"masked": "think"}, "masked=think must be a list of names"),
    ):
        with pytest.raises(ValueError, match=message):
            Parts(**options)  # type: ignore[arg-type]
