"""Push the exported policy of a run to the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.config.errors import UserError, get_first_line
from lit_agentrl.runs.card import FILE, write_card
from lit_agentrl.runs.run_folder import require_idle

TOKEN = "HF_TOKEN"


def push(folder: Path, repo: str, *, is_public: bool) -> str:
    """Push ``hf/`` of a run with its card, and return the address of the commit.

    An existing card is pushed unchanged.

    Args:
        folder: the run folder.
        repo: ``USER/NAME`` or ``ORGANISATION/NAME``; it is made if it does not exist.
        is_public: whether everybody may see the repo.

    Raises:
        UserError: there is no token or no export, the repo is public although ``is_public`` is false, or the hub
            refuses or cannot be reached.
    """
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise UserError(
            f"{TOKEN} is not set; put a token with write access (huggingface.co/settings/tokens) into this environment "
            "variable"
        )
    require_export(folder)
    from huggingface_hub import HfApi
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"repo={repo} is not the name of a repo; write repo=USER/NAME") from error
    api = HfApi(token=token)
    try:
        api.create_repo(repo, private=not is_public, repo_type="model", exist_ok=True)
        is_private = api.repo_info(repo, repo_type="model").private
        if is_private is not True and not is_public:
            raise UserError(f"repo={repo} exists and is public; add public=true, or choose another")
        commit = api.upload_folder(
            repo_id=repo, folder_path=folder / "hf", commit_message="Policy trained by lit_agentrl"
        )
    except UserError:
        raise
    # versions of the client use different HTTP libraries, which raise errors of their own
    except Exception as error:
        raise UserError(
            f"repo={repo} could not be pushed: {get_first_line(error).replace(token, '…')}; check that this machine "
            f"reaches the hub, and that {TOKEN} may write there"
        ) from error
    return escape_unprintable(str(commit.commit_url))


def require_export(folder: Path) -> None:
    """Refuse a run that has no export or is in use.

    A card is written if there is none.

    Raises:
        UserError: there is no folder or no export, a process uses the run, a link leads out of ``hf/``, or the card
            cannot be written.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder of a run, such as outputs/DATE/TIME")
    require_idle("run", folder)
    export = folder / "hf"
    if not (export / "config.json").is_file():
        raise UserError(f"{folder} holds no policy: there is no hf/config.json; a run writes it when it ends")
    root = export.resolve()
    for path in export.rglob("*"):  # somebody else's run could hold a link to a file of this user
        if not path.resolve().is_relative_to(root) or not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} leads out of hf/ or is not a file; remove it, and push again")
    if (export / FILE).is_file():
        return
    try:
        write_card(folder)
    except (ValueError, OSError) as error:
        raise UserError(f"no card can be made for {export}: {get_first_line(error)}") from error
