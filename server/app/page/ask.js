// Asks the server, with the key of this tab.

const NAME = "posenc-key";
let held = "";
try {
  held = sessionStorage.getItem(NAME) ?? "";
} catch {
  // Storage is off: the key lasts as long as the page.
}

/** The key that requests are sent with; empty where there is none. */
export const key = () => held;

/** Keep a key for this tab, or forget it when it is empty. */
export function keep(value) {
  held = value;
  try {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
  } catch {
    // As above.
  }
}

/** The server wants a key, or another one. */
export class KeyWanted extends Error {}

/** The server answered that it will not. */
export class Refused extends Error {}

/** Send a request; the answer is one with a status of success. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (held) headers.Authorization = `Bearer ${held}`;
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.ok) return answer;
  const said = await reason(answer);
  throw answer.status === 401 || answer.status === 403 ? new KeyWanted(said) : new Refused(said);
}

async function reason(answer) {
  const text = await answer.text();
  try {
    const body = JSON.parse(text);
    const found = body.error?.message ?? body.error ?? body.detail;
    if (typeof found === "string" && found) return found;
  } catch {
    // No JSON: the status says what there is to say.
  }
  return `the server answered with status ${answer.status}`;
}

/** The events of a streamed answer, as objects, up to the end. */
export async function* streamed(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (!event.startsWith("data: ") || data === "[DONE]") continue;
      const found = JSON.parse(data);
      if (found.error) throw new Refused(found.error.message ?? String(found.error));
      yield found;
    }
  }
}
