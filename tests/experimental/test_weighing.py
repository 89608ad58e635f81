"""Weights of reward parts, fitted to recorded episodes: what is found, what trains with it, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lit_agentrl.cli.weigh import main as main_weigh
from lit_agentrl.config.composition import compose_job, initialize_hydra
from lit_agentrl.data.episodes import EpisodeFolder
from lit_agentrl.text.token_bytes import hash_tokenizer
from tests.commands import Refused
from tests.conftest import nano_tokenizer
from tests.rewards.conftest import episode, turn
from tests.rewards.test_model import model


def recorded(folder: str, prompts: int = 60, tokenizer: str = "") -> None:
    """Of two answers the well-formed one is better; every third prompt says the opposite.  All are equally long."""
    found = []
    for seed in range(prompts):
        for member in range(2):
            text = turn(3, sampled=[member, 5, 6], reward=float(member))
            text.is_well_formed = member == (seed % 3 > 0)
            one = episode([text], member=member, success=bool(member))
            one.instance_seed = seed
            found.append(one)
    Path(folder).mkdir()
    told = {"policy": {"tokenizer": tokenizer or hash_tokenizer(nano_tokenizer())}}
    EpisodeFolder(Path(folder), told, planned=1).add("game-0", found)


@pytest.mark.slow
@pytest.mark.sweep
def test_weights_are_fitted_judged_and_printed_as_options(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    recorded("episodes")
    command = "data=episodes 'reward=[format,length]' reward.format.rule=structure"
    for more in ("", " score=success"):
        main_weigh(shlex.split(command + more))
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith("fitted to ") and "1.000 before" in said[0]
        assert "pairs are ranked correctly; the shorter one wins in 0.500" in said[1]
        assert said[2] == "length has weight 0: it separates no pairs" and said[3] == "train with:"
        parts, rule, weight = shlex.split(said[4])
        assert (
            rule == "reward.format.rule=structure"
            and parts == "reward=[format]"
            and float(weight.removeprefix("reward.format.weight=")) == pytest.approx(1.0, abs=0.03)
        )
    with initialize_hydra():
        assert compose_job("train", [parts, weight]).reward.format.weight == pytest.approx(1.0, abs=0.03)

    options = f"reward.format.rule=structure reward.model.path={model(Path('m'))} reward.model.weight=0.5"
    main_weigh(shlex.split(f"data=episodes 'reward=[model,format]' {options}"))
    said = capsys.readouterr().out.splitlines()
    assert "; model alone 0." in said[1]
    assert said[-1].startswith(f"'reward=[model,format]' {options} reward.format.weight=")

    main_weigh(shlex.split("data=episodes reward=length"))
    assert capsys.readouterr().out.splitlines()[-1].startswith("no rule separates better from worse answers")

    recorded("foreign", tokenizer="other")
    recorded("few", prompts=1)
    for wrong, message in (
        (f"{command} reward.format.weight=2", "reward.format.weight=2 has no effect: the weights are fitted"),
        ("data=episodes reward=count", "reward=count depends on earlier iterations"),
        ("data=episodes reward=potential", "reward=potential reads states during play"),
        ("data=episodes 'reward=[format,caps]'", "reward=caps is not a sum of turn scores"),
        ("data=episodes reward=none", "reward has no rule; give some"),
        (command.replace("episodes", "none"), "data"),
        (command.replace("episodes", "foreign"), "holds token ids of another tokenizer than that of model="),
        (command.replace("episodes", "few"), "has no two answers to one prompt that differ in return"),
        (f"{command} held_out=0", "held_out=0 must be in (0, 1)"),
        (f"{command} steps=0", "steps=0 must be a whole number"),
        (f"{command} lr=-1", "lr=-1 must be finite and > 0"),
        (f"{command} score=cost", "score=cost must be one of return, success"),
    ):
        assert message in refused(wrong, main_weigh), wrong
