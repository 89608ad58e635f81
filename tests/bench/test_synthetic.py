"""The lengths that the synthetic episodes promise, and the counts of work that the roofline divides by."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scripts.bench import roofline, synthetic


@pytest.mark.parametrize(("turns", "reply"), [(1, 20), (5, 4)])
def test_rows_have_the_length_and_the_replies_that_were_asked_for(turns: int, reply: int) -> None:
    player = synthetic.Player(
        synthetic.make_random_policy(64, 1, 256), synthetic.Shape(turns, reply, 203), slots=4
    )
    episodes, _ = player.play(groups=2, members=2)
    assert [e.num_tokens for e in episodes] == [203] * 4
    assert [[len(turn.reply_tokens) for turn in e.turns] for e in episodes] == [[reply] * turns] * 4
    read_again = sum(sum(len(t.prefix_tokens) for t in e.turns[: k + 1]) + k * reply
                     for e in episodes for k in range(turns))  # fmt: skip
    assert synthetic.count_re_encoded(episodes) == read_again


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="row=50: 5 turns of 4 take"):
        synthetic.Player(synthetic.make_random_policy(64, 1, 256), synthetic.Shape(5, 4, 50), slots=4)


def test_a_step_does_as_many_matrix_products_as_are_counted() -> None:
    network = synthetic.make_random_policy(64, 2, 64).network
    model = roofline.Model(network, 4)
    tokens = torch.randint(0, 200, (3, 16))
    with FlopCounterMode(display=False) as counter:
        network(input_ids=tokens, use_cache=False).logits.sum().backward()
    products = sum(n for op, n in counter.get_flop_counts()["Global"].items() if op in (torch.ops.aten.mm,))
    linear = model.update([16] * 3, actions=48).flops - 3 * 2 * 2 * 64 * 3 * 16**2  # without attention
    assert products == linear
    one = model.decode(rows=1, context=0)
    assert one.flops == 2 * model.weights and one.bytes == 4 * model.weights
    longer = model.decode(rows=2, context=10)
    assert (
        longer.bytes - one.bytes == 2 * 10 * 2 * 2 * 32 * 4
    )  # rows, context, layers, key and value, one head, bytes
