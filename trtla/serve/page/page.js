// The page of `trtla serve`: a conversation that streams, and a comparison of plain decoding with drafts.
// A model may write anything: its text only ever becomes text nodes.

const PLAIN = [1, 1, 0];
const turns = []; // questions with their answers
let model = null; // an item of /v1/models
let running = null; // the AbortController of the answers in flight
let warm = false; // both kinds of decoding have been tried

const $ = (id) => document.getElementById(id);
const choiceName = (choice) => (String(choice) === String(PLAIN) ? "plain" : String(choice));

function el(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function mark(source, text = source) {
  const node = el("mark", { textContent: text, title: `drafted by ${source}` });
  node.dataset.source = source;
  return node;
}

// --- the server: errors as sentences, streams as events

function lost(error) {
  throw error.name === "AbortError" ? error : new Error(`The connection failed: ${error.message}.`);
}

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value.trim()}`;
  const options = body && { method: "POST", body: JSON.stringify(body) };
  const response = await fetch(path, { ...options, headers, signal, cache: "no-store" }).catch(lost);
  if (response.ok) return response;
  if (response.status === 401) $("key-row").hidden = false;
  const reason = (await response.json().catch(() => null))?.error?.message ?? `status ${response.status}`;
  throw new Error(`The server refused: ${reason}.`);
}

// Yields the JSON objects of a stream of server-sent events, up to [DONE].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) throw new Error("The connection ended before the answer.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.match(/^data: ?(.*)/s)?.[1]; // none: a comment that keeps the connection alive
      if (data === "[DONE]") return;
      const event = JSON.parse(data ?? "{}");
      if (event.error) throw new Error(`The server ended the answer: ${event.error.message}`);
      yield event;
    }
  }
}

// --- one answer

function request(turn, choice, alone) {
  const streamed = { stream: true, pieces: true, metrics: true };
  const body = { ...turn.settings, ...streamed, model: model.id, lookahead: choice };
  if (alone) body.cache = "private"; // in a comparison no answer may learn from another
  const before = turn.before.filter(({ runs }) => runs[0]?.text);
  if (!model.chat) {
    const texts = before.map(({ question, runs }) => `${question}${runs[0].text}\n`);
    return ["v1/completions", { ...body, prompt: texts.join("") + turn.question }];
  }
  const messages = before.flatMap(({ question, runs }) => [
    { role: "user", content: question }, { role: "assistant", content: runs[0].text },
  ]);
  body.messages = [...messages, { role: "user", content: turn.question }];
  return ["v1/chat/completions", body];
}

async function answer(turn, choice, signal, alone = false) {
  const run = { choice, text: "", done: false, body: el("div", { className: "text", ariaBusy: "true" }) };
  const [note, figures] = [el("p", { className: "note" }), el("p", { className: "figures" })];
  const name = el("h3", { textContent: choiceName(choice) });
  const section = el("section", { className: "run" }, name, run.body, note, figures);
  follow(() => turn.box.append(section), true);
  turn.runs.push(run);
  try {
    const response = await call(...request(turn, choice, alone), signal);
    for await (const event of events(response.body)) follow(() => take(run, event, figures));
    run.done = true;
  } catch (error) {
    follow(() => { note.textContent = signal.aborted ? "Stopped." : error.message; });
  }
  run.body.ariaBusy = "false";
  return run;
}

// Changes the page; a reader at its end stays there.
function follow(change, always = false) {
  const page = document.documentElement;
  const atEnd = always || page.scrollHeight - window.innerHeight - window.scrollY < 40;
  change();
  if (atEnd) window.scrollTo(0, page.scrollHeight);
}

function take(run, { choices, metrics }, figures) {
  const choice = choices?.[0] ?? {};
  run.finish = choice.finish_reason ?? run.finish;
  for (const { text, source } of choice.pieces ?? []) {
    run.text += text;
    run.body.append(source === null ? text : mark(source, text));
  }
  if (metrics) {
    run.metrics = metrics;
    figures.append(...summary(run));
  }
}

function summary({ metrics, finish }) {
  const figure = (name, digits) => el("b", { textContent: metrics[name]?.toFixed(digits) ?? "–" });
  const parts = [figure("tokens_per_s", 1), " tokens/s · ", figure("tokens_per_step", 2)];
  parts.push(finish === "length" ? " tokens per step · cut at max tokens" : " tokens per step");
  const counts = Object.entries(metrics.sources ?? {}).filter(([, count]) => count.accepted);
  if (!counts.length && metrics.accepted) counts.push(["drafter", metrics]);
  return [...parts, ...counts.flatMap(([source, { accepted }]) => [" · ", mark(source), ` ${accepted}`])];
}

// --- what two answers to one question show

function verdict(plain, drafted) {
  const length = drafted.done ? Infinity : drafted.text.length;
  const at = difference(plain.text.slice(0, length), drafted.text);
  const lines = at < 0 ? [agreement(drafted)] : disagreement(plain, drafted, at);
  if (plain.metrics?.tokens_per_s && drafted.metrics?.tokens_per_s) lines.push(speeds(plain, drafted));
  return el("div", { className: at < 0 ? "verdict" : "verdict differs" }, ...lines);
}

function difference(one, other) {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  return one === other ? -1 : at;
}

const headline = (text) => el("p", {}, el("b", { textContent: text }));

function agreement({ done, text }) {
  const extent = done ? ", all" : " as far as both go,";
  return headline(`✓ The text is the same${extent} ${text.length} characters.`);
}

function disagreement(plain, drafted, at) {
  const near = ({ text }) => el("q", { textContent: text.slice(Math.max(at - 20, 0), at + 20) });
  const parts = ["plain: ", near(plain), `; ${choiceName(drafted.choice)}: `, near(drafted)];
  return [headline(`✗ The texts differ from character ${at + 1} on.`), el("p", {}, ...parts)];
}

function speeds({ metrics: was }, { metrics: is, choice }) {
  const change = (name, digits) => `${was[name].toFixed(digits)} → ${is[name].toFixed(digits)}`;
  const times = `${(is.tokens_per_s / was.tokens_per_s).toFixed(2)} times the speed`;
  return el("p", {}, `plain → ${choiceName(choice)}: `, el("b", { textContent: times }),
    ` (${change("tokens_per_s", 1)} tokens/s), ${change("tokens_per_step", 2)} tokens per step.`);
}

// --- the form

function newTurn(question) {
  const settings = { seed: 0 };
  for (const name of ["temperature", "max_tokens"]) settings[name] = Number($(name).value);
  const turn = { question, settings, before: [...turns], runs: [], box: el("div", { className: "runs" }) };
  turn.node = el("article", {}, el("div", { className: "question", textContent: question }), turn.box);
  $("log").append(turn.node);
  turns.push(turn);
  return turn;
}

// Compare without a message repeats the last question.
function repeatedTurn() {
  const last = turns.pop();
  last?.node.remove();
  return last && newTurn(last.question);
}

async function compare(turn, signal) {
  if (!warm) await warmUp(turn, signal);
  const plain = await answer(turn, PLAIN, signal, true);
  if (!plain.done) return;
  const drafted = await answer(turn, model.lookahead, signal, true);
  if (drafted.done || drafted.text) follow(() => turn.node.append(verdict(plain, drafted)));
}

// A few tokens that nobody sees: the work that a server does only once belongs to neither side.
async function warmUp(turn, signal) {
  const few = { ...turn, settings: { ...turn.settings, max_tokens: 8 } };
  for (const choice of [PLAIN, model.lookahead]) {
    await call(...request(few, choice, true), signal).then((response) => response.text()).catch(() => null);
  }
  warm = !signal.aborted;
}

async function submit(comparing) {
  if (!model || running) return;
  const question = $("message").value;
  const turn = question.trim() ? newTurn(question) : comparing && repeatedTurn();
  if (!turn) return;
  $("message").value = "";
  running = new AbortController();
  showState();
  await (comparing ? compare(turn, running.signal) : answer(turn, model.lookahead, running.signal));
  running = null;
  if (!turn.runs[0]?.text) $("message").value ||= turn.question; // to be sent again
  showState();
}

function showState() {
  $("send").disabled = $("compare").disabled = !model || Boolean(running);
  $("stop").disabled = !running;
  $("intro").hidden = turns.length > 0;
  if (document.activeElement.disabled) $("message").focus({ preventScroll: true });
}

async function connect() {
  try {
    [model] = (await (await call("v1/models")).json()).data;
  } catch (error) {
    $("model").textContent = error.message;
    return;
  }
  $("model").textContent = model.id;
  $("model").title = model.description;
  $("max_tokens").value = Math.min($("max_tokens").value, Math.ceil(model.max_model_len / 2));
  if (!model.chat) $("message").placeholder = "A text to continue: this model has no chat template";
  showState();
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  submit(event.submitter === $("compare"));
};
$("message").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit($("send"));
};
$("stop").onclick = () => running?.abort();
document.onkeydown = (event) => { if (event.key === "Escape") running?.abort(); };
$("key").onchange = connect;
for (const idea of $("ideas").children) idea.onclick = () => { $("message").value = idea.innerText; };
connect();
