// The page of `trtla serve`: a chat that streams, and shows that drafts change the speed and not the text.
// What the model writes is hostile: it only ever becomes text nodes.
import { Refused, call, events, keepKey, patiently } from "./server.js";
import { Text, el } from "./text.js";
import { PLAIN, choiceName, same, showVerdict } from "./verdict.js";

const SMALLER = [[3, 3, 3], [5, 5, 5]];
const SOURCES = {
  context: "what followed the same words earlier in this conversation",
  expected: "the output that the request expects",
  requests: "other texts that this server has seen",
  window: "n-grams of the lookahead window",
  chain: "a further drafter, such as a small model",
  grammar: "what the request's grammar leaves",
  recycling: "the model's likely tokens when it last read the same token",
  agreement: "an earlier text and the model's likely tokens, which agree",
  drafter: "lookahead with a fixed triple, or another drafter",
};
const IDEAS = [
  "Rewrite this in the past tense:\n\nThe little ferry leaves the harbour at six. It carries the mail, two crates"
    + " of oranges and a few early passengers. The captain knows every one of them by name.",
  "Write a Python class for a stack with push, pop and peek.",
  "List the months of the year with the number of days of each.",
];
const NUMBERS = ["temperature", "top_p", "seed", "max_tokens"];

const $ = (id) => document.getElementById(id);
const seen = (node) => Math.abs(node.getBoundingClientRect().bottom) <= window.innerHeight;
const show = (node) => node.scrollIntoView({ block: "nearest" });

let model = null; // an item of /v1/models
let turns = [];
let warm = false; // both sides of a comparison have been tried
let running = null; // the AbortController of the answers in flight
let connecting = null; // and of the connection that is being made

function mark(source, text = source) {
  const node = el("mark", { textContent: text, title: `${source}: ${SOURCES[source] ?? "drafted"}` });
  node.dataset.source = source;
  return node;
}

const shown = ({ text, source }) => (source === null ? document.createTextNode(text) : mark(source, text));

// --- one answer

function request(turn, run) {
  const { system, ...sampling } = turn.settings;
  const shared = { model: model.id, stream: true, pieces: true, metrics: true, ...sampling, lookahead: run.choice };
  if (run.alone) shared.cache = "private"; // side by side, no answer may learn from another
  const before = turn.before.filter((one) => one.runs[0]?.text);
  if (!model.chat) {
    const said = before.map((one) => `${one.question}${one.runs[0].text}\n`);
    return ["v1/completions", { ...shared, prompt: said.join("") + turn.question }];
  }
  const messages = before.flatMap((one) => [
    { role: "user", content: one.question }, { role: "assistant", content: one.runs[0].text },
  ]);
  if (system) messages.unshift({ role: "system", content: system });
  return ["v1/chat/completions", { ...shared, messages: [...messages, { role: "user", content: turn.question }] }];
}

async function stream(turn, run, signal) {
  const response = await call(...request(turn, run), signal);
  for await (const { choices, metrics } of events(response.body)) {
    run.metrics = metrics ?? run.metrics;
    const choice = choices?.[0] ?? {};
    const text = choice.delta?.content || choice.text;
    run.finish = choice.finish_reason ?? run.finish;
    take(run, choice.pieces ?? (text ? [{ text, source: null }] : []), choice.tokens);
    showFigures(run);
  }
}

function take(run, pieces, tokens = run.tokens + pieces.length) {
  const follow = seen(run.sources);
  if (pieces.length) run.steps += 1;
  run.tokens = tokens;
  run.first ??= { tokens, time: performance.now() }; // by the prompt's own pass, which is no step
  for (const { text, source } of pieces) {
    run.text += text;
    run.shown.add(text, source);
  }
  if (follow) show(run.sources);
}

function showFigures({ metrics, tokens, steps, first, finish, figures, sources }) {
  const more = tokens - first.tokens;
  const seconds = (performance.now() - first.time) / 1000;
  const live = more && { tokens_per_s: more / seconds, tokens_per_step: more / (steps - 1) };
  const figure = (name, digits) => el("b", { textContent: (metrics ?? live)?.[name]?.toFixed(digits) ?? "–" });
  const parts = [figure("tokens_per_s", 1), " tokens/s · ", figure("tokens_per_step", 2), " tokens per step"];
  if (metrics) parts.push(` · first token after ${(metrics.ttft_ms / 1000).toFixed(2)}\u00a0s`);
  else parts.unshift("about ");
  if (finish === "length") parts.push(" · cut at max tokens");
  figures.replaceChildren(...parts);
  if (metrics) sources.replaceChildren(...accepted(metrics));
}

function accepted(metrics) {
  const found = Object.entries(metrics.sources ?? {}).filter(([, count]) => count.accepted);
  if (!found.length && metrics.accepted) found.push(["drafter", metrics]);
  const marks = found.flatMap(([source, count]) => [", ", mark(source), ` ${count.accepted}`]);
  return marks.length ? ["accepted: ", ...marks.slice(1)] : [];
}

// --- turns: a question and its answers

function newTurn(question) {
  const turn = { question, settings: { system: $("system").value.trim() }, before: [...turns], runs: [] };
  for (const id of NUMBERS) turn.settings[id] = Number($(id).value);
  turn.box = el("div", { className: "runs" });
  turn.verdict = el("div");
  const asked = el("div", { className: "question" });
  new Text(asked, shown).add(question, null);
  $("log").append(el("article", {}, asked, turn.box, turn.verdict));
  turns.push(turn);
  return turn;
}

function newRun(turn, choice, alone) {
  const run = { choice, alone, text: "", tokens: 0, steps: 0, done: false };
  run.body = el("div", { className: "text", ariaBusy: "true" });
  run.shown = new Text(run.body, shown);
  run.note = el("p", { className: "note" });
  run.figures = el("p", { className: "figures", ariaLive: "off" });
  run.sources = el("p", { className: "figures" });
  const name = el("h3", { textContent: choiceName(choice) });
  run.node = el("section", { className: "run" }, name, run.body, run.note, run.figures, run.sources);
  turn.box.append(run.node);
  turn.runs.push(run);
  return run;
}

async function answer(turn, choice, signal, alone) {
  const run = newRun(turn, choice, alone);
  const say = (text) => run.note.replaceChildren(text);
  show(run.sources);
  try {
    await patiently(() => stream(turn, run, signal), say, [503], signal);
    run.done = true;
  } catch (error) {
    say(signal.aborted ? "Stopped." : error.message);
    if (error.status === 401) askKey();
    if (!signal.aborted && !(error instanceof Refused)) throw error;
  } finally {
    const follow = seen(run.sources);
    run.body.ariaBusy = "false";
    if (run !== turn.runs[0] && turn.runs[0].text && run.text) showVerdict(turn.verdict, turn.runs[0], run);
    if (follow) show(turn.verdict);
  }
  return run.done;
}

function drop(turn, runs) {
  for (const run of runs) run.node.remove();
  turn.runs = turn.runs.filter((run) => !runs.includes(run));
  turn.verdict.replaceChildren();
}

// --- what the buttons do

const chosen = () => JSON.parse(new FormData($("composer")).get("lookahead"));

async function busyWith(work) {
  const mine = running = new AbortController();
  showState();
  try {
    await work(mine.signal);
  } finally {
    if (running === mine) running = null;
    showState();
  }
}

// The turn of what stands in the box; null where that is empty or a setting is wrong.
function asked() {
  const wrong = NUMBERS.map($).find((input) => !input.checkValidity());
  const question = $("message").value;
  if (wrong) {
    openSettings();
    wrong.reportValidity();
  }
  if (wrong || !question.trim()) return null;
  $("message").value = "";
  return newTurn(question);
}

function send() {
  const turn = model && !running && asked();
  if (turn) busyWith((signal) => answer(turn, chosen(), signal, false));
}

function again() {
  const turn = turns.at(-1);
  drop(turn, turn.runs.filter((run) => !run.text));
  busyWith((signal) => answer(turn, chosen(), signal, true));
}

function compare() {
  const turn = asked() ?? ($("message").value.trim() ? null : turns.at(-1));
  if (!turn) return;
  drop(turn, turn.runs);
  busyWith(async (signal) => {
    const drafting = model.auto ? "auto" : model.max_lookahead;
    if (!warm) await warmUp(turn, [PLAIN, drafting], signal);
    if (await answer(turn, PLAIN, signal, true)) await answer(turn, drafting, signal, true);
  });
}

// A few tokens of each kind that nobody sees: what a server does only once belongs to neither side.
async function warmUp(turn, choices, signal) {
  const few = { ...turn, settings: { ...turn.settings, max_tokens: 8 } };
  for (const choice of choices) {
    const response = await call(...request(few, { choice, alone: true }), signal).catch(() => null);
    await response?.text().catch(() => null);
  }
  warm = true;
}

function newChat() {
  running?.abort();
  running = null;
  turns = [];
  $("log").replaceChildren();
  showState();
  $("message").focus();
}

function showState() {
  const focused = document.activeElement;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("send").disabled = $("compare").disabled = !model || Boolean(running);
  $("again").disabled = !turns.length || Boolean(running);
  $("intro").hidden = turns.length > 0;
  if (focused.hidden || focused.disabled) $(running ? "stop" : "message").focus({ preventScroll: true });
}

function askKey() {
  $("key-row").hidden = false;
  openSettings();
  $("key").focus();
}

// --- the start

function choices({ max_lookahead: most, lookahead, auto }) {
  const less = SMALLER.filter((triple) => triple.every((size, place) => size <= most[place]));
  const all = [PLAIN, ...less, most, lookahead, ...(auto ? ["auto"] : [])];
  return all.filter((choice, place) => all.findIndex((one) => same(one, choice)) === place);
}

function offer(choice) {
  const input = el("input", { type: "radio", name: "lookahead", value: JSON.stringify(choice) });
  input.checked = same(choice, model.lookahead);
  const title = { plain: "one token a step, nothing drafted", auto: "each step drafts what pays" }[choiceName(choice)];
  return el("label", { title: title ?? "lookahead: window, n-gram size, verification set" }, input, choiceName(choice));
}

// One at a time: another key starts again.
async function connect() {
  connecting?.abort();
  const { signal } = connecting = new AbortController();
  const say = (text) => $("model").replaceChildren(text);
  try {
    const response = await patiently(() => call("v1/models", null, signal), say, [0, 503], signal);
    [model] = (await response.json()).data;
  } catch (error) {
    if (signal.aborted) return;
    say(error.message);
    if (error.status === 401) askKey();
    return;
  }
  say(model.id);
  $("model").title = model.description;
  $("max_tokens").value = Math.min($("max_tokens").value, Math.ceil(model.max_model_len / 2));
  $("system-row").hidden = !model.chat;
  $("no-template").hidden = model.chat;
  $("drafting").replaceChildren($("drafting").querySelector("legend"), ...choices(model).map(offer));
  $("compare").hidden = same(model.max_lookahead, PLAIN);
  showState();
}

function idea(text) {
  const use = () => {
    $("message").value = text;
    $("message").focus();
  };
  return el("button", { type: "button", textContent: text.split("\n")[0], onclick: use });
}

// All but the one that something is in; whether there were any.
function closePanels(inside) {
  const others = [...document.querySelectorAll("details[open]")].filter((panel) => !panel.contains(inside ?? null));
  for (const panel of others) {
    if (panel.contains(document.activeElement)) panel.querySelector("summary").focus();
    panel.open = false;
  }
  return others.length > 0;
}

function openSettings() {
  closePanels($("settings"));
  $("settings").open = true;
}

function start() {
  const actions = { again, compare, new: newChat, stop: () => running?.abort() };
  for (const [id, action] of Object.entries(actions)) $(id).onclick = action;
  $("composer").onsubmit = (event) => {
    event.preventDefault();
    send();
  };
  $("message").onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  document.onkeydown = (event) => {
    if (event.key === "Escape" && !closePanels()) running?.abort();
  };
  document.addEventListener("click", (event) => closePanels(event.target), true); // before buttons open one
  document.addEventListener("focusin", (event) => closePanels(event.target));
  $("key").onchange = () => {
    keepKey($("key").value.trim());
    if (!model) connect();
  };
  const meanings = Object.entries(SOURCES);
  $("legend").append(...meanings.flatMap(([name, text]) => [el("dt", {}, mark(name)), el("dd", { textContent: text })]));
  $("ideas").append(...IDEAS.map(idea));
  $("message").focus({ preventScroll: true });
  connect();
}

start();
