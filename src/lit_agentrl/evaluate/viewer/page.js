// The page of `lit-agentrl view`.  Texts of episodes only ever become text nodes, so that none is read as markup.
"use strict";

const POLL_MS = 2000;
const KINDS = ["prompt", "observation", "forced", "think", "answer", "other", "past"];
const SAID = {
  prompt: "prompt", observation: "observation", forced: "template", think: "thought", answer: "answer or action", other: "other reply",
  past: "earlier reply, shown again",
};
const OUTCOMES = ["success", "failure", "truncated", "invalid", "error"];
const MOST_NATS = 4; // of -log p or entropy, shaded fully
const $ = (id) => document.getElementById(id);
const state = { run: null, revision: -1, panes: [], shade: "kind", split: "train", filter: "" };

function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== "") element.textContent = text;
  return element;
}

async function get(path, query = {}) {
  const reply = await fetch(path + "?" + new URLSearchParams(query));
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

function format(number, digits = 3) {
  if (number === null || number === undefined) return "–";
  return (number > 0 ? "+" : number < 0 ? "−" : "") + Math.abs(Number(number.toPrecision(digits)));
}

const count = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;

const iterations = () => (state.run ? state.run.splits[state.split] : []);

class Pane {
  constructor(other) {
    this.root = $("pane").content.firstElementChild.cloneNode(true);
    const find = (name) => this.root.querySelector("." + name);
    for (const name of ["previous", "next", "iteration", "newest", "count", "list", "episode"]) this[name + "Element"] = find(name);
    this.iteration = null; // the chosen one
    this.episodes = [];
    this.chosen = null; // summary of the chosen episode
    this.asked = 0; // number of the newest request, whose answer alone is shown
    this.newestElement.checked = !other;
    this.iterationElement.onchange = () => this.choose(Number(this.iterationElement.value));
    this.previousElement.onclick = () => this.step(-1);
    this.nextElement.onclick = () => this.step(1);
    this.newestElement.onchange = () => this.update();
    $("panes").append(this.root);
  }

  step(by) {
    const all = iterations().map((each) => each.iteration);
    const next = all[all.indexOf(this.iteration) + by];
    if (next !== undefined) this.choose(next);
  }

  choose(iteration) {
    this.newestElement.checked = false;
    this.iteration = iteration;
    this.update();
  }

  async update() {
    const all = iterations();
    const known = all.map((each) => each.iteration);
    if (this.newestElement.checked || !known.includes(this.iteration)) this.iteration = known.at(-1) ?? null;
    this.iterationElement.replaceChildren(...all.map((each) => {
      const option = make("option", "", `iteration ${each.iteration}: ${each.success} of ${each.episodes} solved`);
      option.value = each.iteration;
      return option;
    }));
    this.iterationElement.value = this.iteration;
    this.iterationElement.disabled = !all.length;
    const place = known.indexOf(this.iteration);
    this.previousElement.disabled = place <= 0;
    this.nextElement.disabled = place < 0 || place === known.length - 1;
    const asked = ++this.asked;
    let episodes = [];
    if (this.iteration !== null) ({ episodes } = await get("/api/episodes", { split: state.split, iteration: this.iteration }));
    if (asked !== this.asked) return;
    this.episodes = episodes;
    this.showList();
  }

  showList() {
    const shown = this.episodes.filter((each) => !state.filter || each.outcomes.includes(state.filter));
    this.countElement.textContent = state.filter ? `${shown.length} of ${this.episodes.length} episodes` : "";
    this.listElement.replaceChildren(...shown.map((each) => this.makeRow(each)));
    if (!shown.length) this.listElement.append(make("p", "empty", this.episodes.length ? "no such episode in this iteration" : "no episodes are recorded yet"));
    const wanted = this.chosen;
    const same = wanted && (shown.find((each) => isSame(each, wanted) && each.line === wanted.line) ?? findSame(shown, wanted));
    const next = same || shown[0] || null;
    const isShown = next && this.shown === nameEpisode(next);
    if (!next) {
      this.shown = null;
      this.episodeElement.replaceChildren();
    } else if (isShown) this.mark();
    else this.open(next);
  }

  makeRow(each) {
    const row = make("button", "row");
    row.line = each.line;
    row.append(make("span", each.outcomes[0], each.outcomes[0]), ` ${format(each.return)} `);
    for (const outcome of each.outcomes.slice(1)) row.append(make("span", outcome, ` · ${outcome}`));
    row.append(make("small", "", `group ${each.group}, member ${each.member} · ${count(each.turns, "turn")} · ${count(each.tokens, "token")}`));
    row.append(make("small", "", each.instance ? `${each.game} · ${each.instance}` : each.game));
    row.onclick = () => {
      this.newestElement.checked = false; // new iterations do not take away what is being read
      this.open(each);
      for (const other of state.panes) {
        const same = other !== this && findSame(other.episodes, each);
        if (same) other.open(same);
      }
    };
    return row;
  }

  mark() {
    for (const row of this.listElement.children) row.setAttribute("aria-current", row.line === this.chosen.line);
  }

  async open(each) {
    this.chosen = each;
    this.mark();
    const asked = ++this.asked;
    try {
      const episode = await get("/api/episode", { split: state.split, line: each.line });
      if (asked !== this.asked) return;
      this.episode = episode;
      this.episodeElement.replaceChildren(...showEpisode(episode));
      this.episodeElement.scrollTop = 0;
      this.shown = nameEpisode(each);
    } catch (error) {
      if (asked === this.asked) this.episodeElement.replaceChildren(make("p", "empty", error.message));
    }
  }
}

const nameEpisode = (each) => `${state.split} ${JSON.stringify(each)}`; // another one where a resumed run wrote its line again

function isSame(a, b) {
  return a.game === b.game && a.instance === b.instance;
}

function findSame(episodes, wanted) {
  const same = episodes.filter((each) => isSame(each, wanted));
  return same.find((each) => each.member === wanted.member) ?? same[0] ?? null;
}

function showEpisode(episode) {
  const parts = [];
  const head = make("h2", "", `${episode.game}: `);
  head.append(make("span", episode.outcomes[0], episode.outcomes.join(", ")));
  parts.push(head);
  let facts = `return ${format(episode.return)}`;
  if (episode.trained_return !== episode.return) facts += ` (${format(episode.trained_return)} in training)`;
  facts += ` · ended by ${episode.end} · group ${episode.group}, member ${episode.member}`;
  if (episode.wave) facts += `, wave ${episode.wave}`;
  if (episode.instance) facts += ` · ${episode.instance}`;
  parts.push(make("p", "facts", facts));
  if (episode.error) parts.push(make("p", "error", episode.error));
  if (!Object.keys(episode.texts).length) parts.push(make("p", "facts", "This file holds no texts of tokens (it is of an earlier version): ids stand in their place."));
  if (episode.is_update_known && !episode.rows.some((turn) => turn.trained.includes(1))) parts.push(make("p", "facts", "No token of it was trained on."));
  let most = 1e-9; // the largest advantage, which is shaded fully
  for (const turn of episode.rows) for (const value of turn.advantage) most = Math.max(most, Math.abs(value ?? 0));
  const turns = episode.rows.map((turn) => showTurn(turn, episode.texts, most));
  if (turns.length > 1) parts.push(make("p", "label", "reward by turn"), showRewards(episode.rows, turns));
  parts.push(...turns);
  const box = make("div", state.shade + " tokens");
  box.append(...parts);
  return [box];
}

function showRewards(rows, turns) {
  const bars = make("div", "bars");
  const most = Math.max(1e-9, ...rows.map((turn) => Math.abs(turn.trained_reward ?? 0)));
  rows.forEach((turn, index) => {
    const bar = make("button");
    bar.title = bar.ariaLabel = `turn ${turn.number}: reward ${format(turn.trained_reward)}`;
    bar.onclick = () => turns[index].scrollIntoView({ block: "start" });
    for (const side of ["above", "below"]) {
      const half = make("span", side);
      const value = (turn.trained_reward ?? 0) * (side === "above" ? 1 : -1);
      if (value > 0) half.append(make("i"));
      if (value > 0) half.firstChild.style.height = `${Math.max(6, (100 * value) / most)}%`;
      bar.append(half);
    }
    bars.append(bar);
  });
  return bars;
}

function showTurn(turn, texts, most) {
  const box = make("section", "turn");
  const head = make("h3", "", `turn ${turn.number}`);
  const add = (text, name = "") => head.append(make("span", name, text));
  add(`reward ${format(turn.reward)}`);
  if (turn.trained_reward !== turn.reward) {
    const added = Object.entries(turn.shaping).filter(([, value]) => value).map(([name, value]) => `${name} ${format(value)}`);
    add(`trained on ${format(turn.trained_reward)}${added.length ? ` (${added.join(", ")})` : ""}`);
  }
  add(`plays ${turn.actions.join(" | ") || "nothing"}${turn.surplus ? ` (and ${turn.surplus} beyond the limit)` : ""}`);
  if (turn.player) add(`by the ${turn.player}`);
  if (turn.problem) add(turn.problem.replaceAll("_", " "), turn.is_valid ? "" : "problem");
  if (turn.finish !== "stop") add(`cut off by ${turn.finish}`, "problem");
  if (turn.starts_row && turn.number > 1) add("a new prompt");
  box.append(head);
  for (const text of [turn.observation, turn.reply]) if (text) box.append(make("pre", "facts", text));
  const [given, sampled] = [make("pre"), make("pre")]; // what was read before the reply, and the reply
  turn.ids.forEach((id, index) => (index < turn.given ? given : sampled).append(showToken(turn, index, texts[id] ?? `[${id}]`, most)));
  box.append(given, sampled);
  return box;
}

function showToken(turn, index, text, most) {
  const kind = KINDS.includes(turn.kinds[index]) ? turn.kinds[index] : "other";
  const isGiven = turn.logp[index] === null && turn.entropy[index] === null;
  const token = make("span", `t ${kind}${turn.trained[index] ? " trained" : ""}${isGiven ? " given" : ""}`);
  text.split("\n").forEach((line, number) => {
    if (number) token.append(make("span", "end", "⏎"), "\n");
    token.append(line);
  });
  token.about = { turn, index, text };
  const value = turn[state.shade]?.[index];
  if (state.shade !== "kind" && value !== null && value !== undefined) {
    const share = Math.min(1, Math.abs(value) / (state.shade === "advantage" ? most : MOST_NATS));
    const colour = { logp: "heat", entropy: "doubt", advantage: value < 0 ? "low" : "high" }[state.shade];
    token.style.background = `rgb(var(--${colour}) / ${(0.75 * share).toFixed(3)})`;
  }
  return token;
}

function showTip(event) {
  const about = event.target.closest?.(".t")?.about;
  const tip = $("tip");
  tip.hidden = !about;
  if (!about) return;
  const { turn, index, text } = about;
  const lines = [`${JSON.stringify(text)}  id ${turn.ids[index]}`, SAID[turn.kinds[index]] ?? "other"];
  const logp = turn.logp[index];
  if (logp !== null) lines.push(`log-prob ${format(logp, 4)} nats, p ${Number(Math.exp(logp).toPrecision(3))}`);
  if (turn.entropy[index] !== null) lines.push(`entropy ${Number(turn.entropy[index].toPrecision(3))} nats`);
  if (turn.advantage[index] !== null) lines.push(`advantage ${format(turn.advantage[index], 4)}`);
  lines.push(turn.trained[index] ? "trained on" : "not trained on");
  tip.textContent = lines.join("\n");
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 18}px`;
}

function showLegend() {
  const legend = $("legend");
  const swatch = (text, style) => {
    const each = make("span", "t", text);
    each.style.background = style;
    return each;
  };
  legend.className = state.shade;
  const marks = {
    kind: () => KINDS.map((kind) => make("span", `t ${kind}`, SAID[kind])),
    logp: () => [swatch("certain, log-prob 0", "rgb(var(--heat) / 0)"), swatch(`log-prob −${MOST_NATS} nats or less`, "rgb(var(--heat) / .75)")],
    entropy: () => [swatch("0 nats", "rgb(var(--doubt) / 0)"), swatch(`${MOST_NATS} nats or more`, "rgb(var(--doubt) / .75)")],
    advantage: () => [swatch("most negative of the episode", "rgb(var(--low) / .75)"), swatch("0", "none"), swatch("most positive", "rgb(var(--high) / .75)")],
  };
  legend.replaceChildren(...marks[state.shade](), make("span", "t trained", "underlined: trained on"));
}

function showRun() {
  const run = state.run;
  $("name").textContent = document.title = run.name;
  const pill = $("status");
  pill.textContent = run.is_running ? "running" : run.status || "not running";
  pill.className = run.is_running ? "pill live" : "pill";
  $("problems").hidden = !run.problems.length;
  $("problems").textContent = run.problems.join("; ");
}

async function poll() {
  try {
    state.run = await get("/api/run");
    showRun();
    if (state.run.revision !== state.revision) {
      if (state.revision < 0 && !state.run.splits.train.length && state.run.splits.val.length) state.split = $("split").value = "val";
      state.revision = state.run.revision;
      await Promise.all(state.panes.map((pane) => pane.update()));
    }
  } catch {
    $("status").textContent = "the server does not answer";
    $("status").className = "pill lost";
  }
  setTimeout(poll, POLL_MS);
}

function setBoth() {
  if ($("both").checked && state.panes.length < 2) {
    const pane = new Pane(state.panes[0]);
    pane.iteration = iterations()[0]?.iteration ?? null;
    pane.chosen = state.panes[0].chosen;
    state.panes.push(pane);
    pane.update();
  } else if (!$("both").checked) state.panes.splice(1).forEach((pane) => pane.root.remove());
}

OUTCOMES.forEach((outcome) => {
  const option = make("option", "", outcome);
  option.value = outcome;
  $("filter").append(option);
});
$("split").onchange = () => {
  state.split = $("split").value;
  state.panes.forEach((pane) => pane.update());
};
$("filter").onchange = () => {
  state.filter = $("filter").value;
  state.panes.forEach((pane) => pane.showList());
};
$("shade").onchange = () => {
  state.shade = $("shade").value;
  showLegend();
  for (const pane of state.panes) if (pane.shown) pane.episodeElement.replaceChildren(...showEpisode(pane.episode));
};
$("both").onchange = setBoth;
document.addEventListener("mousemove", showTip);
document.addEventListener("click", showTip);
state.panes.push(new Pane(null));
showLegend();
poll();
