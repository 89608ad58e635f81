// A program in another language with plain HTTP: it walks P to G, and says after each call what it was worth.
const { OPENAI_BASE_URL: url, OPENAI_API_KEY: key, LIT_AGENTRL_TASK: text } = process.env;
const task = JSON.parse(text);

async function post(path, body) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };
  const answer = await fetch(`${url}/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

let { player } = task;
const distance = () => Math.abs(task.goal - player);
const show = (turns) => {
  const cells = Array.from({ length: task.length }, (_, i) => (i === player ? "P" : i === task.goal ? "G" : "_"));
  return { role: "user", content: `turns ${turns} actions 8\n${cells.join(" ")}` };
};

const messages = [show(4)];
for (let turns = 3; turns >= 0 && distance() > 0; turns--) {
  const before = distance();
  const reply = await post("chat/completions", { model: "policy", messages });
  const { message } = reply.choices[0];
  for (const move of (message.content.split("<answer>")[1] ?? "").match(/Left|Right/g) ?? []) {
    if (distance() > 0) player = Math.min(Math.max(player + (move === "Right" ? 1 : -1), 0), task.length - 1);
  }
  await post("rewards", { reward: (before - distance()) / task.length, completion_id: reply.id });
  messages.push(message, show(turns));
}
console.log(JSON.stringify({ reward: distance() ? 0 : 1, success: distance() === 0 }));
