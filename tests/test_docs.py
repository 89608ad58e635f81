"""The documentation: its links lead somewhere, its examples run, and its tables agree with the source."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra import compose
from hydra.utils import instantiate
from omegaconf import DictConfig
from safetensors import safe_open

from lit_agentrl.__main__ import find_subcommands
from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.games import check_prompts
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.config.composition import compose_job, format_search_path, initialize_hydra
from lit_agentrl.config.overrides import FLAGS
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.checker import check_env
from lit_agentrl.episode import Turn
from lit_agentrl.models.policy import NANO_FOLDER, load_nano
from lit_agentrl.paths import CONFIG_DIR, list_configs, list_options, name_config
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import bind, try_out
from lit_agentrl.rl.policy.filters import Selection
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import Single
from lit_agentrl.text.prompts import Prompt
from tests.conftest import load_script, load_task_yaml
from tests.rewards.conftest import sized
from tests.text.conftest import make_bpe

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *ROOT.glob("examples/*/README.md"),
]
EXTENDING = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
# a fenced block whose first line is a comment that names a file
FILES = re.findall(r"```(?:python|yaml)\n# (my_\S+)\n(.*?)```", EXTENDING, flags=re.DOTALL)
COMMANDS = re.findall(r"^python train\.py (--config-dir my_conf .*)$", EXTENDING, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What GitHub names the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"\]\([^)]*\)", "]", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Relative links to a file, or to a heading of a page, that is not there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not re.match(r"https?://", target) and (
            not file.exists() or (anchor and anchor not in anchors(file))
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `A` b\n[a](https://b.c) [d](no.md#part) [e](#a-b) [f](page.md#b)", encoding="utf-8")
    assert broken_links(page) == ["no.md#part", "page.md#b"]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DictConfig]]:
    """The config of each command, with the page's files in place."""
    folder = tmp_path_factory.mktemp("extending")
    for name, text in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    configs = {}
    search = f"hydra.searchpath=[file://{folder}/my_conf]"
    with initialize_hydra():
        for command in COMMANDS:
            overrides = shlex.split(command.removeprefix("--config-dir my_conf "))
            configs[overrides[-1].split("=")[0]] = compose("train", overrides=[*overrides, search])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield configs


def test_every_example_is_used() -> None:
    assert len(FILES) == 12
    assert len(COMMANDS) == 6


def test_clip_rule_of_the_page(composed: dict[str, DictConfig]) -> None:
    algorithm, _ = build_algorithm(composed["algo.clip.epsilon"])
    ratio_BT = torch.tensor([[1.0, 3.0, 0.1]], requires_grad=True)
    clipped = algorithm.clip(ratio_BT=ratio_BT, advantage_BT=torch.tensor([[2.0, 2.0, -1.0]]))
    assert torch.allclose(clipped.loss_BT, torch.tensor([[-2.0, -2.6, 0.7]]), atol=2e-3)
    clipped.loss_BT.sum().backward()
    assert ratio_BT.grad is not None
    assert torch.allclose(ratio_BT.grad, torch.tensor([[-2.0, 0.0, 0.0]]), atol=2e-2)
    assert clipped.is_clipped_high_BT.tolist() == [[False, True, False]]
    assert clipped.is_clipped_low_BT.tolist() == [[False, False, True]]


def test_world_of_tools_of_the_page(composed: dict[str, DictConfig]) -> None:
    cfg = composed["env"]
    task, tokenizer = instantiate(cfg.env), make_bpe()
    check_env(task.make)
    calls = [
        '{"name": "find", "arguments": {"name": "Bob"}}',
        *(f'{{"name": "find", "arguments": {{"name": "{name}"}}}}' for name in ("Ann", "Ben", "Eve")),
    ]
    engine = ScriptedEngine(
        lambda episode, turn: f"<think>hm</think><tool_call>{calls[turn]}</tool_call>",
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
    )
    chat = ChatRenderer(tokenizer, dialect=instantiate(cfg.dialect))
    rules = Rules(
        tasks=[task],
        prompt=instantiate(cfg.prompt),
        chat=chat,
        engine=lambda **_: engine,
        max_context_tokens=9000,
    )
    params = SamplingParams(max_reply_tokens=200, max_context_tokens=9000)
    [episode] = Scheduler(rules, engine).play(Wave("train", 0, params, (EpisodeSpec(0, 0, 0, 0, 3),)))
    assert [turn.problem for turn in episode.turns] == ["bad_arguments", "", "", ""]
    assert "'Bob' is not one of" in episode.turns[1].message and "Ann lives at" in episode.turns[2].message
    [shown] = re.findall(r"^```\n(Each reply calls .*?)\n```", EXTENDING, flags=re.DOTALL | re.MULTILINE)
    assert shown in episode.opening[0]["content"]


def test_mix_of_the_page(composed: dict[str, DictConfig]) -> None:
    algo = composed["algo"].algo
    assert (algo.name, algo.clip.high, algo.aggregate._target_.rpartition(".")[2]) == (
        "wide",
        0.5,
        "token_mean",
    )


def test_a_filter_as_the_page_describes_it() -> None:
    def unsolved(*, success_B: torch.Tensor, group_B: torch.Tensor) -> Selection:
        groups = group_B.unique()
        is_open = torch.stack([~success_B[group_B == group].all() for group in groups])
        return Selection(keep_groups=groups[is_open] if is_open.any() else groups, want_more=False)

    try_out("filter", unsolved, Selection, TrajectoryBatch.make_toy().to_dict())
    tensors = {"success_B": torch.tensor([True, True, True, False]), "group_B": torch.tensor([7, 7, 9, 9])}
    assert bind(unsolved, tensors).keep_groups.tolist() == [9]
    tensors["success_B"][3] = True
    assert bind(unsolved, tensors).keep_groups.tolist() == [7, 9]


def test_condenser_of_the_page(composed: dict[str, DictConfig]) -> None:
    context = instantiate(composed["context.condense.count"].context)
    assert not context.is_append_only and context.condense.keywords == {"count": 2}
    past = [
        Turn("P", [1], [0], actions=["Up", "Down"], reward=-0.2),
        Turn("P", [1], [0], problem="no_answer"),
    ]
    assert context.condense([*past[:1], *past]) == "Up Down -0.2\nno_answer +0.0"
    rules = Rules(
        tasks=[load_task_yaml("sokoban")], prompt=Prompt("compact"), chat=ChatRenderer(load_nano().tokenizer),
        engine=NativeEngine, context=context, max_context_tokens=512,
    )  # fmt: skip
    check_prompts(rules)
    with pytest.raises(ValueError, match=r"context\.condense failed: ValueError: count=0 must be >= 1"):
        Single(partial(context.condense, count=0))._condense_turns(past)


def test_callback_of_the_page(composed: dict[str, DictConfig]) -> None:
    section = composed["callbacks"].callbacks
    assert list(section)[-1] == "thinking"
    assert len(section) > 1  # the default ones are still there
    assert type(instantiate(section.thinking)).__name__ == "Thinking"


def test_reward_of_the_page(composed: dict[str, DictConfig]) -> None:
    section = composed["reward.brisk.weight"].reward
    assert list(section) == ["format", "brisk"]
    part = instantiate(section.brisk)
    episodes = [sized(2, success=True), sized(2)]
    assert part.apply([[10.0], [0.0]], episodes, iteration=0) == [[12.0], [0.0]]
    RewardPipeline({"brisk": part}).score(episodes, iteration=0)
    assert [e.training_return for e in episodes] == [2.0, 0.0]


def test_every_reward_part_is_on_its_page() -> None:
    page = (
        (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8").split("\n## Parts\n")[1].split("\n## ")[0]
    )
    options = {file.stem for file in list_options("reward")} - {"none"}
    assert set(re.findall(r"^- `(\w+)`: ", page, flags=re.MULTILINE)) == options


@pytest.mark.slow
def test_every_option_of_a_group_is_on_the_site() -> None:
    pages = load_script("docs_conf").make_pages()
    groups = {name_config(file).rpartition("/")[0] for file in list_configs() if file.stem[0] != "_"}
    groups -= {"", "hydra/help"}
    assert len(groups) > 30
    for name in groups:
        page = pages[f"reference/conf/{name.replace('/', '-')}.md"]
        lacking = {file.stem for file in list_options(name) if f"\n## {file.stem}\n" not in page}
        assert not lacking, (name, lacking)


def commands(page: Path) -> Iterator[str]:
    """The trainings of a page's code blocks, each as one line without the comment behind it."""
    is_code = False
    for line in re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8")).splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif is_code and (found := re.search(r"(?:python train\.py|lit-agentrl train)(?: |$)(.*)", line)):
            yield found[1].partition(" #")[0].strip()


# a page's placeholder, or a part of the user's, that no composition needs to find
OTHERWISE = ("my_conf", "env=mygame", "resume=", "--help", "--cfg", "[key=value")
SHOWN = {
    command: page
    for page in reversed(PAGES)
    if page.parent.name != "findings" and page.name != "CHANGELOG.md"
    for command in commands(page)
    if not any(word in command for word in OTHERWISE)
}
QUICK = ("README.md", "start.md")  # all pages take a minute


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            each,
            marks=() if page.name in QUICK and page.parent in (ROOT, ROOT / "docs") else pytest.mark.slow,
        )
        for each, page in sorted(SHOWN.items())
    ],
)
def test_every_training_of_the_pages_composes(command: str) -> None:
    """A sweep is composed with the first value of each option; `--config-dir` names a folder of the examples."""
    words = shlex.split(command, comments=True)
    search: list[str] = []
    if "--config-dir" in words:
        at = words.index("--config-dir")
        search = format_search_path([ROOT / words[at + 1]])
        del words[at : at + 2]
    if "-m" in words:
        words = [first_value(word) for word in words if word != "-m" and not word.startswith("hydra")]
    compose_job("train", words, search)


def first_value(word: str) -> str:
    """``seed=1`` of ``seed=1,2,3``, and one value of a search."""
    key, _, values = word.partition("=")
    if found := re.match(r"(?:choice|range|tag\(log,interval|interval)\(([^,]+),", values):
        return f"{key}={found[1]}"
    return word if values.startswith(("[", "{")) else f"{key}={values.split(',')[0]}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_script_and_test_of_a_page_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"(?<![\w/.])((?:scripts|tests)/[\w/]+\.(?:py|txt|json))", text)
    files += [f"{name.replace('.', '/')}.py" for name in re.findall(r"-m\s+(scripts\.[\w.]+\w)", text)]
    assert [name for name in files if not (ROOT / name).exists()] == []


NAMED = re.compile(r"(?<![\w./+])(\w+(?:/\w+)*)=([a-z_]+(?:/[a-z_]+)*)(?![\w./(*])")
NO_CHOICES = (
    "data=episodes",
    "algo=grppo",
    "env=mygame",
)  # a folder, a misspelt name, a name of the reader's


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_choice_that_a_page_names_is_there(page: Path) -> None:
    roots = [CONFIG_DIR, CONFIG_DIR / "experimental", *ROOT.glob("examples/*/conf")]
    own = {name.removeprefix("my_conf/") for name, _ in FILES}
    named = {
        (group, choice)
        for group, choice in NAMED.findall(page.read_text(encoding="utf-8"))
        if any((root / group).is_dir() for root in roots) and f"{group}={choice}" not in NO_CHOICES
    }
    files = {f"{group}/{choice}.yaml" for group, choice in named} - own
    assert [name for name in files if not any((root / name).is_file() for root in roots)] == []


def test_the_pages_show_many_commands() -> None:
    assert len(SHOWN) > 110 and sum("algo=" in command for command in SHOWN) > 45


def test_every_command_and_flag_is_on_its_page() -> None:
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    words = [*find_subcommands(), *(flag for flag in FLAGS if flag.startswith("--"))]
    assert [word for word in words if f"`{word}" not in page] == []


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("README.md", "nano"),
        ("docs/models.md", "nano"),
        ("docs/findings/embedded_policy.md", "nano"),
        ("docs/findings/learning.md", "nano_tools"),
    ],
)
def test_size_of_the_embedded_policies(page: str, name: str) -> None:
    with safe_open(NANO_FOLDER.with_name(name) / "model.safetensors", "pt") as weights:
        names = weights.keys()
        size = sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    assert f"{size:,} parameters" in (ROOT / page).read_text(encoding="utf-8")


def test_chance_and_oracle_are_those_that_ship() -> None:
    page = (ROOT / "docs" / "findings" / "worlds.md").read_text(encoding="utf-8")
    entries = json.loads((ROOT / "src/lit_agentrl/envs/games/levels.json").read_text(encoding="utf-8"))[
        "entries"
    ].values()
    for entry in entries:
        found = entry["levels"]
        success, points = (
            [f"{found[f'{who}_{what}']:.{digits}f}" for who in ("chance", "oracle")]
            for what, digits in (("success", 3), ("return", 2))
        )
        row = f"| {entry['task']} | {entry['split']} | {success[0]} | {points[0]} | {success[1]} | {points[1]} |"
        assert row in page, row
