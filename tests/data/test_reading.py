"""Data sets: what is learnt of a row, which groups episodes make, and what is wrong, in one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.episodes import EpisodeFolder
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.pairs import Pairs, keep_only_turn
from lit_agentrl.data.ranked import Ranked
from lit_agentrl.data.reading import Student, read
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.data.unpaired import Unpaired
from lit_agentrl.envs.tasks.messages import read_pair
from lit_agentrl.episode import EndReason, Episode, Segment, Source, Turn
from lit_agentrl.rollout.pack import pack
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.token_bytes import hash_tokenizer
from tests.conftest import nano_tokenizer, thinned


@lru_cache
def student(most: int = 200) -> Student:
    chat = ChatRenderer(nano_tokenizer())
    return Student(chat, "f" * 64, hash_tokenizer(nano_tokenizer()), 256, 1.0, most)


def reply(*actions: str) -> str:
    return student().chat.dialect.write(actions or ("Up",), thought=None)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


TALK = [user("# P"), says(reply("Up")), user("_ P"), says(reply("Down"))]


def learnt(episode: Episode) -> list[str]:
    """The text of what counts, row by row, turn by turn."""
    return [student().chat.decode(turn.reply_tokens.tolist()) for turn in episode.turns]


def file(folder: Path, rows: Sequence[Any], name: str = "d.jsonl") -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


# ---------------------------------------------------------------------- rows of files
END = "<|im_end|>"


def test_replies_alone_are_learnt(tmp_path: Path) -> None:
    kind = Demonstrations(path=file(tmp_path, [{"messages": TALK}]), batch=1)
    [[episode]] = read(kind, student(), seed=0).groups
    chat = student().chat
    marker = chat.decode(list(chat.end_of_turn_ids[:1]))
    assert ["".join(text.split()) for text in learnt(episode)] == [
        reply("Up") + marker,
        reply("Down") + marker,
    ]
    rows = pack([episode])
    shown = [chat.decode(rows.tokens_BT[0][~rows.is_action_BT[0] & rows.is_real_BT[0]].tolist())]
    assert "# P" in shown[0] and "_ P" in shown[0] and "Up" not in shown[0]
    # the same tokens as the template's own rendering of the whole dialogue
    whole = chat.tokenizer.apply_chat_template(TALK, tokenize=False)
    assert "".join(chat.decode(rows.tokens_BT[0].tolist()).split()) == "".join(whole.split())
    assert torch.isnan(rows.sampler_logp_BT[rows.is_action_BT]).all() and rows.return_B.tolist() == [1.0]


def test_a_prompt_that_holds_replies_is_read_only(tmp_path: Path) -> None:
    implicit = {"chosen": TALK, "rejected": [*TALK[:3], says(reply("Left"))]}
    explicit = {"prompt": TALK[:3], "chosen": TALK[3:], "rejected": [says(reply("Left"))]}
    kind = Pairs(path=file(tmp_path, [implicit, explicit]), batch=1)
    for chosen, rejected in read(kind, student(), seed=0).groups:
        assert [len(learnt(each)) for each in (chosen, rejected)] == [1, 1]
        assert "Down" in learnt(chosen)[0] and "Left" in learnt(rejected)[0]
        assert int((chosen.turns[0].prefix_segments == Segment.PAST).sum()) > 0
        assert (chosen.training_return, rejected.training_return) == (1.0, 0.0)


def test_plain_texts_go_through_the_template(tmp_path: Path) -> None:
    rows = [{"prompt": "# P", "completion": reply("Up"), "label": True},
            {"prompt": [user("# P")], "completion": [says(reply("Up"))], "label": 0},
            {"messages": TALK[:2], "score": 0.25}]  # fmt: skip
    groups = read(Unpaired(path=file(tmp_path, rows), batch=1), student(), seed=0).groups
    assert [group[0].training_return for group in groups] == [1.0, 0.0, 0.25]
    tokens = [
        np.concatenate([g[0].turns[0].prefix_tokens, g[0].turns[0].reply_tokens]).tolist() for g in groups
    ]
    assert tokens[0] == tokens[1] == tokens[2]


def test_margins_and_scores_are_returns(tmp_path: Path) -> None:
    sides = {"prompt": "# P", "chosen": reply("Up"), "rejected": reply("Down")}
    rows = [sides, sides | {"margin": 2.5}, sides | {"score_chosen": 3, "score_rejected": 1.5}]
    groups = read(Pairs(path=file(tmp_path, rows), batch=1), student(), seed=0).groups
    found = [tuple(episode.training_return for episode in group) for group in groups]
    assert found == [(1.0, 0.0), (2.5, 0.0), (3.0, 1.5)]
    ranked = [
        {"prompt": "# P", "completions": [reply("Up"), reply("Down"), reply("Left")], "scores": [1, 3, 2]}
    ]
    [group] = read(Ranked(path=file(tmp_path, ranked, "r.jsonl"), batch=1), student(), seed=0).groups
    assert [episode.training_return for episode in group] == [1.0, 3.0, 2.0]


def test_texts_with_the_marks_of_hh_are_split_into_messages() -> None:
    start = "\n\nHuman: # P\n\nAssistant: Up\n\nHuman: _ P\n\nAssistant:"
    prompt, rests = read_pair({"chosen": f"{start} Down\n\nor Up", "rejected": f"{start} Left"})
    assert prompt == [user("# P"), says("Up"), user("_ P")]
    assert rests == [[says("Down\n\nor Up")], [says("Left")]]


def test_parquet_is_read_as_jsonl_is(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": TALK[:1], "chosen": TALK[1:2], "rejected": [says(reply("Left"))]}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "d.parquet")
    both = [Pairs(path=path, batch=1) for path in (file(tmp_path, rows), str(tmp_path / "d.parquet"))]
    one, other = (read(kind, student(), seed=0).groups for kind in both)
    assert repr(one) == repr(other)


def test_what_a_row_spells_is_text(tmp_path: Path) -> None:
    marker = student().chat.decode(list(student().chat.end_of_turn_ids[:1]))
    kind = Demonstrations(path=file(tmp_path, [{"prompt": f"# {marker} P", "completion": reply()}]), batch=1)
    plain = Demonstrations(
        path=file(tmp_path, [{"prompt": "# P", "completion": reply()}], "p.jsonl"), batch=1
    )
    special = student().chat.end_of_turn_ids[0]
    try:
        [[spelt]] = read(kind, student(), seed=0).groups
    except ValueError as error:  # the embedded vocabulary cannot spell it
        assert "unknown_text" in str(error)
        return
    [[other]] = read(plain, student(), seed=0).groups
    count = [int((each.turns[0].prefix_tokens == special).sum()) for each in (spelt, other)]
    assert count[0] == count[1]


def test_a_long_dialogue_is_cut_off_and_told(tmp_path: Path) -> None:
    rows = [{"messages": TALK}]
    whole = read(Demonstrations(path=file(tmp_path, rows), batch=1), student(), seed=0).groups[0][0]
    first = len(whole.turns[0].prefix_tokens) + len(whole.turns[0].reply_tokens)
    found = read(Demonstrations(path=file(tmp_path, rows), batch=1), student(first), seed=0)
    assert len(found.groups[0][0].turns) == 1 and found.metrics["data/truncated_share"] == 1.0
    assert any("cut off at rollout.max_context_tokens" in note for note in found.notes)


def test_bad_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    good = {"prompt": "# P", "chosen": reply("Up"), "rejected": reply("Down")}
    rows = [good, good | {"rejected": good["chosen"]}, good | {"chosen": " "}, good]
    found = read(Pairs(path=file(tmp_path, rows), batch=1, max_bad_share=0.5), student(), seed=0)
    assert len(found.groups) == 2 and found.metrics["data/dropped_share"] == 0.5
    [_, note] = found.notes
    assert "left out 2 of 4 rows (1 empty, 1 identical); the first: " in note and "d.jsonl line 2" in note


GOOD = {"prompt": "# P", "chosen": reply("Up"), "rejected": reply("Down")}
ANSWER = {"prompt": "# P", "completion": reply("Up")}
LIST = {"prompt": "# P", "completions": [reply("Up"), reply("Down")], "scores": [1, 0]}
MALFORMED: list[tuple[type[Kind], Any, str]] = [
    (Pairs, "{", "it is no JSON"),
    (Pairs, "[1]", "it is not an object"),
    (Pairs, '{"prompt": "a", "prompt": "b"}', "column prompt occurs twice"),
    (Pairs, '{"margin": NaN}', "NaN is no number of JSON"),
    (Pairs, {}, "column chosen is missing (there are none)"),
    (Pairs, {"chosen": reply("Up")}, "column rejected is missing (there are chosen)"),
    (Pairs, GOOD | {"prompt": ""}, "column prompt is blank"),
    (Pairs, GOOD | {"chosen": ""}, "column chosen is blank"),
    (Pairs, GOOD | {"chosen": 3}, "column chosen must be a text, or a list of messages"),
    (Pairs, GOOD | {"chosen": []}, "column chosen must be a text, or a list of messages"),
    (Pairs, GOOD | {"chosen": ["Up"]}, "column chosen holds what is no message"),
    (Pairs, GOOD | {"chosen": [{"content": "x"}]}, "column chosen holds what is no message"),
    (Pairs, GOOD | {"chosen": [{"role": "robot", "content": "x"}]}, "role 'robot' is unknown; valid: system"),
    (Pairs, GOOD | {"chosen": [{"role": "assistant"}]}, "a message of assistant has no content"),
    (
        Pairs,
        GOOD
        | {
            "prompt": [
                user([{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": "x"}}])
            ]
        },  # type: ignore[arg-type]
        "a message of user has a part of type 'image_url'; images, sound and files cannot be read",
    ),
    (Pairs, GOOD | {"chosen": [says(" ")]}, "a message of assistant is blank"),
    (Pairs, GOOD | {"chosen": [says("\ud800")]}, "half a character"),
    (Pairs, GOOD | {"chosen": [user("# P")]}, "column chosen repeats the prompt alone; write an answer"),
    (Pairs, GOOD | {"chosen": [says(reply()), says(reply())]}, "two assistant messages follow one another"),
    (Pairs, GOOD | {"rejected": GOOD["chosen"]}, "chosen and rejected are the same"),
    (Pairs, {"chosen": TALK, "rejected": TALK}, "chosen and rejected are the same"),
    (Pairs, {"chosen": [user("a")], "rejected": [user("b")]}, "no beginning in common"),
    (
        Pairs,
        {"chosen": "Q: a A: b", "rejected": "Q: a A: c"},
        "their common beginning is not taken, since it may end",
    ),
    (Pairs, {"a": "b"}, "name what is missing by data.columns={chosen: COLUMN, rejected: COLUMN}"),
    (Demonstrations, {"a": "b"}, "name them by data.columns={prompt: COLUMN, completion: COLUMN}"),
    (Ranked, {"a": "b"}, "data.columns={prompt: COLUMN, completions: COLUMN, scores: COLUMN}"),
    (Pairs, GOOD | {"margin": 0}, "both sides are worth the same"),
    (Pairs, GOOD | {"margin": -1}, "the chosen side is worth less"),
    (Pairs, GOOD | {"margin": "much"}, "column margin is 'much'; write a finite number"),
    (Pairs, GOOD | {"score_chosen": 1, "score_rejected": 1}, "both sides are worth the same"),
    (Pairs, GOOD | {"score_chosen": 1, "score_rejected": 2}, "the chosen side is worth less"),
    (Pairs, GOOD | {"score_chosen": True, "score_rejected": 2}, "column score_chosen is 'True'"),
    (Pairs, GOOD | {"tools": "{"}, "column tools is no JSON"),
    (Pairs, GOOD | {"tools": 3}, "column tools must be a list"),
    (Pairs, GOOD | {"prompt": "# " * 300}, "leaves no room for a reply after"),
    (Pairs, GOOD | {"chosen": [{"role": "assistant", "tool_calls": [{}]}]}, "has no function name"),
    (
        Pairs,
        GOOD | {"chosen": [{"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{"}]}]},
        "no JSON",
    ),
    (Demonstrations, {"text": "# P"}, "neither messages nor completion (there are text)"),
    (Demonstrations, {"completion": reply()}, "column prompt is missing (there are completion)"),
    (Demonstrations, {"messages": [user("# P")]}, "no assistant message to train on"),
    (
        Demonstrations,
        {"messages": [says("Up")]},
        "it begins with an assistant message; put a user message before it",
    ),
    (Demonstrations, {"messages": "# P"}, "no assistant message to train on"),
    (Demonstrations, {"messages": {"role": "user"}}, "column messages must be a text, or a list"),
    (Unpaired, ANSWER, "neither label nor score"),
    (Unpaired, ANSWER | {"label": "good"}, "column label is 'good'; write true or false"),
    (Unpaired, ANSWER | {"label": 2}, "column label is 2; write true or false"),
    (Unpaired, ANSWER | {"score": "good"}, "column score is 'good'; write a finite number"),
    (
        Ranked,
        ANSWER,
        "column completions is missing (there are prompt, completion); name them by data.columns={completions",
    ),
    (Ranked, LIST | {"completions": [reply()]}, "column completions must be a list of at least two answers"),
    (Ranked, LIST | {"scores": [1]}, "column scores must be a list with a number for each"),
    (Ranked, LIST | {"scores": [1, None]}, "column scores is 'None'; write a finite number"),
    (Ranked, LIST | {"scores": [2, 2]}, "all scores are equal"),
    (Ranked, LIST | {"completions": [reply(), reply()]}, "all completions are the same"),
]


@pytest.mark.parametrize(("kind", "row", "said"), thinned(MALFORMED))
def test_a_malformed_row_is_one_line_with_its_number(
    kind: type[Kind], row: Any, said: str, tmp_path: Path
) -> None:
    good = {Pairs: GOOD, Demonstrations: ANSWER, Unpaired: ANSWER | {"label": 1}, Ranked: LIST}[kind]
    with pytest.raises(ValueError) as raised:
        read(kind(path=file(tmp_path, [good, row]), batch=1), student(), seed=0)
    told = str(raised.value)
    assert said in told and "d.jsonl line 2: " in told and "\n" not in told
    assert "(1 of 2 rows are bad: 1 " in told and told.endswith("more than max_bad_share=0.05)")


def test_a_row_that_the_template_refuses_is_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(chat: ChatRenderer, messages: object, **how: object) -> None:
        raise ValueError("no system message here")

    monkeypatch.setattr(ChatRenderer, "render_text", refuse)
    with pytest.raises(
        ValueError, match=r"d.jsonl line 1: it cannot be rendered: no system message here \(1 of"
    ):
        read(Pairs(path=file(tmp_path, [GOOD]), batch=1), student(), seed=0)


def test_text_that_the_tokenizer_does_not_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [wall] = student().chat.encode("#")
    monkeypatch.setattr(type(nano_tokenizer()), "unk_token_id", property(lambda self: wall), raising=False)
    with pytest.raises(ValueError, match="1 of its tokens are unknown to the tokenizer"):
        read(Demonstrations(path=file(tmp_path, [ANSWER]), batch=1), student(), seed=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": ""}, "path= must be a folder or a file"),
        ({"path": []}, "path=[] must be a folder or a file"),
        ({"path": "nowhere"}, "path=nowhere is not there"),
        ({"path": "https://h/a.jsonl"}, "path=https://h/a.jsonl is an address; download the file"),
        (
            {"path": "a.txt"},
            "must be a folder of lit-agentrl collect, or a file that ends in .jsonl, .json, .csv or .parquet",
        ),
        ({"path": "empty"}, "is an empty folder"),
        ({"path": "other"}, "is a folder of something else"),
        ({"path": "b.parquet"}, "cannot be read as Parquet"),
        ({"path": "none.jsonl"}, "none of its 0 rows makes a group"),
        ({"batch": 0}, "batch=0 must be a whole number from 1"),
        ({"batch": 3}, "batch=3 exceeds the 1 groups"),
        ({"cache_reference": 1}, "cache_reference=1 must be true, false or a folder"),
        ({"cache_reference": " "}, "must be true, false or a folder"),
        ({"cache_reference": "s3://a"}, "cache_reference=s3://a is an address"),
        ({"cache_reference": "a.csv"}, "cache_reference=a.csv is a file; name a folder"),
        ({"max_bad_share": 2}, "max_bad_share=2 must be in [0, 1]"),
        ({"most": 0}, "most=0 must be a whole number from 1 to 1000000, or null"),
        ({"min_gap": -1}, "min_gap=-1 must be finite and >= 0"),
        ({"of": "token"}, "of=token must be one of trajectory, turn"),
        ({"score": "points"}, "score=points must be one of return, success"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("a.txt", "x"),
        ("a.csv", "x"),
        ("b.parquet", "x"),
        ("none.jsonl", "\n"),
        ("other/x", "x"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError) as raised:
        read(Pairs(**{"path": file(tmp_path, [GOOD]), "batch": 1, **options}), student(), seed=0)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_held_out_rows_have_a_hash_that_is_theirs_in_any_order(tmp_path: Path) -> None:
    rows = [GOOD | {"prompt": f"P {number}"} for number in range(20)]

    def hash_rows(name: str, rows: Sequence[dict[str, Any]], share: float = 0.5) -> str:
        (tmp_path / name).mkdir()
        kind = Pairs(path=file(tmp_path / name, rows), batch=1, held_out=share)
        return read(kind, student(), seed=len(name), compares_held_out=False).hash_held_out("val")

    one = hash_rows("a", rows)
    assert one == hash_rows("reversed", rows[::-1]) and len(one) == 16
    changed = [row | {"chosen": reply("Left")} for row in rows]
    assert len({one, hash_rows("c", changed), hash_rows("d", rows, 0.3), hash_rows("e", rows, 0.0)}) == 4


# ---------------------------------------------------------------------- folders of episodes
def played(
    prompt: int, member: int, worth: float, *, states: Sequence[int] = (7, 8), **change: Any
) -> Episode:
    turns = [
        Turn(
            observation="", prefix_tokens=[10 + k, 11], prefix_segments=[0, 2], starts_row=not k, state_key=state,  # type: ignore[arg-type]
            reply_tokens=[20 + member, 21], reply_segments=[4, 4], reply_logps=[-0.5, -0.25],  # type: ignore[arg-type]
            reply_entropies=[0.5, 0.5], is_valid=True, reward=worth * k,  # type: ignore[arg-type]
        )
        for k, state in enumerate(states)
    ]  # fmt: skip
    episode = Episode(
        0, prompt, member, 0, "g", 100 + prompt, turns=turns, end=EndReason.SUCCESS, success=worth > 0
    )
    return replace(episode, **change)


def folder(place: Path, episodes: Sequence[Episode], **described: Any) -> str:
    policy = {"fingerprint": "f" * 64, "tokenizer": student().tokenizer}
    EpisodeFolder(place / "f", {"policy": policy, "temperature": 1.0, **described}, planned=1).add(
        "s", episodes
    )
    return str(place / "f")


EPISODES = [played(0, 0, 1.0), played(0, 1, -1.0), played(0, 2, 3.0), played(1, 0, 2.0), played(1, 1, 2.0)]


def kinds(path: str) -> dict[str, Recordings]:
    made = [Demonstrations(path=path, batch=1), Demonstrations(path=path, batch=1, keep="success"),
            Pairs(path=path, batch=1), Unpaired(path=path, batch=1), Ranked(path=path, batch=1)]  # fmt: skip
    names = ("all", "success", "pairs", "unpaired", "ranked")
    return {name: read(kind, student(), seed=0) for name, kind in zip(names, made, strict=True)}


def test_recorded_episodes_are_grouped_and_not_tokenised_again(tmp_path: Path) -> None:
    found = kinds(folder(tmp_path, EPISODES))
    returns = {
        name: [[e.training_return for e in group] for group in each.groups] for name, each in found.items()
    }
    assert returns == {
        "all": [[1.0], [-1.0], [3.0], [2.0], [2.0]], "success": [[1.0], [3.0], [2.0], [2.0]],
        "pairs": [[3.0, -1.0]], "unpaired": [[1.0], [0.0], [1.0], [1.0], [1.0]], "ranked": [[1.0, -1.0, 3.0]],
    }  # fmt: skip
    assert found["all"].groups[0][0] == EPISODES[0] and found["all"].is_reference
    assert any("1 prompts give no group" in note for note in found["pairs"].notes)


def test_recorded_log_probs_are_the_references_where_weights_and_temperature_agree(tmp_path: Path) -> None:
    path = folder(tmp_path, EPISODES)
    for change in ({"fingerprint": "0" * 64}, {"fingerprint": None}, {"temperature": 0.7}):
        assert not read(Pairs(path=path, batch=1), replace(student(), **change), seed=0).is_reference
    batch = read(Pairs(path=path, batch=1), student(), seed=0).make_batch(0)
    assert batch.trajectories is not None
    assert torch.equal(batch.columns["ref_logp_BT"], batch.trajectories.sampler_logp_BT)


def test_turns_from_equal_states_count_alone(tmp_path: Path) -> None:
    path = folder(tmp_path, [played(0, 0, 1.0), played(0, 1, -1.0, states=(9, 8))])
    [group] = read(Pairs(path=path, batch=1, of="turn"), student(), seed=0).groups
    rows = pack(group)
    assert rows.is_action_BT.sum(1).tolist() == [2, 2] and rows.return_B.tolist() == [1.0, -1.0]
    assert rows.tokens_BT[0].tolist() == [10, 11, 20, 21, 11, 11, 20, 21]  # the whole history is read
    assert rows.segment_BT[0].tolist()[2:4] == [Segment.PAST] * 2
    assert keep_only_turn(played(0, 0, 1.0), 0).turns[0].prefix_tokens.tolist() == [10, 11]


def test_equal_replies_of_a_turn_are_one_worth_the_mean_of_their_episodes(tmp_path: Path) -> None:
    """One episode alone would make the same reply the better one and the worse one."""
    episodes = [played(0, *each, states=(0, 8)) for each in ((0, 4.0), (0, -2.0), (1, 3.0), (1, 1.0))]
    kind = Pairs(path=folder(tmp_path, episodes), batch=1, of="turn", most=None)
    [group] = read(kind, student(), seed=0).groups
    assert [(each.turns[0].reply_tokens[0], each.training_return) for each in group] == [(21, 2.0), (20, 1.0)]


def test_a_state_that_is_met_in_another_turn_is_another(tmp_path: Path) -> None:
    """Fewer turns are left there, whatever the reply."""
    episodes = [played(0, 0, 1.0, states=(7, 8)), played(0, 1, -1.0, states=(9, 7))]
    with pytest.raises(ValueError, match="none of its 2 rows makes a group"):
        read(Pairs(path=folder(tmp_path, episodes), batch=1, of="turn"), student(), seed=0)


@pytest.mark.parametrize(
    ("episode", "said"),
    [
        (played(0, 0, 1.0, end=EndReason.ERROR, error="boom"), "its game failed (boom)"),
        (played(0, 0, 1.0, turns=[]), "it has no sampled token"),
        (
            played(
                0, 0, 1.0, turns=[*played(0, 0, 1.0).turns, Turn("", prefix_tokens=[], prefix_segments=[])]
            ),  # type: ignore[arg-type]
            "a turn has no token",
        ),
        (
            replace(
                played(0, 0, 1.0),
                turns=[replace(turn, shaped_reward="x") for turn in played(0, 0, 1.0).turns],
            ),
            "the reward of a turn is 'x', not a finite number",
        ),
        (played(0, 300, 1.0), "token id 320 is beyond the 256 of the model"),
        (played(0, 0, 1.0, states=[1] * 80), "more than rollout.max_context_tokens=200 tokens"),
    ],
)
def test_a_recorded_episode_that_cannot_be_trained_on(episode: Episode, said: str, tmp_path: Path) -> None:
    path = folder(tmp_path, [played(0, 1, 1.0), episode])
    with pytest.raises(ValueError) as raised:
        read(Demonstrations(path=path, batch=1), student(), seed=0)
    assert said in str(raised.value) and "f episode 2: " in str(raised.value)


def test_costs_rank_the_costlier_first(tmp_path: Path) -> None:
    def told(member: int, *costs: Any) -> Episode:
        made = played(0, member, 1.0)
        for turn, cost in zip(made.turns, costs, strict=True):
            turn.cost = cost
        return made

    whole = folder(tmp_path, [told(0, 1.0, None), told(1, 2.0, 1.0)])
    [[first, second]] = read(Pairs(path=whole, batch=1, score="cost"), student(), seed=0).groups
    assert [(e.member, e.training_return) for e in (first, second)] == [(1, 3.0), (0, 1.0)]
    for number, (bad, said) in enumerate(
        (
            (told(1, None, None), "g gave no costs"),
            (told(1, "x", 1.0), "the cost of a turn is 'x', not a finite"),
        )
    ):
        path = folder(tmp_path / str(number), [told(0, 1.0, None), bad])
        with pytest.raises(ValueError, match=f"f episode 2: .*{said}"):
            read(Ranked(path=path, batch=1, score="cost"), student(), seed=0)


def test_a_folder_of_another_tokenizer_or_half_a_folder_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, EPISODES)
    with pytest.raises(ValueError, match="token ids of another tokenizer") as refusal:
        read(Demonstrations(path=path), replace(student(), tokenizer="x"), seed=0)
    ours = f" by transformers {version('transformers')} and tokenizers {version('tokenizers')}; collect with this model"
    assert "model's: of an unnamed one, and this model has " in str(refusal.value) and ours in str(
        refusal.value
    )
    told = {"tokenizer_made_with": {"name": "smollm2", "transformers": "5.17.0", "tokenizers": "0.22.0"}}
    EpisodeFolder(tmp_path / "told", told, planned=1).add("s", EPISODES)
    with pytest.raises(
        ValueError, match="of smollm2 by transformers 5.17.0 and tokenizers 0.22.0, and this model has"
    ):
        read(Demonstrations(path=str(tmp_path / "told")), student(), seed=0)
    EpisodeFolder(tmp_path / "h", {}, planned=2).add("s", EPISODES)
    with pytest.raises(ValueError, match="has 1 of 2 shards; repeat the command that collects it"):
        read(Demonstrations(path=str(tmp_path / "h")), student(), seed=0)


# ---------------------------------------------------------------------- passes
def test_each_pass_has_every_group_once_and_ids_are_unique(tmp_path: Path) -> None:
    found = replace(kinds(folder(tmp_path, EPISODES))["all"], batch=2)
    batches = [found.make_batch(iteration) for iteration in range(5)]  # two passes of five
    seen = [
        episode.turns[0].reply_tokens[0] + 100 * episode.instance_seed
        for b in batches
        for episode in b.episodes
    ]
    assert sorted(seen[:5]) == sorted(seen[5:]) and len(set(seen[:5])) == 5 and seen[:5] != seen[5:]
    groups = [int(group) for b in batches if b.trajectories is not None for group in b.trajectories.group_B]
    assert groups == list(range(10)) and batches[4].given is not None and batches[4].given["data/pass"] == 2.0
    assert batches[0].episodes[0].source is Source.RECORDED
    again = found.make_batch(3)
    assert again.episodes == batches[3].episodes  # addressed: nothing to restore


def test_ranks_get_shares_of_the_same_iteration(tmp_path: Path) -> None:
    found = replace(kinds(folder(tmp_path, EPISODES))["all"], batch=4)
    whole, parts = found.make_batch(1), [found.make_batch(1, rank=rank, world_size=2) for rank in range(2)]
    together = sorted((e.group, e.instance_seed, e.member) for part in parts for e in part.episodes)
    assert together == sorted((e.group, e.instance_seed, e.member) for e in whole.episodes)
    assert [part.given for part in parts] == [whole.given] * 2 and [len(p.episodes) for p in parts] == [2, 2]


def test_a_reader_counts_what_it_read() -> None:
    reader = Reader(student().chat, 200)
    whole = reader.make_episode([], TALK)  # type: ignore[arg-type]
    assert (reader.num_read, reader.num_truncated) == (1, 0)
    size = sum(len(turn.prefix_tokens) + len(turn.reply_tokens) for turn in whole.turns)
    for limit, cut in ((size, 0), (size - 1, 1)):  # a reply that fits exactly is whole
        exact = Reader(student().chat, limit)
        exact.make_episode([], TALK)  # type: ignore[arg-type]
        assert exact.num_truncated == cut
