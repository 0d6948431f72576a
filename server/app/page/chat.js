// The box to chat: sends the conversation so far, shows the answer as it comes, and what the server reports of it.
import { KeyWanted, streamed } from "./ask.js";
import { count, html, measure } from "./elements.js";

const at = (id) => document.getElementById(id);

/**
 * Make the box ready for a model.
 *
 * live: gives what the server told last. wantsKey: called when the server wants a key.
 */
export function chat(live, wantsKey) {
  const [talk, form, words, limit, send, status] = ["talk", "chat-form", "chat-words", "chat-limit", "chat-send", "chat-status"].map(at);
  let messages = [];
  let request = null;

  const say = (told, isBad = false) => {
    status.textContent = told;
    status.classList.toggle("bad", isBad);
  };
  const turn = (role, text) => {
    const said = html("div", { class: "said" }, text);
    const note = html("p", { class: "length" });
    const item = html("li", { class: role }, html("h3", {}, role === "user" ? "You" : live().model), said, note);
    talk.hidden = false;
    talk.append(item);
    item.scrollIntoView({ block: "nearest" });
    return { said, note };
  };
  const start = async () => {
    const asked = words.value.trim();
    if (!asked) return words.focus();
    request = new AbortController();
    send.textContent = "Stop";
    say("Waiting for the first token");
    turn("user", asked);
    const { said, note } = turn("assistant", "");
    const sent = [...messages, { role: "user", content: asked }];
    const most = Math.max(1, Number(limit.value) || 256);
    let [answer, report, usage, finish, first] = ["", null, null, null, 0];
    words.value = "";
    try {
      const body = { model: live().model, messages: sent, max_tokens: most };
      for await (const event of streamed("v1/chat/completions", body, request.signal)) {
        const choice = event.choices?.[0];
        const piece = choice?.delta?.content ?? "";
        if (piece) {
          first ||= performance.now();
          if (!answer) say("");
          answer += piece;
          const isAtEnd = talk.scrollTop + talk.clientHeight > talk.scrollHeight - 24;
          said.textContent = answer.trimStart();
          if (isAtEnd) talk.scrollTop = talk.scrollHeight;
        }
        finish = choice?.finish_reason ?? finish;
        usage = event.usage ?? usage;
        report = event.kv_transfer_params?.posenc ?? report;
      }
      note.textContent = told(report, usage, finish, (performance.now() - first) / 1000);
      talk.scrollTop = talk.scrollHeight;
      say("");
    } catch (error) {
      if (error.name !== "AbortError") {
        if (!answer) words.value = asked;
        say(error.message, true);
      } else {
        note.textContent = "Stopped";
        say("");
      }
      if (error instanceof KeyWanted) wantsKey(error.message);
    } finally {
      if (answer) messages = [...sent, { role: "assistant", content: answer }];
      request = null;
      send.textContent = "Send";
    }
  };
  const told = (report, usage, finish, time) => {
    const found = [];
    if (report) {
      const past = report.tokens_past_trained;
      found.push(past === undefined || past === null ? `scale ${report.scale}` : past ? `${count(past)} tokens past the trained length` : "within the trained length");
      for (const { from, to, at: where } of report.crossings ?? []) found.push(`crossed from ${from} to ${to} at ${count(where)} tokens`);
    }
    if (usage) {
      found.push(`${count(usage.prompt_tokens + usage.completion_tokens)} tokens, ${count(usage.completion_tokens)} of them new`);
      if (usage.completion_tokens > 1 && time > 0) found.push(`${measure((usage.completion_tokens - 1) / time)} tokens a second`);
      if (finish === "length") found.push(`cut at ${count(usage.completion_tokens)} tokens`);
    }
    return found.join("; ");
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (request) request.abort();
    else start();
  });
  words.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!request) start();
  });
  at("chat-new").addEventListener("click", () => {
    request?.abort();
    messages = [];
    talk.replaceChildren();
    talk.hidden = true;
    say("");
    words.focus();
  });
  /** Prompt tokens that the server has read, and that it has not: of all requests. */
  return ({ computed, waiting }) => {
    if (request && waiting && !talk.lastElementChild?.querySelector(".said").textContent) say(`Reading prompts: ${count(computed)} of ${count(computed + waiting)} tokens`);
  };
}
