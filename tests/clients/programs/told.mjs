// How the program of a client in JavaScript tells what worked: what told.py does.
import { appendFileSync, readFileSync } from "node:fs";

const { CLIENT_ADDRESS: ADDRESS, CLIENT_KEY: KEY, CLIENT_RESULTS: RESULTS } = process.env;
const json = JSON.parse(readFileSync(new URL("asked.json", import.meta.url), "utf-8"));
export const asked = {
  ...json,
  ADDRESS,
  KEY,
  WRONG_KEY: `not-${KEY}`,
  long: json.sentence.repeat(json.long_sentences),
  too_long: json.sentence.repeat(json.too_long_sentences),
};

const SECONDS_TO_STOP = 10;

function tell(record) {
  appendFileSync(RESULTS, JSON.stringify(record) + "\n");
}

export function assert(holds, message) {
  if (!holds) throw new Error(`not so: ${message}`);
}

export async function works(name, block) {
  try {
    await block();
    tell({ check: name, failed: null });
  } catch (error) {
    tell({ check: name, failed: `${error.name}: ${String(error.message).slice(0, 600)}` });
  }
}

export async function refused(name, expected, status, block, word = "") {
  await works(name, async () => {
    try {
      await block();
    } catch (error) {
      if (!(error instanceof expected)) throw error;
      assert(error.status === status, `the exception has status ${error.status}`);
      assert(error.message.includes(word), `the exception does not say ${word}: ${error.message}`);
      return;
    }
    throw new Error("it was not refused");
  });
}

export async function scaleAt(place, expression, names) {
  await works(`scale of ${place}`, () => {
    const report = new Function(...Object.keys(names), `return ${expression}`)(...Object.values(names));
    const crossed = JSON.stringify(report.crossings) === JSON.stringify(asked.crossings);
    assert(report.scale === 2 && crossed, JSON.stringify(report));
  });
  tell({ place, expression });
}

export async function cancelled(by, block) {
  tell({ cancelled_by: by });
  await works("cancel", async () => {
    const before = await metric("vllm:generation_tokens_total");
    await block();
    const deadline = Date.now() + SECONDS_TO_STOP * 1000;
    while ((await metric("vllm:num_requests_running")) > 0) {
      assert(Date.now() < deadline, `it still runs after ${SECONDS_TO_STOP} s`);
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const generated = (await metric("vllm:generation_tokens_total")) - before;
    assert(generated < asked.cancelled_tokens, "it was generated to its end");
  });
}

async function metric(name) {
  const answer = await fetch(`${ADDRESS}/metrics`, { headers: { Authorization: `Bearer ${KEY}` } });
  const lines = (await answer.text()).split("\n").filter((line) => line.startsWith(`${name}{`));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}
