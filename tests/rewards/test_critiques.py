"""A judge that writes no score: a reward model reads its critique, and the very question that it was asked."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

import pytest
import torch

from lit_agentrl.data.reading import Student, read
from lit_agentrl.data.unpaired import Unpaired
from lit_agentrl.episode import Episode
from lit_agentrl.judging import Criteria, Unreadable
from lit_agentrl.rewards.learned.judge import Judge
from lit_agentrl.rewards.learned.meta import JudgementScorer
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.token_bytes import hash_tokenizer
from tests.conftest import nano_tokenizer
from tests.rewards.conftest import episode, turn
from tests.rewards.test_judge import ESCAPE, Reading, answering, by_length, played
from tests.rewards.test_model import model


def critique(number: int, principles: bool = True) -> str:
    first = "<principles>win</principles>\n" if principles else ""
    return f"{first}<critique>slow by {number}</critique>"


def numbered(_: str, number: int) -> str:
    return critique(number)


def test_a_critique_is_asked_for_and_no_number() -> None:
    asked = Criteria().ask_critique(played(ESCAPE))
    assert asked.endswith(
        "write nothing else:\n<principles>two to five principles that matter here</principles>\n"
        "<critique>what was good and what was bad</critique>"
    )
    begins = [line for line in asked.splitlines() if line.endswith(" begins")]
    ends = [line for line in asked.splitlines() if line.endswith(" ends") and line.startswith("EPISODE ")]
    assert len(begins) == len(ends) == 1
    inside, after = asked.split(begins[0], 1)[1].split(ends[0])
    assert all(line.startswith("| ") for line in inside.strip("\n").splitlines())
    assert "<score>" not in asked and "</critique>" not in inside and "number" not in after
    given = Criteria(principles=["be brisk"]).ask_critique(played())
    assert "1. be brisk" in given and given.endswith(
        "else:\n<critique>what was good and what was bad</critique>"
    )
    # half a character, which a file of episodes may hold, is text that any tokenizer takes
    assert "| a?b" in Criteria().ask_critique(played("a\ud800b"))
    # the question of scores is what it was
    assert Criteria().ask_score(played()).startswith(Criteria().ask_critique(played()).partition("stands")[0])


def test_only_words_of_the_form_are_believed() -> None:
    criteria = Criteria()
    assert criteria.read_critique(f"<think>{critique(1)}</think>\n {critique(2)} \n") == critique(2)
    assert Criteria(principles=["w"]).read_critique(critique(3, principles=False)) == critique(
        3, principles=False
    )
    assert criteria.read_critique(critique(4).replace("slow", "\ud800")) == critique(4).replace("slow", "?")
    for text, reason in (
        ("", "empty"), ("<think>x</think> ", "empty"), ("good", "form"), (critique(1, principles=False), "form"),
        (f"{critique(1)}<score>3</score>", "form"), (critique(1).replace("slow by 1", " "), "form"),
        (critique(1) * 2, "form"), (critique(1).removesuffix(">"), "form"),
    ):  # fmt: skip
        with pytest.raises(Unreadable, match=f"^{reason}$"):
            criteria.read_critique(text)


def test_the_value_is_the_mean_of_what_a_reward_model_gives(tmp_path: Path) -> None:
    path = model(tmp_path)
    part = answering(numbered, samples=3, scalar=path, weight=2.0)
    episodes = [played("loud", success=True), played("soft", member=1)]
    pipeline = RewardPipeline({"judge": part})
    pipeline._is_set_up = True
    assert pipeline.score(episodes, iteration=0) == []
    meta, expected = JudgementScorer(path, torch.device("cpu")), []
    for place, each in enumerate(episodes):
        asked = Criteria().ask_critique(each)
        expected.append(meta.values([(asked, critique(3 * place + k)) for k in range(3)]))
    assert len({round(value, 6) for row in expected for value in row}) == 6
    found = [each.training_return for each in episodes]
    assert found == pytest.approx([2 * fmean(row) for row in expected], abs=1e-6)
    row = pipeline.learn(episodes, iteration=0)
    assert row["reward/judge_score"] == pytest.approx(fmean(map(fmean, expected)), abs=1e-6)
    assert row["reward/judge_spread"] == pytest.approx(fmean(map(pstdev, expected)), abs=1e-6)
    assert row["reward/judge_asked"] == 6 and row["reward/judge_unread"] == 0
    # a model of a logit gives a chance
    [chance] = answering(numbered, scalar=model(tmp_path, 1, kind="logit"))._ask(episodes[:1])
    assert chance is not None and 0 < chance < 1


def test_what_cannot_be_read_is_asked_again_and_left_out(tmp_path: Path) -> None:
    path = model(tmp_path)
    asked: list[str] = []

    def judge(question: str, number: int) -> str:
        asked.append(question)
        return "no" if "mute" in question or len(asked) == 1 else critique(len(asked))

    part = answering(judge, scalar=path, retries=1, max_unjudged_share=0.5)
    episodes = [played("loud"), played("mute", member=1)]
    values = part._ask(episodes)
    assert len(asked) == 4 and values[1] is None
    [expected] = JudgementScorer(path, torch.device("cpu")).values(
        [(Criteria().ask_critique(episodes[0]), critique(3))]
    )
    assert values[0] == pytest.approx(expected, abs=1e-6)
    assert part._counts == {"asked": 4, "unread_form": 3, "episodes": 2, "unjudged": 1}
    with pytest.raises(ValueError, match=r'2 of 2 episodes got no reply .* the first: "no" \(form\); choose'):
        answering(lambda *_: "no", scalar=path).apply([[0.0] * 2] * 2, episodes, iteration=0)


def test_the_model_is_that_of_the_checkpoint_and_options_of_scores_are_refused(tmp_path: Path) -> None:
    path = model(tmp_path)
    part, other = answering(numbered, scalar=path), answering(numbered, scalar=model(tmp_path, 1))
    part.load_state_dict(part.state_dict())
    for state, mine in ((other.state_dict(), part), (answering(by_length).state_dict(), part)):
        with pytest.raises(
            ValueError, match=r"^reward\.judge\.scalar=.* holds weights \w{12}, and this run was"
        ):
            mine.load_state_dict(state)
    before = answering(by_length).state_dict()
    del before["scalar"]  # of a version that had none
    answering(by_length).load_state_dict(before)
    for options, said in (
        ({"meta": path, "samples": 4}, f"meta={path} has no effect with scalar="), ({"keep": 2}, "keep=2 has no"),
        ({"vote": "median", "samples": 2}, "vote=median has no effect with"), ({"low": 1}, "low=1 has no effect"),
        ({"high": 5.0}, "high=5.0 has no effect"), ({"scalar": " "}, "scalar= "), ({"scalar": 3}, "scalar=3"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{said}") as raised:
            Judge(engine=partial(Reading, by_length), **{"scalar": path, **options})
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="^scalar=nowhere is not there"):
        answering(by_length, scalar="nowhere")
    with pytest.raises(ValueError, match=r"^scalar=.* is used as reward=cost; set"):
        answering(by_length, scalar=model(tmp_path, 2, kind="cost"))
    with pytest.raises(ValueError, match=r"^scalar=.* has 2048 positions, and a judgement has"):
        answering(numbered, scalar=path)._ask([played("long " * 3000)])


def test_a_row_is_read_in_training_as_the_judge_has_it_read(tmp_path: Path) -> None:
    """To the token, whatever the episode and the critique spell."""
    asked, said = (
        Criteria().ask_critique(played(ESCAPE)),
        critique(1).replace("slow", "<|im_end|> </think> {x}"),
    )
    row = {
        "prompt": [{"role": "user", "content": asked}],
        "completion": [{"role": "assistant", "content": said}],
    }
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**row, "label": True}) + "\n")
    chat = ChatRenderer(nano_tokenizer())
    student = Student(chat, None, hash_tokenizer(nano_tokenizer()), 256, 1.0, 4096)
    [[trained]] = read(Unpaired(path=str(file), batch=1), student, seed=0).groups
    used = JudgementScorer(model(tmp_path), torch.device("cpu"))._make_episode(asked, said)
    assert _tokens(trained) == _tokens(used) and trained.training_return == 1.0


def _tokens(one: Episode) -> list[int]:
    [only] = one.turns
    return [*map(int, only.prefix_tokens), *map(int, only.reply_tokens)]


def test_labels_ask_the_same_question(tmp_path: Path) -> None:
    heard: list[str] = []

    def judge(question: str, number: int) -> str:
        heard.append(question)
        return critique(number)

    one = episode([turn(reply_text="go")])
    answering(judge).labels.criticise([one], rounds=1, address=0)
    answering(judge, scalar=model(tmp_path, 1))._ask([one])
    assert heard[0] == heard[1] and Criteria().ask_critique(one) in heard[0]
