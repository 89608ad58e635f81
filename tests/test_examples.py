"""The examples keep the contract and can be trained on."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from examples.own_dialect.arrow import Arrow
from examples.own_env.letters import Letters
from examples.own_reward.progress import Progress
from examples.own_tools.vault import Vault
from examples.own_worker.second_copy import SecondCopy
from lit_agentrl.actions import ToolCall
from lit_agentrl.build.games import check_prompts
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.callbacks.markup import split_reply
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.composition import compose_job, format_search_path
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import measure
from lit_agentrl.episode import Episode, Segment
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import get_named_weights, load_nano
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.rollout.workers.base import play_wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import tiny_network, tiny_policy
from tests.rewards.conftest import context, episode, turn
from tests.rollout.test_collector import LOSE, WIN, collect
from tests.rollout.test_process import rules, wave
from tests.text.conftest import make_bpe
from tests.update.conftest import recorded, step

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "own_env"
OWN_REWARD = ROOT / "examples" / "own_reward"


@pytest.fixture(scope="module")
def task() -> Task:
    made: Task = instantiate(OmegaConf.load(EXAMPLE / "conf" / "env" / "letters.yaml"))
    return made


def test_game_keeps_the_contract(task: Task) -> None:
    check_env(task.make)


def test_levels_leave_room_to_learn(task: Task) -> None:
    levels = measure(task, "val", 64, seed=0)
    assert levels.oracle_success == 1.0
    assert 0.05 < levels.chance_success < 0.5


def test_game_played_by_hand() -> None:
    env = Letters()
    env.reset(seed=0)
    env.load_state_dict({**env.state_dict(), "game": {"cells": {"A": 0, "B": 5, "P": 2}, "goal": "A"}})
    assert env.optimal_actions(horizon=2) == ["Left", "Left"]
    assert env.optimal_actions(horizon=1) is None
    assert env.step("Up")[1] == -0.1  # the edge: nothing moves
    observation, reward, terminated, _, info = env.step("Left")
    assert (observation, reward, terminated) == ("go to A\nA P _ _\n_ B _ _\n_ _ _ _\n_ _ _ _", -0.1, False)
    assert not info["success"]
    _, reward, terminated, _, info = env.step("left")
    assert (reward, terminated, info["success"]) == (0.9, True, True)


@pytest.mark.slow
def test_embedded_policy_can_read_the_game(task: Task) -> None:
    tokenizer = load_nano().tokenizer
    env = task.make("train")
    for seed in range(5):
        text = f"{task.name}\n{env.reset(seed=seed)[0]}"
        assert tokenizer.unk_token_id not in tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_part_with_a_network_learns_where_the_policy_succeeds() -> None:
    def made() -> Progress:
        part: Progress = instantiate(
            OmegaConf.load(OWN_REWARD / "conf/reward/progress.yaml").progress, weight=2.0
        )
        part.setup(context())
        return part

    episodes = [
        episode([turn(text="P near"), turn(text="P there")], success=True),
        episode([turn(text="P far"), turn(text="P lost")], member=1),
    ]
    part, fresh = made(), made()
    assert part.score(episodes, iteration=0) == fresh.score(episodes, iteration=0)
    for iteration in range(20):
        part.learn(episodes, iteration=iteration)
    (to_there, _), (to_lost, _) = part.score(episodes, iteration=20)
    start = [sum(row) for row in part.score(episodes, iteration=20)]
    assert start[0] < -0.9 and start[1] > -0.1, "an episode earns the chance that it began with, taken off"
    assert abs(to_there) < 0.1 and abs(to_lost) < 0.1  # what came of both was seen in their first states
    fresh.load_state_dict(part.state_dict())
    assert part.score(episodes, iteration=21) == fresh.score(episodes, iteration=21)


def played(option: str, folder: str, script: Callable[[int, int], str], *more: str) -> Episode:
    """An episode of scripted replies under a config that names the example."""
    search = format_search_path([ROOT / "examples" / folder / "conf"])
    cfg = compose_job("train", [option, "prompt=full", *more], search)
    task, prompt, tokenizer = instantiate(cfg.env), instantiate(cfg.prompt), make_bpe()
    engine = ScriptedEngine(
        script, encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    chat = ChatRenderer(tokenizer, dialect=instantiate(cfg.dialect))
    rules = Rules(tasks=[task], prompt=prompt, chat=chat, engine=lambda **_: engine, max_context_tokens=9000)
    check_prompts(rules)
    params = SamplingParams(max_reply_tokens=200, max_context_tokens=9000)
    [episode] = Scheduler(rules, engine).play(Wave("train", 0, params, (EpisodeSpec(0, 0, 0, 0, 3),)))
    check_ledger(episode)
    return episode


@pytest.mark.slow
@pytest.mark.sweep
def test_a_game_of_two_tools_is_played_by_json() -> None:
    check_env(lambda split: Vault(split=split))
    game = Vault()
    game.reset(seed=3)
    calls = [
        '{"name": "read", "arguments": {}}',
        '{"name": "read"',
        str(ToolCall("read", {"note": game.goal})),
        str(ToolCall("unlock", {"code": game.codes[game.goal]})),
    ]
    script = [f"<think>hm</think><tool_call>{call}</tool_call>" for call in calls]
    episode = played("env=vault", "own_tools", lambda e, k: script[k], "dialect=tool_call")
    assert [t.problem for t in episode.turns] == ["bad_arguments", "malformed_call", "", ""]
    assert [t.actions for t in episode.turns] == [[], [], *([call] for call in calls[2:])]
    assert [t.reward for t in episode.turns] == pytest.approx([-0.1, -0.1, -0.1, 0.9])
    assert episode.success
    assert "read was called wrongly: arguments: 'note' is a required property" in episode.turns[1].message
    assert f"note says {game.codes[game.goal]}" in episode.turns[3].message
    assert '"name": "unlock"' in episode.opening[0]["content"]


@pytest.mark.slow
def test_a_dialect_of_ones_own_is_followed_everywhere() -> None:
    script = ["I push => Up, Left; and so on", "no idea", "=> Up, Fly, Up;"]
    episode = played("dialect=arrow", "own_dialect", lambda e, k: script[k % 3])
    assert [t.actions for t in episode.turns[:3]] == [["Up", "Left"], [], ["Up"]]
    assert [t.problem for t in episode.turns[:3]] == ["", "no_arrow", "unknown_action"]
    assert [t.is_well_formed for t in episode.turns[:3]] == [True, False, True]
    assert "=> Up, Down;" in episode.opening[0]["content"]
    assert "it lacked => or ;" in episode.turns[2].message
    assert set(episode.turns[0].reply_segments.tolist()) == {Segment.THINK, Segment.ANSWER, Segment.OTHER}
    assert [p for p in split_reply(episode.turns[0], Arrow()) if p[1]] == [
        ("think", "I push "), ("answer", "=> Up, Left;"), ("other", " and so on"),
    ]  # fmt: skip
    stop, state, done = Arrow().stop(make_bpe()), "", []
    for token in make_bpe()("=> Up;", add_special_tokens=False)["input_ids"]:
        state, is_done = stop.update(state, token)
        done.append(is_done)
    assert done[-1] and not any(done[:-1])
    with pytest.raises(ValueError, match="^force_think=true needs a dialect that opens thinking with a tag"):
        ChatRenderer(make_bpe(), dialect=Arrow(), force_think=True)
    with pytest.raises(ValueError, match="dialect cannot write actions of format names, which sokoban takes"):
        played("dialect=tool_call", "own_tools", lambda e, k: "")


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    "choice",
    [
        "own_reward reward=progress",
        "own_structure algo/structure=second_try",
        "own_structure algo/structure=last_turn",
        "own_worker worker=second_copy",
    ],
)
def test_two_iterations_of_training(tmp_path: Path, choice: str) -> None:
    main_train([*training_of(choice), f"hydra.run.dir={tmp_path}"])
    require_two_iterations(tmp_path)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_game_is_found_beside_train_py(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "train.py"), *training_of("own_env env=letters")]
    done = subprocess.run(
        [*program, f"hydra.run.dir={tmp_path}"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    require_two_iterations(tmp_path)


def training_of(choice: str) -> list[str]:
    folder, option = choice.split()
    return ["--config-dir", str(ROOT / "examples" / folder / "conf"), option, "experiment=quick"]


def require_two_iterations(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "metrics.csv").open(encoding="utf-8")))
    assert [row["iteration"] for row in rows] == ["0", "1", "2"]
    assert all(row["val/success"] for row in rows)
    documented = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [
        name
        for name in rows[0]
        if name != "iteration" and not name.startswith("reward/") and f"`{name}`" not in documented
    ] == []


def test_groups_that_failed_are_played_once_more() -> None:
    """Group 30 is solved by one of its two episodes, group 31 only in the second try."""
    structure = instantiate(
        OmegaConf.load(ROOT / "examples/own_structure/conf/algo/structure/second_try.yaml")
    )
    batch, row, waves = collect(
        structure, script=lambda spec, k: WIN if (spec.group, spec.member) in {(30, 1), (31, 3)} else LOSE
    )
    assert [(spec.group, spec.member, spec.wave) for spec in waves[1].specs] == [(31, 2, 1), (31, 3, 1)]
    assert batch.trajectories is not None and batch.trajectories.group_B.tolist() == [30, 30, 31, 31, 31, 31]
    assert batch.trajectories.success_B.tolist() == [False, True, False, False, False, True]
    assert row["rollout/waves"] == len(waves) == 2


def test_half_of_a_group_goes_on_from_last_turns() -> None:
    """Members 0 and 2 of the first half fail, after three replies and one; 3 and 4 have their second chances."""
    structure = instantiate(
        OmegaConf.load(ROOT / "examples/own_structure/conf/algo/structure/last_turn.yaml")
    )
    growth = structure.branching(5).group(range(5), lambda *_: 0.0, 4)
    assert growth.first() == [Branch(0), Branch(1), Branch(2)]
    ends = {0: (3, False), 1: (2, True), 2: (1, False)}
    found = []
    for member in (2, 0, 1):  # the order does not matter
        turns, is_solved = ends[member]
        over = episode([turn() for _ in range(turns)], member=member, success=is_solved)
        found += growth.after(over, is_over=True)
    assert found == [Branch(3, 0, 2), Branch(4)]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_second_copy_plays_with_the_weights_that_it_was_given() -> None:
    search = format_search_path([ROOT / "examples" / "own_worker" / "conf"])
    settings = instantiate(compose_job("train", ["worker=second_copy"], search).worker)
    assert settings == SecondCopy(device="cpu")
    network, other = tiny_network(), tiny_network(seed=1)
    worker = settings.open(rules(), network, torch.no_grad, is_ahead=False)
    worker.load(get_named_weights(other), 5)
    worker.submit(wave())
    moved = worker.differing(get_named_weights(network))
    assert moved and all(
        torch.equal(weight, get_named_weights(other)[name]) for name, weight in moved.items()
    )
    engine = rules().open_engine(other)
    engine.load(None, 5)
    expected = Scheduler(rules(), engine)
    assert worker.take().episodes == expected.play(wave())
    assert play_wave(worker, wave(1)).episodes == expected.play(wave(1))
    worker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [300, 100_000])
def test_a_loss_of_pairs_takes_the_steps_of_the_loss_written_out(budget: int) -> None:
    """Two steps on groups of four: nothing but the objective's own file and its YAML is needed."""
    cfg = OmegaConf.load(ROOT / "examples/own_objective/conf/algo/best_worst.yaml")
    del cfg.defaults  # which the composition reads
    batch, policy, start = recorded()[1], tiny_policy(), tiny_policy()
    before = {name: weight.clone() for name, weight in policy.network.state_dict().items()}
    optimizer = torch.optim.SGD(policy.network.parameters(), lr=0.05)
    rows = {"tokens_BT": batch.tokens_BT, "is_action_BT": batch.is_action_BT}
    with torch.no_grad():
        ref_logp_BT = score_tokens(start.network, **rows).logp_BT
    for _ in range(2):
        gap_B = (score_tokens(policy.network, **rows).logp_BT - ref_logp_BT).sum(1)  # 0 where not sampled
        losses = []
        for group in batch.group_B.unique():
            own = (batch.group_B == group).nonzero().flatten()
            best, worst = own[batch.return_B[own].argmax()], own[batch.return_B[own].argmin()]
            losses.append(-torch.log(torch.sigmoid(cfg.beta * (gap_B[best] - gap_B[worst]))))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    optim = OptimSettings(optimizer=torch.optim.SGD, lr=0.05)
    module, change = step(alg=instantiate(cfg), epochs=2, optim=optim, tokens_per_microbatch=budget)
    assert module.version == 2 and module.row["train/pair_right"] > 0
    for name, weight in policy.network.state_dict().items():
        torch.testing.assert_close(change[name], weight - before[name], rtol=2e-3, atol=1e-6)
    with pytest.raises(InstantiationException, match=r"beta=0 must be > 0"):
        instantiate(cfg, beta=0)


def test_an_own_objective_is_chosen_by_name() -> None:
    folder = str(ROOT / "examples" / "own_objective" / "conf")
    cfg = compose_job("train", ["algo=best_worst"], format_search_path([folder]))
    assert cfg.algo._target_ == "examples.own_objective.best_worst.BestWorst"
    objective, structure = build_algorithm(cfg)
    assert isinstance(structure, Refill)
    assert (objective.unit, objective.requirements.min_members) == ("group_B", 2)
