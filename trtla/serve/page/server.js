// What the page asks of the server: requests with the key, errors as sentences, streams as events.

const KEY = "trtla-api-key"; // in sessionStorage, which ends with the tab
const NO_KEY = "This is no API key, which has letters, digits and signs of ASCII alone: enter it under Settings.";
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // 0: there was no answer
  }
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

export async function call(path, body, signal) {
  const key = sessionStorage.getItem(KEY);
  if (/[^ -~]/.test(key ?? "")) throw new Refused(401, NO_KEY);
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const options = body && { method: "POST", body: JSON.stringify(body) };
  const response = await unlessLost(fetch(path, { ...options, headers, signal, cache: "no-store" }));
  if (response.ok) return response;
  const said = (await response.json().catch(() => null))?.error?.message;
  throw new Refused(response.status, sentence(response, said));
}

async function unlessLost(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The connection to the server was lost.");
  }
}

function sentence(response, said) {
  const wait = response.headers.get("Retry-After");
  switch (response.status) {
    case 401: return "The server asks for an API key: enter it under Settings.";
    case 429: return `The server is busy: press Again ${wait ? `in ${wait} s` : "in a moment"}.`;
    case 503: return `The server is not ready${said ? ` (${said})` : ""}: this page waits for it.`;
    default: return said ? `The server refused: ${said}` : `The server answered with status ${response.status}.`;
  }
}

// Does the work; while the server is not ready, says so, and tries again when /health is fine.
export async function patiently(work, say, waitsFor, signal) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!waitsFor.includes(error.status)) throw error;
      say(error.message);
    }
    do {
      await sleep(1);
      signal?.throwIfAborted();
    } while (!(await fetch("health", { signal, cache: "no-store" }).catch(() => null))?.ok);
    say("");
  }
}

// The JSON objects of a stream of server-sent events, up to [DONE].
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await unlessLost(reader.read());
    if (done) throw new Refused(0, "The connection to the server was lost before the answer ended.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [, data] = block.match(/^data: ?(.*)/s) ?? []; // none: a comment that keeps the connection alive
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(500, `The server ended the answer: ${event.error.message}`);
      yield event;
    }
  }
}
