// The page: reads what the server serves, draws it, and reads its counters again and again.
import { ask, keep, key, KeyWanted } from "./ask.js";
import { charts } from "./charts.js";
import { chat } from "./chat.js";
import { count, hint, html, measure, percent, swatch, table } from "./elements.js";
import { frequencies } from "./frequencies.js";
import { History } from "./history.js";
import { ruler } from "./ruler.js";
import { cards } from "./try.js";

const USUAL = 1000; // milliseconds between readings
const WHILE_RUNNING = 400;
const AFTER_FAILURE = 3000;

const at = (id) => document.getElementById(id);
const history = new History();
let live = null;
let shape = "";
let tried = [];
let redraw = [];
let drawCharts = () => {};
let isPaused = false;
let timer = 0;

async function read() {
  clearTimeout(timer);
  let next = tried.some((card) => card.isRunning()) ? WHILE_RUNNING : USUAL;
  try {
    live = await (await ask("posenc/live")).json();
    at("data-links").hidden = Boolean(key()); // a link carries no key
    if (isPaused) return;
    show();
    state("live", "Live");
    note("");
  } catch (error) {
    next = AFTER_FAILURE;
    if (error instanceof KeyWanted) {
      state("wait", "Key wanted");
      note(key() ? "The server did not take this key." : "The server wants a key before it shows what it serves.");
      wantKey(error.message);
      return;
    }
    state("off", "No answer");
    note(error instanceof TypeError ? "The server does not answer. Trying again." : error.message);
  }
  if (!isPaused && !document.hidden) timer = setTimeout(read, next);
}

function show() {
  const { labels, deployment, rotations, figures } = live;
  const now = JSON.stringify([live.model, deployment.rope_type, labels, deployment.max_model_len, rotations.length, !figures]);
  if (now !== shape) {
    shape = now;
    build();
  }
  table(
    at("served-table"), "Requests by scale, since the server started",
    ["Scale", "Request length", "Requests", "KV blocks now", "Prompt tokens", "Generated tokens"],
    deployment.scales.map(({ max_request_tokens: end, live: counts }, index) => [
      html("span", { class: "scale" }, swatch(index), labels[index]),
      `${count(index ? deployment.scales[index - 1].max_request_tokens + 1 : 1)} to ${count(end)}`,
      ...["requests", "kv_blocks", "prompt_tokens", "generation_tokens"].map((name) => (counts ? count(counts[name]) : "not counted")),
    ]),
  );
  if (!figures) return;
  history.add(performance.now() / 1000, figures);
  drawCharts(history);
  const { computed, waiting } = figures.prefill_tokens;
  tried.forEach((card) => card.progress(figures.prefill_tokens));
  chatProgress(figures.prefill_tokens);
  tiles([
    ["Requests running", count(figures.requests_running), ""],
    ["Requests waiting", count(figures.requests_waiting), ""],
    ["Prompts being read", waiting ? percent(Math.round((1000 * computed) / (computed + waiting)) / 1000) : "none", waiting ? `of ${count(computed + waiting)} tokens` : ""],
    ["KV cache in use", percent(Math.round(1000 * figures.kv_cache_usage) / 1000), ""],
    ["Speed", measure(history.rate((each) => generated(each))), "tokens a second"],
    ["Crossings", count(figures.crossings.reduce((sum, each) => sum + each.count, 0)), "since the start"],
  ]);
}

const generated = (figures) => Object.values(figures.by_scale).reduce((sum, each) => sum + each.generation_tokens, 0);

/** Lay out what depends on the deployment alone. */
function build() {
  const { labels, deployment, rotations, figures, model } = live;
  const trained = count(deployment.original_max_position_embeddings);
  const longest = count(deployment.max_model_len);
  document.title = `${model} · Posenc`;
  at("model").textContent = model;
  at("version").textContent = live.version;
  const { distances } = deployment;
  at("lead").textContent = distances
    ? `Trained on ${trained} tokens, serves ${longest}. A query past the trained length sees keys at most ${count(distances.farthest)} tokens away.`
    : rotations.length
    ? `Trained on ${trained} tokens, serves ${longest}. Each request gets the smallest scale that covers its length.`
    : `Serves ${longest} tokens. This model has no rotary embedding, so nothing is scaled.`;
  at("served-lead").textContent =
    distances
      ? `${deployment.rope_type}: the last ${count(distances.window)} tokens are at their trained distances, older ones come in pages of ${count(distances.page)}. Keys have no scales.`
      : labels.length > 1
      ? `Requests by length, prompt and answer together: ${deployment.rope_type} at scales ${labels.join(", ")}.`
      : "There is one scale: every request runs as the model was trained.";
  for (const name of ["served", "try"]) at(name).hidden = false;
  at("chat").hidden = !live.has_chat_template;
  at("live").hidden = !figures;
  at("frequencies").hidden = !rotations.length;
  at("tiles").hidden = !figures;
  facts();
  const ends = deployment.scales.map((each) => each.max_request_tokens);
  const told = `Scales ${labels.join(", ")} end at ${ends.map(count).join(", ")} tokens; the trained length is ${trained} tokens.`;
  const drawRuler = () =>
    ruler(at("served-ruler"), { ends, labels: labels.map((label) => `scale ${label}`), trained: deployment.original_max_position_embeddings, told });
  drawRuler();
  tried = cards(at("cards"), live, wantKey);
  at("run-all").hidden = tried.length < 2;
  redraw = [drawRuler, ...tried.map(({ draw }) => draw)];
  if (rotations.length) redraw.push(frequencies(live));
  drawCharts = figures ? charts(at("charts"), live) : () => {};
  if (figures) redraw.push(() => history.samples.length && drawCharts(history));
}

function facts() {
  const { deployment, figures } = live;
  const found = [
    ["Method", deployment.rope_type],
    ["Trained length", `${count(deployment.original_max_position_embeddings)} tokens`],
    ["Longest request", `${count(deployment.max_model_len)} tokens`],
  ];
  if (deployment.scales.length > 1) {
    found.push(["Headroom", `${count(deployment.headroom_tokens)} new tokens`], ["On crossing", deployment.on_crossing], ["Prefix reuse", deployment.prefix_reuse]);
  }
  if (deployment.rerotate_budget_tokens !== null) found.push(["Re-rotated before a step", `at most ${count(deployment.rerotate_budget_tokens)} tokens`]);
  if (!figures) found.push(["Counts", "off (disable_log_stats), so there are no charts"]);
  at("facts").replaceChildren(...found.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
}

function tiles(found) {
  at("tiles").replaceChildren(...found.map(([name, value, unit]) => html("div", {}, html("dt", {}, name), html("dd", {}, html("b", {}, value), unit ? html("small", {}, ` ${unit}`) : null))));
}

function state(name, told) {
  if (at("state").textContent === told) return;
  at("state").dataset.state = name;
  at("state").textContent = told;
}

function note(told) {
  if (at("notice").textContent === told) return;
  at("notice").textContent = told;
  at("notice").hidden = !told;
}

function wantKey() {
  at("key-forget").hidden = !key();
  if (!at("key-dialog").open) at("key-dialog").showModal();
}

at("key").addEventListener("click", wantKey);
at("key-dialog").addEventListener("close", () => {
  const chosen = at("key-dialog").returnValue;
  if (chosen === "use") keep(at("key-value").value.trim());
  if (chosen === "forget") keep("");
  at("key-value").value = "";
  at("key-dialog").returnValue = "";
  if (chosen === "use" || chosen === "forget") read();
});
at("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  at("pause").setAttribute("aria-pressed", String(isPaused));
  if (isPaused) state("wait", "Paused");
  else read();
});
at("run-all").addEventListener("click", () => {
  tried.forEach((card) => card.run());
  if (!isPaused) read();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !isPaused) read();
});
addEventListener("online", read);

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  requestAnimationFrame(() => {
    redraw.forEach((draw) => draw());
    document.querySelectorAll(".scroll").forEach(hint);
  });
});

const chatProgress = chat(() => live, wantKey);
read();
