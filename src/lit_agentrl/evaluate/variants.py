"""Variants of a game: ``env.KEY=VALUE`` options of ``evaluate.py``."""

from __future__ import annotations

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.games import TaskLoader, load_game, read_game_names
from lit_agentrl.checks import name_errors
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import VARIANT, parse
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.envs.base import Task


def find_games(cfg: DictConfig, saved: DictConfig, load_task: TaskLoader) -> TaskLoader:
    """Find the games to evaluate, and apply the given options to the game.

    Args:
        cfg: ``env`` holds names or null; may also hold options of the game.
        saved: the run's config with these names; its own game is changed in place.
        load_task: finds the config of a game by name.

    Returns:
        A replacement of ``load_task`` that returns the changed game.

    Raises:
        UserError: no game has that name, options are given for several games, or the game lacks an option.
    """
    own_name = saved.env.get("name")  # a mixture has none
    try:
        names = read_game_names("env", saved.test.envs, _list_trained_games(saved))
        for name in names if cfg.env is not None else ():
            if name != own_name:
                load_game(load_task, name, f"env={name}")
    except ValueError as error:
        raise UserError(str(error)) from error
    texts = list(cfg.get(VARIANT) or ())
    if not texts:
        return load_task
    if len(names) > 1:
        raise UserError(
            f"{texts[0]} changes one game, and {', '.join(names)} are evaluated; choose it with env=NAME"
        )
    game = saved.env if names[0] == own_name else load_task(names[0])
    for override in parse(texts):
        key = override.key_or_group.removeprefix("env.")
        if key == "name":
            raise UserError(
                f"{override.input_line}: the name of a game cannot change; env={override.value()} plays another game"
            )
        OmegaConf.update(game, key, override.value(), force_add=True)
    check_targets(OmegaConf.create({"env": game}))
    task = instantiate(game)
    if isinstance(task, Task) and task.hosting.where == "inline":
        with name_errors("env"):
            task.make(cfg.split).close()  # errors here can name the option as typed
    return lambda name: game if name == names[0] else load_task(name)


def _list_trained_games(saved: DictConfig) -> list[str]:
    weights = saved.env.get("weights")
    return [saved.env.name] if weights is None else [str(name) for name, weight in weights.items() if weight]
