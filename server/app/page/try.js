// The cards to try: each sends one request, shows its length and its scale, and what the server reports at its end.
import { KeyWanted, streamed } from "./ask.js";
import { count, html, tint } from "./elements.js";
import { filled, plans } from "./prompts.js";
import { ruler } from "./ruler.js";

const ABOUT = {
  short: ["Short prompt", "Fits the trained length. It runs at scale 1, as the model was trained."],
  long: ["Long prompt", "Too long for scale 1. It starts at the smallest scale that covers it."],
  far: ["Long prompt", "Longer than the trained length. Its last queries see far keys at a bounded distance."],
  growing: ["Growing request", "Starts just below the end of a scale, and grows past it: it crosses to the next one."],
};

/**
 * Make the cards of a deployment.
 *
 * wantsKey: called when the server wants a key. Gives the cards; run starts one.
 */
export function cards(container, live, wantsKey) {
  const found = Object.entries(plans(live)).filter(([, plan]) => plan).map(([kind, plan]) => card(kind, plan, live, wantsKey));
  container.replaceChildren(...found.map(({ element }) => element));
  container.dataset.number = found.length;
  found.forEach(({ draw }) => draw());
  return found;
}

function card(kind, plan, live, wantsKey) {
  const { deployment, labels, model } = live;
  const ends = deployment.scales.map((each) => each.max_request_tokens);
  const [title, about] = ABOUT[kind === "long" && deployment.distances ? "far" : kind];
  const id = (part) => `${kind}-${part}`;
  const prompt = html("textarea", { id: id("prompt"), rows: "4", spellcheck: "false", placeholder: `A text of about ${count(plan.tokens)} tokens is filled in when you run it.` });
  const answer = html("input", { id: id("answer"), type: "number", min: "1", max: deployment.max_model_len, value: plan.answer });
  const run = html("button", { type: "button", class: "main" }, "Run");
  const fill = html("button", { type: "button" }, "Fill");
  const scale = html("p", { class: "badge", hidden: true });
  const length = html("p", { class: "length" });
  const line = html("div", { class: "ruler" });
  const status = html("p", { class: "status", role: "status" });
  const text = html("div", { class: "answer", tabindex: "0", role: "region", "aria-label": `${title}: answer` });
  const element = html(
    "article", { class: "card", "aria-labelledby": id("title"), "data-kind": kind },
    html("header", {}, html("h3", { id: id("title") }, title), html("p", {}, about)),
    html("p", { class: "field" }, html("label", { for: id("prompt") }, "Prompt"), prompt),
    html("div", { class: "row" }, html("p", { class: "field narrow" }, html("label", { for: id("answer") }, "New tokens"), answer), fill, run),
    html("div", { class: "reading" }, scale, length), line, status, text,
  );

  let request = null;
  let [asked, reached, index, waiting] = [0, undefined, 0, false];

  const draw = () => {
    waiting = false;
    const told = reached ? `${count(reached)} tokens, at scale ${labels[index]}` : `Scales end at ${ends.map(count).join(", ")} tokens`;
    ruler(line, { ends, labels, trained: deployment.original_max_position_embeddings, to: reached, scale: index, told, isSmall: true });
    scale.hidden = !reached;
    scale.className = `badge ${tint(index)}`;
    scale.textContent = `Scale ${labels[index]}`;
    length.textContent = reached ? `${count(reached)} tokens, ${count(reached - asked)} of them new` : "";
  };
  const drawSoon = () => {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  const say = (told, isBad = false) => {
    status.textContent = told;
    status.classList.toggle("bad", isBad);
  };
  const fillIn = async () => {
    say("Measuring a text in tokens");
    prompt.value = await filled(kind, plan.tokens, model);
    prompt.scrollTop = 0;
    say("");
  };
  /** The rule of the server for a request's scale, so that the scale is shown while the request runs. */
  const follow = (usage, limit) => {
    if (!usage) return;
    asked = usage.prompt_tokens;
    const first = reached === undefined;
    const before = index;
    reached = asked + (usage.completion_tokens ?? 0);
    const admitted = asked + (deployment.on_crossing === "pin" ? limit : Math.min(limit, deployment.headroom_tokens));
    const covering = (tokens) => Math.max(0, ends.findIndex((end) => tokens <= end));
    index = Math.max(covering(admitted), covering(reached), first ? 0 : before);
    if (first) say(`Running at scale ${labels[index]}`);
    else if (index > before) say(`Crossed from scale ${labels[before]} to ${labels[index]} at ${count(ends[before])} tokens`);
    drawSoon();
  };
  const end = (report) => {
    if (!report) return say("Done. The server reported no scale.");
    if (deployment.distances) return say(`The server reports: ${count(report.tokens_past_trained)} tokens past the trained length.`);
    index = Math.max(0, deployment.scales.findIndex((each) => each.scale === report.scale));
    const crossed = report.crossings.map(({ from, to, at, how }) => `it crossed from ${from} to ${to} at ${count(at)} tokens (${how})`);
    say(`The server reports: ended at scale ${labels[index]}; ${crossed.join(", ") || "it did not cross"}.`);
    draw();
  };
  const start = async () => {
    request = new AbortController();
    [asked, reached, index] = [0, undefined, 0];
    text.textContent = "";
    run.textContent = "Stop";
    element.classList.add("running");
    draw();
    let report = null;
    try {
      if (!prompt.value) await fillIn();
      say("Waiting for the first token");
      const limit = Math.max(1, Number(answer.value) || plan.answer);
      const body = { model, prompt: prompt.value, max_tokens: limit, temperature: 0, ignore_eos: kind === "growing" };
      for await (const event of streamed("v1/completions", body, request.signal)) {
        const piece = event.choices?.[0]?.text ?? "";
        text.append(text.textContent ? piece : piece.trimStart());
        follow(event.usage, limit);
        report = event.kv_transfer_params?.posenc ?? report;
      }
      end(report);
    } catch (error) {
      if (error.name === "AbortError") say("Stopped");
      else say(error.message, true);
      if (error instanceof KeyWanted) wantsKey(error.message);
    } finally {
      request = null;
      run.textContent = "Run";
      element.classList.remove("running");
    }
  };

  run.addEventListener("click", () => (request ? request.abort() : start()));
  fill.addEventListener("click", () => fillIn().catch((error) => {
    say(error.message, true);
    if (error instanceof KeyWanted) wantsKey(error.message);
  }));
  run.setAttribute("aria-describedby", id("title"));
  fill.setAttribute("aria-describedby", id("title"));
  /** Prompt tokens that the server has read, and that it has not: of all requests, as it does not tell them apart. */
  const progress = ({ computed, waiting: left }) => {
    if (request && reached === undefined && left) say(`Reading prompts: ${count(computed)} of ${count(computed + left)} tokens`);
  };
  return { element, draw, progress, isRunning: () => request !== null, run: () => request ?? start() };
}
