"""Episodes under templates that rewrite history: their rows are what the engine read, and train as such."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import Policy, load_nano
from lit_agentrl.report.iteration import count_row_tokens
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.structures.tree import Trees
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.text.template_context import Template
from lit_agentrl.update.microbatches import split_micro_batches
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.conftest import load_task_yaml
from tests.rl.ragged import fresh
from tests.rollout.test_ledger_proof import Spy
from tests.text.conftest import make_bpe
from tests.update.bare import BareModule, float64, gradient, step

OLD_REPLIES = (
    "m.content", "m.content.split('</think>')[-1]", "m.content.split(' ')[0]", "m.content | trim",
    "m.content | upper", "'done'", "m.content[:5] + m.content[5:]", "m.content.split('e')[-1]",
)  # fmt: skip
OLD_MESSAGES = ("m.content", "m.content.split('\\n')[0]", "m.content | length")
SHOWN = ("messages", "messages[-3:]", "messages[:1] + messages[1:][-4:]")
BEFORE = ("", "{{ messages | length }}", "{{ messages[-1].content | length // 9 }}")
HEADERS = ("<|im_start|>assistant\n", "<|im_start|>assistant {{ messages | length }}\n")


@st.composite
def templates(draw: st.DrawFn) -> str:
    """A template that may change each reply but the last, each message but the last, and what is around them."""
    usual = [(each[0],) * 4 + each[1:] for each in (OLD_MESSAGES, SHOWN, BEFORE, HEADERS)]
    return write(draw(st.sampled_from(OLD_REPLIES)), *(draw(st.sampled_from(each)) for each in usual))


def write(
    reply: str, message: str = OLD_MESSAGES[0], shown: str = SHOWN[0], before: str = "",
    header: str = HEADERS[0],
) -> str:  # fmt: skip
    return (
        f"{before}{{% for m in {shown} %}}<|im_start|>{{{{ m.role }}}}\n"
        f"{{% if loop.last or loop.length < 3 %}}{{{{ m.content }}}}"
        f"{{% elif m.role == 'assistant' %}}{{{{ {reply} }}}}{{% else %}}{{{{ {message} }}}}{{% endif %}}"
        f"<|im_end|>\n{{% endfor %}}{{% if add_generation_prompt %}}{header}{{% endif %}}"
    )


@cache
def make_policy() -> Policy:
    """A random policy in double precision over byte pieces, whose replies no text would give."""
    torch.manual_seed(0)
    tokenizer = make_bpe()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=2, n_positions=1024, bos_token_id=1, eos_token_id=1,
        initializer_range=0.3,
    )  # fmt: skip
    return Policy(network=GPT2LMHeadModel(config).eval(), tokenizer=tokenizer, name="gpt2")


def play(policy: Policy, template: str, *, members: int = 3) -> tuple[list[Episode], Any, ChatRenderer]:
    tokenizer = copy.copy(policy.tokenizer)
    tokenizer.chat_template = template
    chat = ChatRenderer(tokenizer, shows_replies=False)
    rules = Rules(
        tasks=[replace(load_task_yaml("bandit"), max_turns=4)], chat=chat, context=Template(), seed=3,
        prompt=Prompt(style="compact"), max_context_tokens=900, engine=partial(Spy, num_slots=4),
    )  # fmt: skip
    engine: Any = rules.open_engine(policy.network)
    specs = tuple(EpisodeSpec(0, g, m, 0, 50 + g) for g in range(2) for m in range(members))
    params = SamplingParams(max_reply_tokens=7, max_context_tokens=900)
    return Scheduler(rules, engine).play(Wave("train", 0, params, specs)), engine, chat


def show(tokenizer: PreTrainedTokenizerBase, episode: Episode, count: int) -> str:
    """The rendering that a client sees who sends back what it was told in ``count`` replies."""
    dialogue = list(episode.opening)
    for turn, later in zip(episode.turns[:count], episode.turns[1:], strict=False):
        ids = turn.reply_tokens.tolist()
        said = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        dialogue += [{"role": "assistant", "content": said}, {"role": "user", "content": later.message}]
    return str(tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True))


def check_rows(episodes: Sequence[Episode], chat: ChatRenderer) -> tuple[int, int]:
    """Compare each prompt with the template's rendering; return the turns that begin rows and that go on."""
    counts = [0, 0]
    for episode in episodes:
        check_ledger(episode)
        row: list[int] = []
        for number, turn in enumerate(episode.turns):
            text, prefix = show(chat.tokenizer, episode, number), turn.prefix_tokens.tolist()
            continues = number > 0 and text.startswith(chat.decode(row)) and bool(row)
            assert turn.starts_row != continues
            row = [*row, *prefix] if continues else prefix
            assert chat.decode(row) == text
            row = [*row, *turn.reply_tokens.tolist()]
            counts[continues] += number > 0
    return counts[0], counts[1]


def list_read(batch: TrajectoryBatch) -> list[tuple[list[int], list[int]]]:
    """What stands before each reply of a batch, and the reply."""
    rows = []
    for b in range(batch.num_rows):
        for turn in batch.turn_BT[b][batch.is_action_BT[b]].unique().tolist():
            place = (batch.is_action_BT[b] & (batch.turn_BT[b] == turn)).nonzero().squeeze(1).tolist()
            tokens = batch.tokens_BT[b].tolist()
            rows.append((tokens[: place[0]], tokens[place[0] : place[-1] + 1]))
    return rows


def train(policy: Policy, batch: TrajectoryBatch, packing: Any) -> tuple[float, torch.Tensor]:
    module = BareModule(
        replace(policy, network=copy.deepcopy(policy.network)), objective=fresh("grpo"),
        update=UpdateSettings(grad_clip=1e9, max_logp_gap=1e9, packing=packing),
        optim=OptimSettings(optimizer=torch.optim.SGD, lr=1e-30),
    )  # fmt: skip
    module.prepare()
    step(module, batch)
    return float(module.row["train/loss"]), gradient(module)


def count_computed(batch: TrajectoryBatch) -> int:
    return sum(part.num_needed for part in split_micro_batches(batch.to_dict(), 10**9, "shared"))


def check_template(template: str) -> tuple[int, int]:
    with float64():
        episodes, engine, chat = play(make_policy(), template)
        counts = check_rows(episodes, chat)
        batch = pack(episodes)
        assert sorted(list_read(batch)) == sorted(
            engine.replies
        )  # to the bit what was read, and each reply once
        assert int(batch.is_action_BT.sum()) == sum(e.num_action_tokens for e in episodes)
        assert len(batch.trajectory_B.unique()) == len(episodes) <= batch.num_rows
        for number, episode in enumerate(episodes):  # each turn earns its own reward, whatever the rows
            episode.turns[0].reward = float(number)
        batch = pack(episodes)
        (loss, change), (other_loss, other) = (
            train(make_policy(), batch, form) for form in (False, "shared")
        )
        assert change.norm() > 0 and (other - change).norm() <= 1e-9 * change.norm()
        assert other_loss == pytest.approx(loss, abs=1e-9)
        assert count_computed(batch) < int(batch.is_real_BT.sum())
    return counts


def test_rows_are_what_the_engine_read_and_share_their_beginnings() -> None:
    begun, continued = check_template(write("m.content.split('e')[-1]"))
    assert begun > 1 and continued > 1


@pytest.mark.slow
@given(template=templates())
@settings(max_examples=50, deadline=None)
def test_rows_of_random_templates(template: str) -> None:
    check_template(template)


DROPS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] if m.role == 'assistant' and not "
    "loop.last else m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def append(episode: Episode, chat: ChatRenderer) -> Episode:
    """The same play as one row under a template that only appends."""
    turns = []
    for number, turn in enumerate(episode.turns):
        if number:
            piece = chat.render_next(turn.message, last_reply=turns[-1].reply_tokens.tolist())
            turn = replace(turn, starts_row=False, prefix_tokens=piece.tokens, prefix_segments=piece.segments)  # type: ignore[arg-type]
        turns.append(turn)
    return replace(episode, turns=turns)


@pytest.mark.slow
def test_dropped_thoughts_cost_less_than_a_third_in_trees_of_eight_turns() -> None:
    """Counted in tokens that the update computes, against the same play in rows that only grow."""
    policy, trees, members = load_nano(), Trees(rounds=1, expansions=2), 6
    plain = ChatRenderer(policy.tokenizer)
    tokenizer = copy.copy(policy.tokenizer)
    tokenizer.chat_template = DROPS
    rules = Rules(
        tasks=[replace(load_task_yaml("sokoban"), max_turns=8)], prompt=Prompt(style="compact"), seed=3,
        chat=ChatRenderer(tokenizer, shows_replies=False), context=Template(), max_context_tokens=900,
        engine=partial(NativeEngine, num_slots=32),
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, 0, m, 0, 50) for m in range(members))
    params = SamplingParams(temperature=1.5, max_reply_tokens=40, max_context_tokens=900)
    wave = Wave("train", 0, params, specs, branching=trees.branching(members))
    episodes = Scheduler(rules, rules.open_engine(policy.network)).play(wave)
    assert any(e.branches for e in episodes) and max(len(e.turns) for e in episodes) == 8
    assert sum(t.starts_row for e in episodes for t in e.turns) > 2 * members
    rewritten = count_computed(pack(episodes))
    appended = count_computed(pack([append(e, plain) for e in episodes]))
    print(f"{rewritten} tokens, {appended} if appended: {rewritten / appended:.3f}")
    assert appended < rewritten <= 1.3 * appended
    own = [e for e in episodes if not e.branches]  # the metric rollout/context_cost says so too
    once = sum(e.num_new + e.num_sampled for e in own)
    assert once == sum(count_row_tokens(append(e, plain)) for e in own)
    assert 1 < sum(map(count_row_tokens, own)) / once <= 1.3


@pytest.mark.slow
def test_a_template_that_only_appends_plays_as_the_full_context_does() -> None:
    policy, played = load_nano(), []
    for context in (FULL, Template()):
        rules = Rules(
            tasks=[load_task_yaml("frozen_lake")], prompt=Prompt(style="compact"), context=context, seed=3,
            chat=ChatRenderer(policy.tokenizer), max_context_tokens=400, engine=partial(NativeEngine, num_slots=4),
        )  # fmt: skip
        specs = tuple(EpisodeSpec(0, 0, m, 0, 1) for m in range(2))
        params = SamplingParams(max_reply_tokens=40, max_context_tokens=400)
        played.append(
            Scheduler(rules, rules.open_engine(policy.network)).play(Wave("train", 0, params, specs))
        )
    assert max(len(e.turns) for e in played[0]) > 3
    for whole, same in zip(*played, strict=True):
        assert whole.turns == same.turns and whole.num_prefilled == same.num_prefilled
