"""Storage of evaluation results in the run folder, if it is writable."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import format_value, require_local
from lit_agentrl.config.errors import UserError, get_first_line
from lit_agentrl.config.overrides import VARIANT
from lit_agentrl.evaluate.options import as_list
from lit_agentrl.files import write_atomic
from lit_agentrl.runs.run_folder import lock_folder

# keys of a record that the table of scores reads
_READ = {
    "env", "model", "shots", "temperature", "success", "return", "normalised", "levels", "cut_share", "reply_tokens"
}  # fmt: skip


def describe_options(cfg: DictConfig) -> dict[str, Any]:
    """Return the options by which a repeated evaluation finds its file."""
    options = cast(dict[str, Any], OmegaConf.to_container(cfg))
    options.pop("compare")
    options.pop("ratings")
    return options


def read_compared(cfg: DictConfig) -> list[dict[str, Any]]:
    """Read the records of the files that ``compare`` names.

    Raises:
        UserError: a file is no evaluation of this split and these options of the game; the message names the file.
    """
    records: list[dict[str, Any]] = []
    for name in as_list(cfg.compare) if cfg.compare is not None else []:
        require_local("compare", name)
        try:
            content = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
            config, found = content["config"], content["results"]
            models = {record["model"] for record in found}
            needed = _READ | {"solved"} if cfg.ratings else _READ
            missing = needed - set.intersection(*map(set, found))
            if not missing:
                _check_types(config, found)
        except OSError as error:
            raise UserError(f"compare={name} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"compare={name} is no file that evaluate of this version wrote; name one of outputs/evaluations"
            ) from error
        if missing:
            raise UserError(f"compare={name} lacks {min(missing)}; evaluate it by this version")
        for key in ("split", VARIANT):
            if (other_value := config.get(key)) != (own_value := describe_options(cfg).get(key)):
                raise UserError(
                    f"compare={name} was played with {key}={format_value(other_value)}, here it is "
                    f"{format_value(own_value)}; leave it out, or evaluate both alike"
                )
        run = config.get("run")
        by = {model: f"{model} of {Path(run).name}" if run else model for model in models}
        records += [record | {"model": by[record["model"]]} for record in found]
    return records


def _check_types(config: Any, records: Any) -> None:
    """Refuse what the table of scores cannot show.

    Raises:
        TypeError or KeyError: something is of another type, or missing.
    """
    if not isinstance(config, dict) or not isinstance(config.get("run"), str | None):
        raise TypeError
    for record in records:
        numbers = [
            record["success"]["mean"],
            record["return"]["mean"],
            record["temperature"],
            record["cut_share"],
        ]
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError
        if not {"chance_success", "oracle_success"} <= set(record["levels"]):
            raise KeyError


def can_write(folder: Path) -> bool:
    """Check, before anything is played, whether a folder is writable; warn if it is not."""
    try:
        parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.NamedTemporaryFile(dir=parent):  # `write_results` creates the folder itself later
            return True
    except OSError as error:
        _warn_not_written(folder, error)
        return False


def write_results(folder: Path, name: str, content: dict[str, Any]) -> Path | None:
    """Write results to a file and return its path.

    If that fails, as on a full disk, warn the user and return None.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):  # other processes may evaluate the same run
            target = _find_target(folder, name, content["config"])
            write_atomic(target, json.dumps(content, indent=2) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:  # also from a damaged file of that name
        _warn_not_written(folder / f"{name}.json", error)
        return None
    return target


def _find_target(folder: Path, name: str, config: Any) -> Path:
    """Find the file for a set of options; repeating an evaluation overwrites its file."""
    for number in itertools.count(1):
        target = folder / f"{name}{'' if number == 1 else f'_{number}'}.json"
        if not target.exists() or json.loads(target.read_text())["config"] == config:
            return target
    raise AssertionError("unreachable: count() does not end")


def _warn_not_written(path: Path, error: Exception) -> None:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else get_first_line(error)
    print(f"warning: {path} cannot be written ({reason}): results are shown but not saved", file=sys.stderr)
