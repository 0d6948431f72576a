// The picture of frequencies: how many tokens each pair of a head takes for a full turn, at each scale.
import { compact, count, dash, html, measure, swatch, table, tint } from "./elements.js";
import { Plot } from "./plot.js";

/** Draw the wavelengths of a deployment that rotates. */
export function frequencies({ labels, rotations, deployment }) {
  const trained = deployment.original_max_position_embeddings;
  const own = rotations[0].wavelengths;
  const slow = own.filter((length) => length > trained).length;
  document.getElementById("frequencies-lead").textContent =
    `A rotary embedding turns each pair of a head by an angle that grows with the position. ${count(slow)} of the ` +
    `${count(own.length)} pairs take more than the trained ${count(trained)} tokens for a full turn. Larger scales ` +
    "turn the slow pairs more slowly, so that their angles stay in the range that the model was trained on.";
  const drawing = html("div", { class: "drawing" });
  const legend = html("ul", { class: "legend" }, ...labels.map((label, index) => html("li", {}, dash(tint(index)), `scale ${label}`)));
  const all = html("table", { class: "figures" });
  const more = html("details", {}, html("summary", {}, "Table of all pairs"), html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Wavelengths of all pairs" }, all));
  more.addEventListener("toggle", () => {
    table(all, "Tokens for a full turn, by pair and scale", ["Pair", ...labels.map((label) => `scale ${label}`)],
      own.map((_, pair) => [count(pair + 1), ...rotations.map(({ wavelengths }) => (pair < wavelengths.length ? measure(wavelengths[pair]) : "stands still"))]));
  });
  document.getElementById("wavelengths").replaceChildren(
    html("figcaption", {}, html("h3", {}, "Tokens for a full turn"), html("p", {}, "by pair that turns, the fastest first; the axis is logarithmic")),
    legend, drawing, more,
  );
  table(
    document.getElementById("frequencies-table"), "What each scale does to the rotation",
    ["Scale", "Attention factor", "Fastest pair", "Slowest pair", "Slowed by"],
    rotations.map(({ attention_factor: factor, wavelengths }, index) => [
      html("span", { class: "scale" }, swatch(index), labels[index]), factor.toFixed(4), `${measure(wavelengths[0])} tokens`,
      `${compact(wavelengths.at(-1))} tokens`, `${measure(wavelengths.at(-1) / own[wavelengths.length - 1])}×`,
    ]),
  );
  const draw = () => {
    const values = rotations.flatMap(({ wavelengths }) => wavelengths);
    const low = 10 ** Math.floor(Math.log10(Math.min(...values)));
    const high = 10 ** Math.ceil(Math.log10(Math.max(...values, trained * 1.5)));
    const powers = [];
    for (let power = low; power <= high * 1.001; power *= 10) powers.push(power);
    const every = Math.ceil(powers.length / 6);
    const told = `Tokens for a full turn of each of ${own.length} pairs at scales ${labels.join(", ")}. The trained length is ${count(trained)} tokens.`;
    const plot = new Plot(drawing, { x: [1, own.length], y: [low, high], height: 320, told, isLogarithmic: true, right: 34 });
    plot.across(powers.filter((_, index) => index % every === 0), compact);
    plot.along([1, Math.ceil(own.length / 2), own.length], (pair) => (pair === 1 ? "pair 1" : count(pair)));
    plot.limit(trained, `trained length: ${count(trained)} tokens`);
    [...rotations.keys()].reverse().forEach((index) => {
      plot.line(rotations[index].wavelengths.map((length, pair) => [pair + 1, length]), tint(index));
      plot.name(rotations[index].wavelengths.length, rotations[index].wavelengths.at(-1), labels[index]);
    });
    plot.show();
  };
  draw();
  return draw;
}
