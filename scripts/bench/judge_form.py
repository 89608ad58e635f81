"""Training rows for a small policy's answers as a judge, with demonstrations of play.

    lit-agentrl collect model=nano env=sokoban episodes=80 members=6 out=EPISODES
    python -m scripts.bench.judge_form --data EPISODES --out rows.jsonl
    python train.py algo=sft data=demonstrations data.path=rows.jsonl data.batch=12 rollout.max_context_tokens=1024 \\
        env=sokoban optim.lr=3e-3 optim.schedule=cosine trainer.max_epochs=150 val.every=150 test.episodes=0

A verdict names the episode with the higher reward, and its critique is one word.  The rows have at most six pairs of
each room, then the solved episodes; see docs/findings/preferences.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_agentrl.data.episodes import open_folder
from lit_agentrl.episode import Episode
from lit_agentrl.judging import Criteria

CRITERIA = Criteria(principles=["Each box stands on a target."], most_characters=200)
PAIRS_OF_A_ROOM = 6


def make_verdict(first: Episode, second: Episode) -> dict[str, Any]:
    """Return the question that `lit-agentrl label` asks, and a reply in the format it parses."""
    one, other = first.total_reward, second.total_reward
    better = "1" if one > other else "2" if one < other else "tie"
    reply = f"<critique>go</critique>\n<better>{better}</better>"
    asked = {"role": "user", "content": CRITERIA.ask_better(first, second)}
    return {"messages": [asked, {"role": "assistant", "content": reply}]}


def make_dialogue(episode: Episode) -> dict[str, Any]:
    """Return the dialogue of an episode."""
    messages = list(episode.opening)
    for number, turn in enumerate(episode.turns):
        if number and turn.message:
            messages.append({"role": "user", "content": turn.message})
        messages.append({"role": "assistant", "content": turn.reply_text})
    return {"messages": messages}


def make_rows(episodes: Sequence[Episode], most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` verdicts and ``most`` solved episodes, in a fixed order."""
    rng, rooms = random.Random(0), dict[str, list[Episode]]()
    for episode in episodes:
        rooms.setdefault(episode.opening[-1]["content"], []).append(episode)
    verdicts = []
    for room in rooms.values():
        pairs = [(a, b) for a in room for b in room if a is not b]
        rng.shuffle(pairs)
        verdicts += [make_verdict(*pair) for pair in pairs[:PAIRS_OF_A_ROOM]]
    rng.shuffle(verdicts)
    found = verdicts[:most] + [make_dialogue(episode) for episode in episodes if episode.success][:most]
    rng.shuffle(found)
    return found


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(description="Rows that teach the form of a judge.")
    parser.add_argument("--data", type=Path, required=True, help="a folder of lit-agentrl collect")
    parser.add_argument("--out", type=Path, required=True, help="the .jsonl file that is written")
    parser.add_argument("--most", type=int, default=480, help="verdicts, and solved episodes")
    given = parser.parse_args()
    if (folder := open_folder(given.data)) is None:
        parser.error(f"--data={given.data} is no folder of lit-agentrl collect")
    found = make_rows(list(folder.read()), given.most)
    given.out.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    print(f"{len(found)} rows in {given.out}")


if __name__ == "__main__":
    main()
