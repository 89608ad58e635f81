"""Every file under conf/algo and conf/filter composes and builds."""

from __future__ import annotations

import importlib.util
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.config.composition import compose_job, format_search_path, initialize_hydra
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.suggestions import REMOVED
from lit_agentrl.paths import CONFIG_DIR, CONFIG_ROOTS, find_config, list_options
from lit_agentrl.rl.binding import try_out
from lit_agentrl.rl.policy import filters
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.rl.policy.ratios import sequence
from tests.conftest import load_option, thinned

ROOT = Path(__file__).parents[2]
NAMED = [f.stem for f in list_options("algo")]
UNTRAINED = ("training_free_grpo",)  # those without a loss
# those that learn from recorded episodes alone: tests/modules/test_reward.py
REWARD_MODELS = ("bradley_terry", "cost_model", "plackett_luce", "polar", "process_reward")
ALGORITHMS = [name for name in NAMED if name not in REWARD_MODELS]
# structures are not of the loss: they have their own tests, in tests/rollout
AXES = sorted(f.name for f in (CONFIG_DIR / "algo").iterdir() if f.is_dir() and f.name != "structure")
OPTIONS = sorted(f"{axis}={f.stem}" for axis in AXES for f in list_options(f"algo/{axis}"))
ROOTS = ",".join(f"file://{root}" for root in CONFIG_ROOTS)
BASES = {
    "_base": "grpo",
    "_preference": "dpo",
    "_pointwise": "kto",
}  # each with an algorithm that starts from it


def axes_of(base: str) -> list[str]:
    """The axes of the loss that a base has."""
    chosen = OmegaConf.load(CONFIG_DIR / "algo" / f"{base}.yaml").defaults
    return [axis for each in chosen if each != "_self_" for axis in each if axis != "structure"]


def host_of(axis: str, stem: str = "") -> str:
    """An algorithm that has the axis, and can have this option of it."""
    own = {("label", "so_far"): "process_reward"}  # of turns; others label whole episodes
    return own.get((axis, stem)) or next(name for base, name in BASES.items() if axis in axes_of(base))


def composed(*overrides: str) -> DictConfig:
    return _composed(*overrides).copy()


@cache  # composing takes long
def _composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(Path(__file__).parent / "conf"), version_base="1.3"):
        config = compose("train_test", overrides=[f"hydra.searchpath=[{ROOTS}]", *overrides])
    del config.algo.structure
    return config


def built(*overrides: str) -> tuple[Algorithm, Any]:
    config = composed(*overrides)
    algorithm, group_filter = instantiate(config.algo), instantiate(config.filter)
    algorithm.try_out(TrajectoryBatch.make_toy().to_dict())
    try_out("filter", group_filter, filters.Selection, TrajectoryBatch.make_toy().to_dict())
    return algorithm, group_filter


CONSTANTS = [
    ("grpo", "clip.epsilon", 0.2),
    ("loop", "clip.epsilon", 0.1),
    ("loop", "clip.lower", "reciprocal"),
    ("gspo", "clip.low", 3e-4),
    ("gspo", "clip.high", 4e-4),
    ("dr_grpo", "aggregate.max_tokens", 64),
    ("grpo", "advantage.eps", 1e-6),
    ("ppo", "advantage.gae_lambda", 0.95),
    ("a2c", "advantage.gae_lambda", 1.0),
    ("a2c", "entropy.coef", 0.01),
    ("starpo", "advantage.gae_lambda", 1.0),
    ("starpo", "kl.coef", 0.001),
    ("starpo_s", "clip.high", 0.28),
    ("starpo_s", "advantage.gae_lambda", 1.0),
    ("starpo_s", "entropy.coef", 0.001),
    ("starpo", "entropy.coef", 0.001),
    ("a2c", "advantage.whiten", False),
    ("ppo_turn", "advantage.turn_discount", 0.95),
    ("bilevel_ppo", "advantage.turn_discount", 0.95),
    ("gmpo", "clip.high", 0.4),
    ("gigpo", "advantage.discount", 0.95),
    ("loop", "rows.threshold", 0.01),
    ("cppo", "rows.prune", 0.5),
    ("gvpo", "loss_of_groups.beta", 0.1),
    ("raft", "rows.threshold", 1.0),
    ("ppo_penalty", "kl_controller.target", 0.01),
    ("grpo", "/filter.ratio", 1.0),
    ("starpo_s", "/filter.ratio", 0.25),
    ("rloo", "/filter.ratio", 1.0),
    ("dapo", "/filter.target", 4),
    ("distill", "kl.coef", 1.0),
    ("nash_md", "kl.coef", 0.008),
    ("orpo", "nll.coef", 1.0),
    ("rrhf", "link.width", 0.0),
    ("rebel", "pairing.ties", True),
    ("dno", "pairing.min_gap", 0.5),
    ("delta", "clip.high", 0.3),
    ("safe_rlhf", "advantage.whiten", False),
    ("iql", "/critic.target_rate", 0.1),
    ("dpo", "/optim.lr", 2e-5),
    ("online_dpo", "/optim.lr", 5e-5),
    ("bradley_terry", "/optim.lr", 3e-4),
]
# the quick cases are those that are composed for their constants in any case
QUICK = {name for name, _, _ in CONSTANTS}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow, pytest.mark.sweep))
        for name in ALGORITHMS
    ],
)
def test_named_algorithms(name):
    algorithm, _ = built(f"algo={name}")
    assert algorithm.name == name and algorithm.trains == (name not in UNTRAINED)
    text = find_config(f"algo/{name}.yaml").read_text()
    file = OmegaConf.load(find_config(f"algo/{name}.yaml"))
    bases = [
        OmegaConf.load(CONFIG_DIR / "algo" / f"{each}.yaml") for each in file.defaults if str(each) in BASES
    ]
    own = set(file) - {"defaults", "name"} - {key for base in bases for key in base}
    # a constant of an axis set beside these would stay when the axis is exchanged; another objective has its own keys
    assert not set(file) & set(AXES) and (not own or "_target_" in file)
    assert text.startswith("#") and "Defaults:" in text and "\n# Departs:" in text


def hosted(config: DictConfig, option: str) -> DictConfig:
    """The mix with one option exchanged, and with what its refusal tells to choose beside it, if it is refused."""
    axis, stem = option.split("=")
    config.algo[axis] = load_option(f"algo/{axis}", stem)
    try:
        instantiate(config.algo).try_out(TrajectoryBatch.make_toy().to_dict())
    except (ValueError, InstantiationException) as error:
        remedies = re.findall(r"algo/(\w+)=(\w+)", str(error).partition(": use ")[2])
        (other,) = [f"{other}={name}" for other, name in remedies if other != axis]
        return hosted(config, other)
    return config


@pytest.mark.parametrize("option", thinned(OPTIONS, one_in=6))
def test_every_option_of_every_axis(option):
    axis, stem = option.split("=")
    config = hosted(composed(f"algo={host_of(axis, stem)}"), option)
    part, made_by = getattr(instantiate(config.algo), axis), get_object(config.algo[axis]._target_)
    if isinstance(made_by, type):
        assert type(part) is made_by
    elif "_partial_" in config.algo[axis]:
        assert isinstance(part, partial) and part.func is made_by
    else:
        assert part is None and option.endswith("=none")


def test_constants_are_those_of_the_papers():
    for name, key, value in CONSTANTS:
        config = composed(f"algo={name}")
        assert OmegaConf.select(config, key[1:] if key[0] == "/" else f"algo.{key}") == value


def test_axes_are_overridden_from_the_command_line():
    algorithm, _ = built("algo=gspo", "algo/clip=clip_higher", "algo.clip.high=0.3", "algo/kl=loss_k3")
    assert algorithm.ratio.func is sequence and algorithm.clip.keywords == {"low": 0.2, "high": 0.3}
    assert algorithm.needs("ref_logp_BT")
    assert set(composed("algo=gspo").algo) == {"_target_", "name", *axes_of("_base")}


def test_the_numbers_of_an_option_go_when_another_is_chosen():
    assert composed("algo=gspo", "algo/clip=symmetric").algo.clip == composed().algo.clip
    assert composed("algo=loop", "algo/clip=rollback").algo.clip.epsilon == 0.2
    assert composed("algo=starpo", "algo/kl=loss_k3").algo.kl.coef == 0.001
    assert "ratio" not in composed("algo=grpo", "filter=reject_uniform").filter
    # typed, an option is as its own file has it
    assert composed("algo=gspo", "algo/clip=clip_higher").algo.clip.low == 0.2
    # another axis exchanged leaves them
    config = composed("algo=gspo", "algo/aggregate=token_mean", "algo.clip.high=0.3")
    assert (config.algo.clip.low, config.algo.clip.high) == (3e-4, 0.3)


def test_an_option_that_an_experiment_chooses_is_as_its_own_file_has_it(tmp_path):
    (tmp_path / "experiment").mkdir()
    chosen = (
        "# @package _global_\ndefaults:\n  - override /algo: gspo\n  - override /algo/clip: clip_higher\n"
    )
    (tmp_path / "experiment" / "mine.yaml").write_text(chosen, encoding="utf-8")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    with initialize_hydra():
        clip = compose("train", overrides=[search, "experiment=mine"]).algo.clip
    assert (clip.low, clip.high) == (0.2, 0.28)


def test_constants_as_of_earlier_versions_are_refused(tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text(
        "defaults: [gspo]\nconstants: {clip/clip_higher: {low: 0.1}}\n"
    )
    with pytest.raises(UserError, match=r"algo\.constants was removed; write an option file"):
        compose_job("train", ["algo=mine"], format_search_path([tmp_path]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (old, new)
        for old, new in REMOVED.items()
        if "…" not in new and all("=" in word for word in new.split())
    ],
)
def test_removed_options_have_a_new_spelling(old, new):
    """Read off the files, since composing takes long: options that are there, and constants that they have."""
    group, _, name = old.partition("=")
    assert not find_config(f"{group}/{name}.yaml").exists()
    chosen = {}
    for key, value in (text.split("=") for text in new.split()):
        place, _, constant = key.rpartition(".")
        if place:
            assert constant in chosen[place]
        else:
            chosen[key.replace("/", ".")] = load_option(key, value)
    assert chosen


def test_every_axis_must_be_chosen():
    config = composed()
    del config.algo.ratio
    with pytest.raises(Exception, match="missing 1 required keyword-only argument: 'ratio'"):
        instantiate(config.algo)


def test_mistakes_name_the_option():
    with pytest.raises(Exception, match=r"^clip\.low=3 must be in \(0, 1\)"):
        built("algo=gspo", "algo.clip.low=3")
    with pytest.raises(Exception, match=r"\bcoef=0 must be finite and > 0; algo/kl=none"):
        built("algo/kl=loss_k3", "algo.kl.coef=0")
    with pytest.raises(ValueError, match=r"filter\.ratio=1\.3 must be in \(0, 1\]"):
        built("filter.ratio=1.3")


@pytest.mark.parametrize("name", ["dno", "rebel", "spin", "sppo"])
def test_a_reference_that_moves_each_iteration_is_left_within_it(name):
    update = composed(f"algo={name}")["update"]
    assert update.epochs * update.minibatches > 1  # with one step it is the policy itself


@pytest.mark.parametrize(
    ("overrides", "ratio"),
    [
        (("algo=rloo",), 1.0),
        (("algo=grpo",), 1.0),
        (("algo=starpo_s", "filter.ratio=0.75"), 0.75),
        (("algo=grpo", "filter=top_std"), 1.0),
        (("algo=quarter",), 0.25),
        (("algo=quarter", "filter=none"), None),
    ],
)
def test_the_command_line_wins_over_an_algorithms_filter(overrides, ratio):
    config = composed(*overrides)
    assert config.filter.get("ratio") == ratio
    assert config.filter._target_.endswith("keep_all" if ratio is None else "top_std")


def test_the_page_lists_nothing_that_is_not_there():
    """Every entry of the axes' lists is an option; a new option needs no entry."""
    page = (ROOT / "docs" / "algorithms.md").read_text()
    axes = page.split("\n## Axes")[1].split("\n## ")[0].split("\n### ")[1:]
    listed = {
        f"{axis.partition(chr(10))[0]}={stem}"
        for axis in axes
        for stem in re.findall(r"^- `(\w+)`: ", axis, flags=re.MULTILINE)
    }
    assert len(listed) > 50
    assert listed <= {*OPTIONS, *(f"filter={file.stem}" for file in list_options("filter"))}


def test_every_algorithm_is_in_the_table_of_the_site():
    spec = importlib.util.spec_from_file_location("algorithm_table", ROOT / "scripts" / "algorithm_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (page,) = script.make_pages().values()
    lines = {
        line.split("`")[1]: line.strip("| ").split(" | ") for line in page.splitlines() if line[:3] == "| `"
    }
    parts = {option: lines.pop(option) for option in [*lines] if "=" in option}
    assert parts.pop("algo=") and "2510.16907" in parts["algo/structure=parts"][1]
    assert "2405.00451" in parts["algo/pairing=tree_state"][1]
    assert "(../experimental.md#summary)" in parts["context=summary"][-1]
    named = {file.stem: file for file in list_options("algo") if not file.stem.startswith("_")}
    assert lines.keys() == named.keys() >= {*ALGORITHMS}
    for name, (_, tier, *_, source, certificate, figures) in lines.items():
        assert tier == ("experimental" if "experimental" in named[name].parts else "core")
        assert len(source) > 1 and len(certificate) > 20 and (figures == "–" or "](../" in figures), name
    assert lines["sapo"][-1] == "–" and "(../findings/learning.md#all-algorithms)" in lines["cispo"][-1]
    assert "(../findings/reward_models.md#" in lines["bradley_terry"][-1]
