// Prompts of a wanted length, for any model: a text is repeated as often as its tokens need.
import { ask } from "./ask.js";

const FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
const SECRET = "The pass key is 48213. Remember it. 48213 is the pass key. ";
const QUESTION = "What is the pass key? The pass key is";
const KINDS = {
  short: (times) => SECRET + FILLER.repeat(times) + QUESTION,
  long: (times) => FILLER.repeat(Math.floor(times / 2)) + SECRET + FILLER.repeat(Math.ceil(times / 2)) + QUESTION,
  growing: (times) => FILLER.repeat(times).trim(),
};
let measured = {};

/** What a card asks for: how long its prompt shall be, and how many new tokens; null where there is no such request. */
export function plans({ deployment }) {
  const { scales, max_model_len: longest, headroom_tokens: headroom, original_max_position_embeddings: trained } = deployment;
  const ends = scales.map((each) => each.max_request_tokens);
  const found = {
    short: { tokens: Math.min(80, Math.floor(ends[0] / 3)), answer: Math.min(12, Math.max(1, Math.floor(ends[0] / 8))) },
    long: ends.length > 1 || longest > 2000 ? { tokens: Math.floor(Math.min(0.75 * longest, Math.max(1.5 * trained, 4096))), answer: 12 } : null,
    growing: null,
  };
  const margin = 8;
  const from = ends.slice(0, -1).findIndex((end) => end - headroom - margin >= 16);
  if (from >= 0) {
    const answer = Math.min(headroom + margin + Math.max(64, headroom), longest - (ends[from] - headroom - margin));
    found.growing = { tokens: ends[from] - headroom - margin, answer, from };
  }
  return found;
}

/** A prompt of at most so many tokens, and of nearly as many. Two short requests measure the text. */
export async function filled(kind, tokens, model) {
  const make = KINDS[kind];
  measured[kind] ??= measure(make, model);
  try {
    const { base, each } = await measured[kind];
    return make(Math.max(1, Math.floor((tokens - base) / each)));
  } catch (error) {
    delete measured[kind];
    throw error;
  }
}

async function measure(make, model) {
  const counts = [];
  for (const times of [1, 3]) {
    const answer = await ask("v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, prompt: make(times), max_tokens: 1 }),
    });
    counts.push((await answer.json()).usage.prompt_tokens);
  }
  const each = (counts[1] - counts[0]) / 2;
  return { base: counts[0] - each, each };
}
