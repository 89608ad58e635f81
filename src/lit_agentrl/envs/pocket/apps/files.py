"""Text files in folders."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import TEXT, Phone, Refused, Row, make_api


def _list(phone: Phone, folder: str) -> list[Row]:
    rows = [row for row in phone.get_rows("files") if row["folder"] == folder]
    return [{"id": row["id"], "name": row["name"]} for row in rows]


def _list_folders(phone: Phone) -> list[str]:
    return sorted({row["folder"] for row in phone.get_rows("files")})


def _move(phone: Phone, id: str, folder: str) -> Row:
    row = phone.get_row("files", id)
    if any(file["folder"] == folder and file["name"] == row["name"] for file in phone.get_rows("files")):
        raise Refused(f"{folder} has a file {row['name']} already")
    row["folder"] = folder
    return row


APIS = (
    make_api("files_folders", "Lists the folders.", _list_folders),
    make_api("files_list", "Lists the files of a folder.", _list, folder=TEXT),
    make_api("files_read", "Reads a file.", lambda phone, id: phone.get_row("files", id), id=TEXT),
    make_api("files_move", "Moves a file into a folder, also a new one.", _move, id=TEXT, folder=TEXT),
    make_api("files_delete", "Deletes a file.", lambda phone, id: phone.remove("files", id), id=TEXT),
)
