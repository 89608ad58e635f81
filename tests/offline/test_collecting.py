"""`lit-agentrl collect`: a folder of episodes, of a run or of a model, that a kill does not change."""

from __future__ import annotations

import csv
import itertools
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from lit_agentrl.cli.collect import main as main_collect
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.strategies.checkpoint_io import AtomicIO
from lit_agentrl.text.ledger import check_ledger
from tests.commands import Refused, contents

PLAYED = "model=nano env=bandit episodes=3 members=2 shard=2 rollout.max_reply_tokens=8"


def folder(path: str | Path) -> EpisodeFolder:
    found = open_folder(Path(path))
    assert found is not None
    return found


def shards(path: str) -> dict[str, bytes]:
    return {name.rpartition("/")[2]: data for name, data in contents(Path(path)).items()}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("collected") / "there"
    main_collect(shlex.split(f"{PLAYED} out={place}"))
    return place


@pytest.mark.slow
def test_a_folder_holds_whole_episodes_and_says_of_what(collected: Path) -> None:
    found = folder(collected)
    episodes = list(found.read())
    assert found.is_complete and [shard.episodes for shard in found.shards] == [4, 2]
    assert [(e.group, e.member) for e in episodes] == [(g, m) for g in range(3) for m in range(2)]
    for episode in episodes:
        check_ledger(episode)
        assert episode.opening and all(turn.message or not k for k, turn in enumerate(episode.turns))
    described = found.described
    assert described["policy"]["name"] == "nano" and len(described["policy"]["fingerprint"]) == 64
    assert (
        described["tokenizer_made_with"]["name"] == "nano"
        and described["tokenizer_made_with"]["transformers"]
    )
    assert described["env"]["name"] == "bandit" and described["rollout.max_reply_tokens"] == 8


@pytest.mark.slow
@pytest.mark.sweep
def test_what_a_kill_left_is_continued_to_the_same_bytes(
    collected: Path, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main_collect(shlex.split(f"{PLAYED} out=there"))
    closing = capsys.readouterr().out.splitlines()[-1]
    assert shards("there") == shards(str(collected))
    assert "bandit: success " in closing and "oracle" in closing and "n = 3 tasks, 6 episodes" in closing
    found = folder("there")  # as if killed after the first shard, in the middle of the second
    EpisodeFolder(found.path, found.described, found.shards[:1], found.planned).write_manifest()
    (found.path / found.shards[1].file).rename(found.path / f"{found.shards[1].file}.tmp")
    main_collect(shlex.split(f"{PLAYED} out=there"))
    printed = capsys.readouterr().out
    assert "continuing after 4 episodes" in printed and printed.count("playing") == 1
    assert printed.splitlines()[-1] == closing and shards("there") == shards(str(collected))
    main_collect(shlex.split(f"{PLAYED} out=there"))  # it is complete: nothing is played
    assert capsys.readouterr().out.splitlines() == [closing]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"{PLAYED} seed=1 out={{}}", "episodes of another command: seed is 0 there, and 1 here"),
        (f"{PLAYED} out=file", "out: file is not a folder (it has no manifest.json)"),
        (f"{PLAYED} out=other", "other is a folder of something else"),
        (PLAYED, "out has no value; collect --help"),
        (
            "model=nano env=bandit members=2 temperature=0 out=x",
            "would record the same episode several times",
        ),
        ("model=nano env=bandit trained_in=-1 out=x", "trained_in=-1 must be a whole number from 0"),
        (
            "model=nano env=bandit trained_in=1 split=val out=x",
            "trained_in selects training tasks, which split=val does not have; leave one of the two out",
        ),
        ("model=nano env=bandit continuations=-1 out=x", "continuations=-1 must be a whole number from 0"),
        (
            "model=nano env=bandit continuations=2 temperature=0 out=x",
            "would all be the same; set temperature=1",
        ),
        ("model=nano env=bandit plays=worst out=x", "plays=worst must be one of policy, best"),
        (
            "model=nano env=bandit plays=best out=x",
            "members=8 with plays=best would record the same episode several times",
        ),
        (
            "model=nano env=bandit plays=best members=1 temperature=0.5 out=x",
            "temperature=0.5 has no effect with plays=best",
        ),
        ("model=nano env=bandit episodes=0 out=x", "episodes=0 must be a whole number from 1"),
        ("model=nano env=bandit shard=half out=x", "shard=half must be a whole number"),
        ("model=nano env=bandit split=all out=x", "split=all must be one of train, val, test"),
        ("model=nano out=x", "env has no value"),
        ("out=x", "run has no value"),
        ("run=nowhere out=x", "run=nowhere is not a folder"),
        ("model=nano env=bandit out=x checkpoint=best", "checkpoint would be ignored"),
        ("model=nano env=bandit out=x episode=4", "unknown option episode=4; did you mean episodes"),
    ],
)
def test_what_cannot_be_collected_is_one_line(
    options: str, said: str, collected: Path, in_empty_folder: Path, refused: Refused
) -> None:
    Path("file").write_text("mine")
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    before = contents(in_empty_folder)
    assert said in refused(options.format(collected), main_collect)
    assert contents(in_empty_folder) == before and not Path("x").exists()


BEST = "model=nano plays=best members=1 episodes=4 shard=3"


@pytest.mark.slow
def test_best_play_is_recorded_and_nobody_knows_its_log_probs(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main_collect(shlex.split(f"{BEST} env=[sokoban,bandit] out=there"))
    assert "sokoban: success 1.000" in (said := capsys.readouterr().out) and "left out" not in said
    found = folder("there")
    assert found.described["plays"] == "best" and found.described["policy"]["fingerprint"] is None
    episodes = list(found.read())
    assert [(e.task_name, e.group, e.member) for e in episodes[:4]] == [("sokoban", k, 0) for k in range(4)]
    assert len({e.instance_seed for e in episodes[:4]}) == 4 and all(e.success for e in episodes)
    for episode in episodes:
        assert all(np.isnan(turn.reply_logps).all() and turn.policy_version == -1 for turn in episode.turns)
        for turn in episode.turns:
            turn.reply_logps = turn.reply_entropies = np.zeros(len(turn.reply_tokens))
        check_ledger(episode)
    assert episodes[0].turns[0].reply_text.startswith("<think> P ")  # the thought of the game


@pytest.mark.slow
def test_what_best_play_does_not_know_is_left_out_and_told(
    in_empty_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    plan = Sokoban.optimal_actions

    def forgetful(game: Sokoban, *, horizon: int) -> list[str] | None:
        """Knows the rooms in which the player is not at the bottom."""
        return plan(game, horizon=horizon) if game._player[0] < 4 else None

    monkeypatch.setattr(Sokoban, "optimal_actions", forgetful)
    main_collect(shlex.split(f"{BEST} env=sokoban out=there"))
    kept = list(folder("there").read())
    assert 0 < len(kept) < 4
    assert f"{4 - len(kept)} tasks left out, whose best play is unknown" in capsys.readouterr().out
    monkeypatch.setattr(Sokoban, "optimal_actions", lambda self, horizon: None)
    said = refused(f"{BEST} env=sokoban out=none", main_collect)
    assert "plays=best: sokoban does not know best play of its instances" in said


@pytest.mark.slow
@pytest.mark.sweep
def test_best_play_is_imitated(in_empty_folder: Path) -> None:
    main_collect(shlex.split(f"{BEST} env=bandit out=there"))
    small = "env=bandit val.every=3 val.episodes=1 test.episodes=0 ~callbacks.progress data.batch=4"
    main_train(
        shlex.split(
            f"{small} algo=sft data=demonstrations data.path=there trainer.max_epochs=3 hydra.run.dir=run"
        )
    )
    with Path("run/metrics.csv").open() as file:
        losses = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert losses[2] < losses[0]


@pytest.mark.slow
def test_the_policy_of_a_run_is_recorded(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_copy / "checkpoints" / "last.ckpt"
    state = AtomicIO().load_checkpoint(file, weights_only=True)
    state["state_dict"]["network.lm_head.weight"][5] += 1  # as if it had learnt
    AtomicIO().save_checkpoint(state, file)
    for name in ("last", "start"):
        main_collect(shlex.split(f"run={run_copy} checkpoint={name} episodes=1 members=2 out={name}"))
        assert "n = 1 tasks, 2 episodes" in capsys.readouterr().out
    last, start = (folder(name).described["policy"] for name in ("last", "start"))
    assert last["fingerprint"] != start["fingerprint"] and (last["stage"], start["stage"]) == (
        "last",
        "start",
    )
    assert len(list(folder("last").read())) == 2
    assert json.loads((Path("last") / "manifest.json").read_text())["planned"] == 1


@pytest.mark.slow
@pytest.mark.sweep
def test_continuations_label_the_turns_of_an_episode(
    in_empty_folder: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    played = "model=nano env=frozen_lake episodes=3 shard=2"
    main_collect(shlex.split(f"{played} members=2 continuations=4 out=there"))
    assert "n = 3 tasks, 6 episodes" in capsys.readouterr().out
    found = folder("there")
    assert found.described["continuations"] == 4
    for episode in found.read():
        check_ledger(episode)
        labels = list(itertools.accumulate(turn.shaped_reward or 0.0 for turn in episode.turns))
        assert labels[-1] == pytest.approx(float(episode.success)) and all(
            -1e-9 <= x <= 1 + 1e-9 for x in labels
        )
    main_collect(shlex.split(f"{played} members=1 out=plain"))
    first = [e.turns[0].reply_tokens.tolist() for e in folder("plain").read()]
    assert first == [e.turns[0].reply_tokens.tolist() for e in found.read() if not e.member]
    said = refused(f"{played} continuations=3 out=few", main_collect)
    assert "continuations=3 must be a whole number >= 4: frozen_lake has 5 turns" in said
    assert "continuations=4 there" in refused(f"{played} members=2 out=there", main_collect).replace(
        " is ", "="
    )
