// OpenAI's client for JavaScript and TypeScript.
import OpenAI from "openai";

import { asked, assert, cancelled, refused, scaleAt, works } from "./told.mjs";

const baseURL = `${asked.ADDRESS}/v1`;
const client = new OpenAI({ baseURL, apiKey: asked.KEY, maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const short = { model: asked.model, messages: user(asked.question), max_tokens: asked.answer_tokens };
const long = { model: asked.model, messages: user(asked.long), max_tokens: asked.long_tokens, ignore_eos: true };

await works("answer", async () => {
  const answer = await client.chat.completions.create(short);
  assert(answer.choices[0].message.content === asked.answer, answer.choices[0].message.content);
});
await works("stream", async () => {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...short, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert(text === asked.answer, text);
});
await works("crossing", async () => {
  const answer = await client.chat.completions.create(long);
  await scaleAt("an answer", "answer.kv_transfer_params.posenc", { answer });
});
await works("streamed crossing", async () => {
  let chunk;
  for await (chunk of await client.chat.completions.create({ ...long, stream: true }));
  await scaleAt("a stream", "chunk.kv_transfer_params.posenc", { chunk });
});
await refused(
  "too long",
  OpenAI.BadRequestError,
  400,
  () => client.chat.completions.create({ model: asked.model, messages: user(asked.too_long) }),
  asked.longest,
);
await refused(
  "wrong key",
  OpenAI.AuthenticationError,
  401,
  () => new OpenAI({ baseURL, apiKey: asked.WRONG_KEY, maxRetries: 0 }).chat.completions.create(short),
  asked.unknown_key,
);
await cancelled("break", async () => {
  const asking = { model: asked.model, prompt: asked.question, max_tokens: asked.cancelled_tokens, ignore_eos: true };
  let pieces = 0;
  for await (const _ of await client.completions.create({ ...asking, stream: true })) {
    if (++pieces === asked.read_pieces) break;
  }
});

await works("also `models.list`", async () => {
  const { data } = await client.models.list();
  assert(data.map((model) => model.id).join() === asked.model, JSON.stringify(data));
});
await works("also `completions.create`", async () => {
  const asking = { model: asked.model, prompt: asked.long, max_tokens: asked.long_tokens, ignore_eos: true };
  const { kv_transfer_params } = await client.completions.create(asking);
  assert(kv_transfer_params.posenc.scale === 2, JSON.stringify(kv_transfer_params));
});
await works("also `responses.create`", async () => {
  const asking = { model: asked.model, input: asked.question, max_output_tokens: asked.answer_tokens };
  const response = await client.responses.create(asking);
  assert(response.output_text === asked.answer, response.output_text);
  assert(response.kv_transfer_params.posenc.scale === 1, JSON.stringify(response.kv_transfer_params));
});
await works("also `chat.completions.stream`", async () => {
  const { kv_transfer_params } = await client.chat.completions.stream(long).finalChatCompletion();
  assert(kv_transfer_params.posenc.scale === 2, JSON.stringify(kv_transfer_params));
});
await works("also `vllm_xargs`", async () => {
  const answer = await client.chat.completions.create({ ...long, vllm_xargs: { posenc_on_crossing: "recompute" } });
  const { crossings } = answer.kv_transfer_params.posenc;
  assert(crossings.length === 1 && crossings[0].how === "recompute", JSON.stringify(crossings));
});
