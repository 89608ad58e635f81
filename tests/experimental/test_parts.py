"""Parts of replies in the loss: worked tokens, any text against a reader of single characters, and the loss itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_agentrl.batch import LEFT_OUT, StepBatch
from lit_agentrl.experimental.parts.masked import Parts, find_tagged
from lit_agentrl.rl.policy.filters import keep_all
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.hook import Training
from lit_agentrl.text.token_bytes import get_token_pieces
from lit_agentrl.update.minibatches import prepare_rows
from tests.conftest import nano_tokenizer
from tests.rl.ragged import fresh
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


def collect(**options: Any) -> tuple[Any, torch.Tensor, dict[str, float]]:
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
    return batch.trajectories, batch.columns[LEFT_OUT], row


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
    rows, left_out_BT, row = collect(**options)
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
    rows, left_out_BT, _ = collect(masked=["think"], tags=["state"])
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


def test_wrong_names_are_one_line() -> None:
    for options, message in (
        (
            {"masked": ["state"]},
            r"masked=\['state'\]: state is no part; choose of think, answer, other, or name it",
        ),
        ({"masked": []}, r"masked=\[\] leaves nothing out; set algo/structure=refill"),
        ({"masked": ["think", "answer", "other"]}, "leaves no part to learn"),
        ({"tags": ["<state>"]}, "<state> is no name of a tag; write it without brackets"),
        ({"tags": ["answer"]}, "answer is no name of a tag"),
        ({"masked": "think"}, "masked=think must be a list of names"),
    ):
        with pytest.raises(ValueError, match=message):
            Parts(**options)  # type: ignore[arg-type]
