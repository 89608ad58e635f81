"""Variants of a game: what ``env.KEY=VALUE`` changes of the one that ``evaluate.py`` plays."""

from __future__ import annotations

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.games import TaskLoader, game_names, load_game
from lit_agentrl.checks import name_errors
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import VARIANT, parse
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.envs.base import Task


def find_games(cfg: DictConfig, saved: DictConfig, load_task: TaskLoader) -> TaskLoader:
    """Find the games to be evaluated, and change the one whose options are given.

    Args:
        cfg: with ``env``, names or null, and perhaps options of the game.
        saved: the run's config with these names; its own game is changed in place.
        load_task: finds the config of a game by name.

    Returns:
        What finds them from then on.

    Raises:
        UserError: no game of that name, several whose options cannot be told apart, or an option that it lacks.
    """
    own = saved.env.get("name")  # a mixture has none
    try:
        names = game_names("env", saved.test.envs, _trained(saved))
        for name in names if cfg.env is not None else ():
            if name != own:
                load_game(load_task, name, f"env={name}")
    except ValueError as error:
        raise UserError(str(error)) from error
    texts = list(cfg.get(VARIANT) or ())
    if not texts:
        return load_task
    if len(names) > 1:
        raise UserError(
            f"{texts[0]} changes one game, and {', '.join(names)} are evaluated; name it: env=NAME"
        )
    game = saved.env if names[0] == own else load_task(names[0])
    for override in parse(texts):
        key = override.key_or_group.removeprefix("env.")
        if key == "name":
            raise UserError(
                f"{override.input_line}: the name of a game stays; env={override.value()} plays another"
            )
        OmegaConf.update(game, key, override.value(), force_add=True)
    check_targets(OmegaConf.create({"env": game}))
    task = instantiate(game)
    if isinstance(task, Task) and task.hosting.where == "inline":
        with name_errors("env"):
            task.make(cfg.split).close()  # here the option has the name by which it was typed
    return lambda name: game if name == names[0] else load_task(name)


def _trained(saved: DictConfig) -> list[str]:
    weights = saved.env.get("weights")
    return [saved.env.name] if weights is None else [str(name) for name, weight in weights.items() if weight]
