"""Rows of table episodes, with every column that a run gives an objective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch, list_columns
from lit_agentrl.certificates.exact import Table, compute_entropies, compute_log_probs, compute_values
from lit_agentrl.certificates.games import Path
from lit_agentrl.episode import Segment

Tensors = dict[str, Tensor]
PATH = "path_B"  # column with the index of a row's episode among the paths of the game


class RowMaker:
    """Maker of the rows of groups from one row for each episode of the game.

    Args:
        table: the game with its episodes and policies.

    Attributes:
        place_MT: position in its row of each sampled token of each episode; -1 where there is none.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._layout = [_arrange_tokens(path) for path in table.paths]
        self.place_MT = self._place_tokens()
        self._columns = self._make_columns()

    def make(self, groups: Sequence[Sequence[int]]) -> Tensors:
        """Return the rows of groups; a group lists the indices of its members' episodes."""
        path_B = torch.tensor([path for group in groups for path in group])
        group_B = torch.tensor([number for number, group in enumerate(groups) for _ in group])
        rows = torch.arange(len(path_B))
        tensors = {name: column[path_B] for name, column in self._columns.items()}
        members = [member for group in groups for member in range(len(group))]
        width = tensors["tokens_BT"].shape[1]
        return tensors | {
            PATH: path_B, "group_B": group_B, "member_B": torch.tensor(members), "trajectory_B": rows,
            "tree_B": rows, "node_BT": torch.arange(len(rows) * width).view(len(rows), width),
        }  # fmt: skip

    def place(self, value_MT: Tensor) -> Tensor:
        """Place one number for each sampled token in the rows; 0 elsewhere."""
        is_placed_MT = self.place_MT >= 0
        out = value_MT.new_zeros((len(value_MT), self._width, *value_MT.shape[2:]))
        m_N, t_N = is_placed_MT.nonzero(as_tuple=True)
        out[m_N, self.place_MT[m_N, t_N]] = value_MT[m_N, t_N]
        return out

    @property
    def _width(self) -> int:
        return max(len(layout) for layout in self._layout)

    def _place_tokens(self) -> Tensor:
        place_MT = torch.full(self._table.slot_MT.shape, -1)
        for m, layout in enumerate(self._layout):
            for place, t in enumerate(layout):
                if t is not None:
                    place_MT[m, t] = place
        return place_MT

    def _make_columns(self) -> Tensors:
        table, B, T = self._table, len(self._table.paths), self._width
        K = max(path.tokens[-1].turn for path in table.paths) + 1
        sizes = {"_BT": (B, T), "_BK": (B, K), "_B": (B,)}
        columns: Tensors = {}
        for name, spec in list_columns(TrajectoryBatch).items():
            dtype = torch.float64 if spec.dtype.is_floating_point else spec.dtype
            columns[name] = torch.full(sizes[name[name.rindex("_") :]], spec.fill, dtype=dtype)
        states = list(dict.fromkeys(token.state for path in table.paths for token in path.tokens))
        for m, (path, layout) in enumerate(zip(table.paths, self._layout, strict=True)):
            columns["is_real_BT"][m, : len(layout)] = True
            columns["segment_BT"][m, : len(layout)] = Segment.THINK
            columns["tokens_BT"][m, 0] = 100 + path.prompt
            last_sampled = -1
            for place, t in enumerate(layout):
                token = path.tokens[t if t is not None else last_sampled + 1]
                columns["turn_BT"][m, place] = token.turn
                if t is None:
                    columns["state_key_BK"][m, token.turn] = 1 + states.index(token.state)
                    continue
                last_sampled = t
                columns["tokens_BT"][m, place] = 1 + token.choice
                columns["is_action_BT"][m, place] = True
                columns["is_turn_end_BT"][m, place] = token.move.ends_turn
                columns["reward_BT"][m, place] = token.move.reward
                columns["policy_version_BT"][m, place] = 0
        best_return_P = torch.stack(
            [table.return_M[table.prompt_M == p].max() for p in range(table.num_prompts)]
        )
        columns |= {
            "return_B": table.return_M.clone(), "task_B": table.prompt_M.clone(),
            "success_B": table.return_M >= best_return_P[table.prompt_M] - 1e-12,
            "baseline_B": self._find_greedy_returns(),
        }  # fmt: skip
        old_BT = self.place(compute_log_probs(table, table.old))
        value_BT = self.place(compute_values(table, table.old))
        columns |= {f"{prefix}value_BT": value_BT for prefix in ("", "old_", "target_")}
        columns |= {f"{prefix}cost_value_BT": 0 * value_BT for prefix in ("", "old_")}
        return columns | {
            "old_logp_BT": old_BT, "sampler_logp_BT": old_BT,
            "sampler_entropy_BT": self.place(compute_entropies(table, table.old)),
            "ref_logp_BT": self.place(compute_log_probs(table, table.reference)),
        }  # fmt: skip

    def _find_greedy_returns(self) -> Tensor:
        """Return, for each episode, the return of the likeliest tokens of its prompt, (M,)."""
        table, by_prompt = self._table, {}
        for path in table.paths:
            logits = {t.state: table.game.logits.get(t.state, ()) for t in path.tokens}
            is_greedy = all(
                token.choice
                == (logits[token.state].index(max(logits[token.state])) if logits[token.state] else 0)
                for token in path.tokens
            )
            if is_greedy:
                by_prompt[path.prompt] = path.total
        return torch.tensor([by_prompt[path.prompt] for path in table.paths], dtype=torch.float64)


def _arrange_tokens(path: Path) -> list[int | None]:
    """Return the index of each token of a row; None: the world wrote it."""
    layout: list[int | None] = []
    for t, token in enumerate(path.tokens):
        if t == 0 or path.tokens[t - 1].turn != token.turn:
            layout.append(None)
        layout.append(t)
    return layout
