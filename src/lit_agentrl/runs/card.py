"""Write the model card of an exported policy, ``hf/README.md``, from the record of its run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lit_agentrl.callbacks.markup import format_code_block, format_code_span
from lit_agentrl.files import write_atomic
from lit_agentrl.models.packages import PACKAGES, PREFIX
from lit_agentrl.models.reward_model import ABOUT as REWARD_HEAD_FILE
from lit_agentrl.report import held_out
from lit_agentrl.report import summary as reports

_log = logging.getLogger(__name__)
FILE = "README.md"
_MAX_BYTES = 2**20  # most that is read of a base model's card, whose metadata come first
_OWN_LICENSE = "apache-2.0"  # of the embedded policies, which come with this package
USE = """from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
messages = [{"role": "user", "content": "SHOWN"}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
reply = model.generate(**prompt, max_new_tokens=40)[0, prompt["input_ids"].shape[1] :]
print(tokenizer.decode(reply))"""


def add_card(folder: Path) -> None:
    """Write the card of a run that has ended, if it has exported weights.

    A failure is a warning.
    """
    if not (folder / "hf").is_dir():
        return
    try:
        write_card(folder)
    except (ValueError, OSError) as error:
        _log.warning("%s has no card: %s", folder / "hf", error)


def write_card(folder: Path) -> Path:
    """Write the card of a run's ``hf/`` and return its path.

    Raises:
        ValueError: ``summary.json`` does not follow its schema.
        OSError: the summary cannot be read, or the card cannot be written.
    """
    summary = reports.read(folder / "summary.json")
    path = folder / "hf" / FILE
    kind = "reward model" if (folder / "hf" / REWARD_HEAD_FILE).is_file() else "policy"
    write_atomic(path, build_card(summary, read_settings(folder), kind))
    return path


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the composed config of a run as plain data.

    The result is empty if the config cannot be read.
    """
    try:
        settings = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


def build_card(summary: reports.Summary, settings: Mapping[str, Any], kind: str = "policy") -> str:
    """Build the text of a card: metadata in YAML, then Markdown.

    Texts of the record and of the config are data: they stand in code spans and blocks.

    Args:
        summary: the record of the run.
        settings: its composed config as plain data.
        kind: what ``hf/`` holds, ``policy`` or ``reward model``.
    """
    base, hub_id, license_name = describe_base(settings)
    algorithm = str(_select(settings, "algo", "name") or "unknown")
    metadata: dict[str, Any] = {
        "library_name": "transformers",
        "tags": ["lit-agentrl", "reinforcement-learning"],
    }
    metadata |= {"pipeline_tag": "text-generation"} if kind == "policy" else {}
    metadata |= {"base_model": hub_id} if hub_id else {}
    metadata |= {"license": license_name} if license_name else {}
    # data with a coefficient are imitated while training plays
    is_on_data = bool(_select(settings, "data", "path")) and _select(settings, "data", "coef") is None
    worlds = sorted({game["name"] for game in summary["games"]})
    shown = "what the world shows" if summary["games"] else "a prompt, as in the data"
    rows = {
        "base model": format_code_span(base),
        "licence of the base": format_code_span(license_name) if license_name else "not known",
        "algorithm": format_code_span(algorithm),
        "worlds": ", ".join(map(format_code_span, worlds)) or "none",
        "training": f"{summary['iterations']} of {summary['planned_iterations']} iterations, {summary['episodes']} "
        f"episodes, {summary['action_tokens']} {'learnt' if is_on_data else 'sampled'} tokens",
        "weights": describe_weights(summary),
        "end of the run": format_code_span(" ".join(filter(None, [summary["status"], summary["error"]]))),
        "seed": str(summary["seed"]),
        "commit of lit_agentrl": format_code_span(summary["git_revision"] or "not known"),
        "versions": format_code_span(", ".join(f"{k} {v}" for k, v in sorted(summary["versions"].items()))),
    }
    return "\n".join([
        "---", yaml.safe_dump(metadata, sort_keys=False).rstrip(), "---", "",
        f"# A {kind} trained by {format_code_span(algorithm)}", "",
        "Trained with lit_agentrl. This card was written from the record of the run.", "",
        "| | |", "|---|---|", *(f"| {name} | {_format_cell(text)} |" for name, text in rows.items()), "",
        *format_scores(summary),
        "## Command", "", format_code_block(summary["command"]), "",
        *(["## Use", "", format_code_block(USE.replace("SHOWN", shown)), ""] if kind == "policy" else []),
    ])  # fmt: skip


def format_scores(summary: reports.Summary) -> Iterator[str]:
    """Format the tables of scores line by line; nothing if nothing was measured."""
    measured = held_out.format_markdown(summary["held_out"], reports.STAGES)
    if measured:
        yield from (
            "## Held-out data",
            "",
            "Groups of the data set that were not trained on.",
            "",
            *measured,
            "",
        )
    if not summary["games"]:
        return
    yield from ("## Scores", "")
    yield from (
        "Success and return (undiscounted, of the environment), with 95 % intervals over n tasks.",
        "",
    )
    yield from (
        "| world | split | policy | iteration | n | success | return |",
        "|---|---|---|---|---|---|---|",
    )
    for game in summary["games"]:
        for stage in ("chance", *reports.STAGES, "oracle"):
            score: reports.Score | None = game[stage]  # type: ignore[literal-required]
            iteration, number = (score["iteration"], score["success"]["n"]) if score else (None, "–")
            estimates = [
                reports.format_estimate(score[key]) if score else "–" for key in ("success", "return")
            ]
            cells = [
                format_code_span(game["name"]), format_code_span(game["split"]), stage,
                "–" if iteration is None else str(iteration), str(number), *estimates,
            ]  # fmt: skip
            yield f"| {' | '.join(map(_format_cell, cells))} |"
    yield ""


def describe_weights(summary: reports.Summary) -> str:
    """Describe which weights of the run ``hf/`` holds."""
    best = summary["monitored"]
    if best is None:
        return f"the last, of iteration {summary['iterations']}"
    extreme = "highest" if best["mode"] == "max" else "lowest"
    return f"of iteration {best['iteration']}, chosen by the {extreme} {format_code_span(best['name'])}"


def describe_base(settings: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    """Describe the model that training began from.

    Returns its name, its id on the hub and its licence; the last two are None if they are not known.  Nothing is
    downloaded.
    """
    name = str(_select(settings, "model", "name") or "")
    if str(_select(settings, "model", "_target_")).endswith(".load_nano"):
        return f"{name or 'nano'}, embedded in lit_agentrl", None, _OWN_LICENSE
    if name.startswith(PREFIX):
        package = PACKAGES.get(name.removeprefix(PREFIX))
        return package.note if package else name, None, package.license.lower() if package else None
    if not name:
        return "not known", None, None
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.name, None, read_license(folder / FILE)
    if not _is_hub_id(name):
        return folder.name, None, None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, FILE)
    return name, name, read_license(Path(cached)) if isinstance(cached, str) else None


def read_license(card: Path) -> str | None:
    """Read the licence from the metadata of a model card; None if it names none."""
    try:
        with open(card, encoding="utf-8") as file:
            head = file.read(_MAX_BYTES).split("---", 2)
        metadata = yaml.safe_load(head[1]) if len(head) == 3 and not head[0].strip() else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(metadata, dict):
        return None
    name = metadata.get("license_name") or metadata.get("license")
    return name if isinstance(name, str) and 0 < len(name) <= 64 and name.isprintable() else None


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name


def _select(settings: Mapping[str, Any], *keys: str) -> Any:
    value: Any = settings
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _format_cell(text: str) -> str:
    """Escape what would end a cell of a table."""
    return text.replace("|", "\\|")
