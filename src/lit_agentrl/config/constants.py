"""Constants that an algorithm sets for an option: they hold while that option is chosen, and fall away with it.

An algorithm's YAML lists them under ``constants``, by option::

    constants:
      clip/clip_higher: {low: 3.0e-4, high: 4.0e-4}  # algo.clip.low and .high, under algo/clip=clip_higher
      /filter/top_std: {ratio: 0.5}  # with a slash in front: a group outside of algo

They are merged where the algorithm's own file is: over the option's file, under experiments and the command line. An
option that the command line or an experiment chooses is taken as its own file has it, without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hydra._internal.hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

KEY = "constants"
# options of earlier versions: those that only set constants of another one, and those that stand elsewhere
REMOVED = {
    "algo/advantage=gvpo": "algo=gvpo",
    "algo/advantage=gae_token_mc": "algo/advantage=gae_token algo.advantage.gae_lambda=1.0",
    "algo/advantage=gae_token_raw": (
        "algo/advantage=gae_token algo.advantage.gae_lambda=1.0 algo.advantage.whiten=false"
    ),
    "algo/clip=asymmetric_seed": "algo/clip=clip_higher algo.clip.low=0.15 algo.clip.high=0.25",
    "algo/clip=sequence": "algo/clip=clip_higher algo.clip.low=3.0e-4 algo.clip.high=4.0e-4",
    "algo/clip=symmetric_reciprocal": (
        "algo/clip=symmetric algo.clip.epsilon=0.1 algo.clip.lower=reciprocal"
    ),
    "algo/entropy=bonus_a3c": "algo/entropy=bonus algo.entropy.coef=0.01",
    "algo/kl=reward_k1_small": "algo/kl=reward_k1 algo.kl.coef=0.001",
    "algo/rows=best": "algo/rows=abs_advantage algo.rows.threshold=1.0",
    "rollout.overlap_device": "worker=process worker.device=…",
    "rollout.overlap_threads": "worker=process worker.threads=…",
    "rollout.overlap_patience": "worker=process worker.patience=…",
    "filter=top_std_half": "filter=top_std filter.ratio=0.5",
    "filter=top_std_quarter": "filter=top_std filter.ratio=0.25",
}


class Loader(ConfigLoaderImpl):
    """Hydra's loader of configs, which knows the constants of algorithms."""

    def repository_with(self, overrides: Sequence[str]) -> IConfigRepository:
        """The configs that a command with these overrides, such as ``hydra.searchpath``, may choose."""
        return self._parse_overrides_and_create_caching_repo(None, list(overrides))[1]

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **kwargs: Any
    ) -> DictConfig:
        self._typed = {each.key_or_group for each in OverridesParser.create().parse_overrides(overrides)}
        return super().load_configuration(config_name, overrides, *args, **kwargs)

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        told = set(self._typed)
        for path in {str(d.config_path) for d in defaults if d.config_path}:
            if not path.startswith(
                ("algo/", "hydra/")
            ):  # an algorithm's own choices are what its constants are for
                found = repo.load_config(path)
                given = (found.defaults_list or ()) if found else ()
                told |= {
                    str(each.group).lstrip("/")
                    for each in given
                    if isinstance(each, GroupDefault) and each.is_override()
                }
        # an option that another one starts from is no choice, and has no key
        self._chosen = {d.config_path: d.package for d in defaults if d.override_key not in (None, *told)}
        cfg = super()._compose_config_from_defaults_list(defaults, repo)
        _open_tables(OmegaConf.to_container(cfg, resolve=False), "", cfg)
        return cfg

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        found = super()._load_single_config(default, repo)
        path = str(default.config_path)
        if path.rpartition("/")[0] != "algo" or not isinstance(found.config, DictConfig):
            return found
        constants = OmegaConf.select(found.config, default.package or "").pop(KEY, None) or {}
        for option, values in constants.items():
            option = option[1:] if option.startswith("/") else f"algo/{option}"
            if not repo.config_exists(option):
                raise ConfigCompositionException(f"{path}.yaml sets constants of {option}, and there is none")
            if package := self._chosen.get(option):
                OmegaConf.update(found.config, package, values, force_add=True)
        return found


def _open_tables(node: Any, path: str, cfg: DictConfig) -> None:
    """Let arguments of a part that are an empty table, for names of the user's, take entries without a ``+``."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        inner = f"{path}.{key}" if path else str(key)
        if value == {} and "_target_" in node:
            OmegaConf.set_struct(OmegaConf.select(cfg, inner), False)
        _open_tables(value, inner, cfg)


hydra._internal.hydra.ConfigLoaderImpl = Loader  # type: ignore[misc]  # Hydra 1.3 has no hook after merging
