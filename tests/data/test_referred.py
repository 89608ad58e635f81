"""``data=referred``: answers behind the best one of their prompt, to the token; and the references of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lit_agentrl.data.reading import read
from lit_agentrl.data.references import References
from lit_agentrl.data.referred import Referred, measure_longest_row, put_behind, put_behind_best, select_best
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.learned.scoring import list_rows
from lit_agentrl.rollout.pack import pack
from tests.data.test_reading import file, folder, learnt, played, reply, student


def test_the_reference_is_read_first_and_nothing_of_it_is_sampled() -> None:
    reference, other = played(0, 0, 3.0), played(0, 1, 1.0)
    found = put_behind(reference, other)
    [(before, _)], [(after, ends)], [(alone, _)] = map(list_rows, (reference, found, other))
    assert after == before + alone and ends[-1] == len(after) - 1
    assert measure_longest_row(found) == len(after) == 2 * measure_longest_row(other)
    assert (found.num_action_tokens, found.training_return) == (4, 1.0)
    packed = pack([found])
    assert packed.tokens_BT[0][packed.is_action_BT[0]].tolist() == [21, 21, 21, 21]
    assert other.turns[0].prefix_tokens.tolist() == [10, 11], "the episode itself stays"
    cut = replace(other, turns=[other.turns[0], replace(other.turns[1], starts_row=True)])
    ids = [row for row, _ in list_rows(put_behind(reference, cut))]
    assert ids == [before + row for row, _ in list_rows(cut)], "each row has the reference before it"
    own = [row for row, _ in list_rows(put_behind(cut, other))]
    assert own == [list_rows(cut)[-1][0] + alone], "of a reference of several rows the last one is read"


def test_the_best_is_the_reference_and_the_rest_must_differ() -> None:
    episodes = [played(0, k, worth) for k, worth in enumerate((1.0, 3.0, -1.0, 3.0))]
    short = replace(played(0, 4, 3.0), turns=played(0, 4, 3.0, states=(7, 8)).turns[1:])
    assert select_best(episodes) is episodes[1] and select_best([*episodes, short]) is short
    group = put_behind_best(episodes)
    assert [each.training_return for each in group] == [1.0, -1.0, 3.0]
    start = list_rows(episodes[1])[0][0]
    assert all(list_rows(each)[0][0][: len(start)] == start for each in group)
    assert put_behind_best(episodes[:2]) == [] and put_behind_best([episodes[1], *([episodes[0]] * 2)]) == []


def test_folders_and_rows_make_groups(tmp_path: Path) -> None:
    episodes = [played(0, k, worth) for k, worth in enumerate((1.0, 3.0, -1.0))]
    episodes += [played(1, 0, 1.0), played(1, 1, 2.0)]
    found = read(Referred(path=folder(tmp_path, episodes), batch=1), student(), seed=0)
    assert [[each.training_return for each in group] for group in found.groups] == [[1.0, -1.0]]
    assert any("1 prompts give no group" in note for note in found.notes)
    answers, scores = [reply("Up"), reply("Left"), reply("Down")], [0, 2, 1]
    row = {"prompt": "# P", "completions": answers, "scores": scores}
    [group] = read(Referred(path=file(tmp_path, [row]), batch=1), student(), seed=0).groups
    assert [each.training_return for each in group] == [0, 1]
    assert ["Left" in "".join(learnt(each)) for each in group] == [False, False]
    text = student().chat.decode(list_rows(group[0])[0][0])
    assert text.index("Left") < text.index("Up")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "# P", "completions": ["Up", "Down"], "scores": [1, 0]}, "at least two different"),
        ({"prompt": "# P", "completions": ["Up", "Down", "Left"], "scores": [1, 0, 0]}, "at least two different"),
        ({"prompt": "# P", "completions": ["Up", "Down"]}, "scores"),
        ({"prompt": "# P " * 24, "completions": ["Up", "Down", "Left"], "scores": [2, 1, 0]}, "has more than rollout"),
    ],
)  # fmt: skip
def test_a_row_without_a_reference_or_room_is_one_line(
    row: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        read(Referred(path=file(tmp_path, [row]), batch=1), student(90), seed=0)
    assert "\n" not in str(raised.value)


def test_recorded_answers_that_are_too_long_together_are_counted(tmp_path: Path) -> None:
    episodes = [played(k, m, float(m)) for k in range(2) for m in range(3)]
    longer = [replace(turn, reply_tokens=np.full(20, 21), reply_segments=[4] * 20, reply_logps=[-0.5] * 20,
                      reply_entropies=[0.1] * 20) for turn in episodes[0].turns]  # fmt: skip
    episodes[0] = replace(episodes[0], turns=longer)
    kind = Referred(path=folder(tmp_path, episodes), batch=1, max_bad_share=0.2)
    found = read(kind, student(50), seed=0)
    assert len(found.groups) == 1 and any("1 too_long" in note for note in found.notes)


def by_prompt(prompt: int, member: int, worth: float) -> Episode:
    """Of a prompt that its ids tell from others."""
    made = played(prompt, member, worth)
    first = replace(made.turns[0], prefix_tokens=np.array([30 + prompt, 11]))
    return replace(made, turns=[first, *made.turns[1:]])


def test_references_are_found_by_what_was_read(tmp_path: Path) -> None:
    episodes = [by_prompt(p, m, float(m)) for p in range(2) for m in range(3)]
    found = References(folder(tmp_path, episodes))
    assert len(found) == 2 and found.tokenizer == student().tokenizer
    asked = replace(by_prompt(1, 7, -1.0), instance_seed=5)
    joined = found.put_before(asked)
    assert (
        joined is not None
        and list_rows(joined)[0][0] == list_rows(episodes[5])[0][0] + list_rows(asked)[0][0]
    )
    assert found.put_before(by_prompt(3, 0, 1.0)) is None
    assert found.put_before(replace(asked, task_name="other")) is None
    other = References(folder(tmp_path / "b", episodes[:3]))
    assert other.fingerprint != found.fingerprint == References(found.path).fingerprint
    (tmp_path / "empty").mkdir()
    for path, said in (
        (str(tmp_path / "no"), "does not exist or is empty"),
        (str(tmp_path / "empty"), "does not exist or is empty"),
        ("", "path="),
        (str(Path(__file__).parent), "is a folder of something else"),
    ):
        with pytest.raises(ValueError, match=said):
            References(path)
