"""Songs and playlists."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import PAGE, TEXT, Phone, Refused, Row, find_rows, get_page, make_api


def _search(phone: Phone, query: str, page: int = 1) -> Row:
    return get_page(find_rows(phone.get_rows("songs"), query, "title", "artist"), page)


def _like(phone: Phone, song: str) -> Row:
    row = phone.get_row("songs", song)
    row["liked"] = True
    return row


def _get_playlist(phone: Phone, name: str) -> Row:
    for row in phone.get_rows("lists"):
        if row["name"] == name:
            return row
    raise Refused(f"there is no playlist {name}")


def _create(phone: Phone, name: str) -> Row:
    if any(row["name"] == name for row in phone.get_rows("lists")):
        raise Refused(f"there is a playlist {name} already")
    return phone.add("lists", name=name, songs=[])


def _put(phone: Phone, playlist: str, song: str) -> Row:
    row, title = _get_playlist(phone, playlist), phone.get_row("songs", song)["title"]
    row["songs"] = sorted({*row["songs"], title})
    return row


def _take_out(phone: Phone, playlist: str, song: str) -> Row:
    row, title = _get_playlist(phone, playlist), phone.get_row("songs", song)["title"]
    if title not in row["songs"]:
        raise Refused(f"{title} is not in {playlist}")
    row["songs"] = [song_title for song_title in row["songs"] if song_title != title]
    return row


_SONG = {**TEXT, "description": "its id"}

APIS = (
    make_api(
        "music_search", "Finds songs by a part of title or artist.", _search, {"page": PAGE}, query=TEXT
    ),
    make_api("music_like", "Likes a song.", _like, song=_SONG),
    make_api("music_playlists", "Lists the playlists.", lambda phone: phone.get_rows("lists")),
    make_api("music_create", "Makes an empty playlist.", _create, name=TEXT),
    make_api("music_put", "Puts a song into a playlist.", _put, playlist=TEXT, song=_SONG),
    make_api("music_take_out", "Takes a song out of a playlist.", _take_out, playlist=TEXT, song=_SONG),
)
