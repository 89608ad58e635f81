"""A corridor as an OpenEnv server: python server.py 8300, in an environment with openenv (pip install openenv)."""

import sys
from random import Random
from typing import Any, Literal

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State

LENGTH, MOST = 12, 1024  # squares; games at a time


class Move(Action):
    """One step."""

    move: Literal["Left", "Right"]


class Seen(Observation):
    """The corridor from above."""

    corridor: str


class Corridor(Environment):
    """A player P and a door D; 1 point at the door."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Seen:
        self.player, self.door = Random(seed).sample(range(LENGTH), 2)
        self.count, self.name = 0, episode_id
        return self.see()

    def step(self, action: Move, timeout_s: float | None = None, **options: Any) -> Seen:
        self.count += 1
        self.player = min(max(self.player + (1 if action.move == "Right" else -1), 0), LENGTH - 1)
        return self.see()

    def see(self) -> Seen:
        squares = ("P" if i == self.player else "D" if i == self.door else "_" for i in range(LENGTH))
        found = self.player == self.door
        return Seen(corridor=" ".join(squares), done=found, reward=float(found))

    @property
    def state(self) -> State:
        return State(episode_id=self.name, step_count=self.count, player=self.player, door=self.door)

    def get_metadata(self) -> EnvironmentMetadata:
        told = "Go to the door D. You are P.\nRewards: 1 at the door."
        return EnvironmentMetadata(name="corridor", description=told, version="1")


if __name__ == "__main__":
    app = create_fastapi_app(Corridor, Move, Seen, max_concurrent_envs=MOST)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
