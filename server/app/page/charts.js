// The live charts: each a figure with its latest values, a drawing, and the same numbers as a table.
import { compact, count, dash, html, measure, percent, seconds, swatch, table, tint } from "./elements.js";
import { BIN, SHOWN } from "./history.js";
import { Plot, steps } from "./plot.js";

const SHARES = [0.5, 0.95, 0.99];
const ago = (value) => (value ? `${-value} s ago` : "now");
const ROWS = 12;

/** Make the charts of a deployment; gives the function that draws them anew. */
export function charts(container, live) {
  const { labels, deployment } = live;
  const scaled = labels.map((label, index) => ({ name: `scale ${label}`, tint: tint(index), mark: swatch(index) }));
  const steps_ = live.figures.crossings.filter(({ from, to }) => labels.includes(from) && labels.includes(to));
  const crossed = steps_.map(({ from, to }) => {
    const index = labels.indexOf(to);
    return { name: `${from} to ${to}`, tint: tint(index), mark: swatch(index), from, to };
  });
  const one = (name) => [{ name, tint: "plain", mark: html("span", { class: "swatch plain", "aria-hidden": "true" }) }];
  const shares = SHARES.map((share, index) => ({
    name: `p${100 * share}`, tint: `p${index}`, mark: dash(`p${index}`),
  }));
  const scales = (field) => (figures) => labels.map((label) => figures.by_scale[label]?.[field] ?? 0);
  const first = [
    levels("KV blocks", "blocks that running requests hold, by the scale of their keys", scaled, scales("kv_blocks"), "broad"),
    bars("Requests", "admitted in 4 seconds, by their first scale", scaled, scales("requests")),
  ];
  const others = [
    crossed.length
      ? bars("Crossings", "requests that outgrew their scale in 4 seconds", crossed, (figures) =>
          crossed.map(({ from, to }) => crossings(figures, from, to)))
      : null,
    deployment.rerotate_budget_tokens === null
      ? null
      : bars("Re-rotated tokens", "cached tokens whose keys were turned in 4 seconds", one("tokens"), (figures) => [figures.rerotated_tokens]),
    hits(scaled, labels),
    times("Time to first token", "of the requests of the minute before: half, 95 % and 99 % waited less", shares, (figures) => figures.first_token_seconds),
    times("Time between tokens", "of the minute before: half, 95 % and 99 % of tokens came faster", shares, (figures) => figures.between_tokens_seconds),
  ].filter(Boolean);
  others.forEach(({ figure }, index) => figure.classList.toggle("half", others.length === 4 || index >= 3));
  const drawn = [...first, ...others];
  container.replaceChildren(...drawn.map(({ figure }) => figure));
  return (history) => drawn.forEach(({ draw }) => draw(history));
}

const crossings = (figures, from, to) =>
  figures.crossings.filter((each) => each.from === from && each.to === to).reduce((sum, { count: found }) => sum + found, 0);

/** A figure: heading, legend with the latest values, drawing, table. */
function figure(title, about, series, name = "") {
  const values = series.map(() => html("span", { class: "value" }));
  const drawing = html("div", { class: "drawing" });
  const rows = html("table", { class: "figures" });
  const more = html(
    "details", {}, html("summary", {}, "Table", html("span", { class: "hidden" }, ` of ${title.toLowerCase()}`)),
    html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, as a table` }, rows),
  );
  const legend = html("ul", { class: "legend" }, ...series.map((each, index) => html("li", {}, each.mark.cloneNode(true), `${each.name} `, values[index])));
  const whole = html("figure", { class: `chart ${name}` }, html("figcaption", {}, html("h3", {}, title), html("p", {}, about)), legend, drawing, more);
  return {
    whole, drawing,
    say(latest) {
      latest.forEach((value, index) => (values[index].textContent = value));
      return `${title}, ${about}. Latest: ${series.map((each, index) => `${each.name} ${latest[index]}`).join(", ")}.`;
    },
    list(head, make) {
      if (more.open) table(rows, `${title}, ${about}`, head, make());
    },
  };
}

function levels(title, about, series, read, name) {
  const { whole, drawing, say, list } = figure(title, about, series, name);
  const draw = (history) => {
    const points = history.levels(read);
    const highest = Math.max(...points.map(([, values]) => sum(values)));
    const marks = steps(highest, 4);
    const plot = new Plot(drawing, { x: [-SHOWN, 0], y: [0, marks.at(-1)], told: say(points.at(-1)[1].map(count)), height: 190 });
    plot.across(marks, compact).along([-SHOWN, -SHOWN / 2, 0], ago);
    series.forEach((each, index) => {
      const bounds = points.map(([x, values]) => [x, sum(values.slice(0, index)), sum(values.slice(0, index + 1))]);
      if (bounds.some(([, low, high]) => high > low)) plot.area(bounds, each.tint);
    });
    plot.show();
    const every = Math.max(1, Math.ceil(points.length / ROWS));
    list(["Seconds ago", ...series.map((each) => each.name)], () =>
      points.filter((_, index) => (points.length - 1 - index) % every === 0).reverse()
        .map(([x, values]) => [count(-x), ...values.map(count)]));
  };
  return { figure: whole, draw };
}

function bars(title, about, series, read) {
  const { whole, drawing, say, list } = figure(title, about, series);
  const draw = (history) => {
    const bins = history.growth(read);
    const marks = steps(Math.max(...bins.map(sum)), 4);
    const all = read(history.samples.at(-1).figures).map((value) => `${count(value)} in all`);
    const plot = new Plot(drawing, { x: [0, bins.length], y: [0, marks.at(-1)], told: say(all) });
    plot.across(marks, compact).along([0, bins.length / 2, bins.length], (bin) => ago(BIN * (bin - bins.length)));
    bins.forEach((values, bin) => {
      series.forEach((each, index) => {
        plot.bar(bin, bin + 1, sum(values.slice(0, index)), sum(values.slice(0, index + 1)), each.tint);
      });
    });
    plot.show();
    list(["Seconds ago", ...series.map((each) => each.name)], () =>
      bins.slice(-ROWS).reverse().map((values, index) => [`${BIN * index} to ${BIN * (index + 1)}`, ...values.map(count)]));
  };
  return { figure: whole, draw };
}

function hits(series, labels) {
  const about = "share of prompt tokens read from the prefix cache, by scale";
  const { whole, drawing, say, list } = figure("Prefix hits", about, series);
  const draw = (history) => {
    const { figures } = history.samples.at(-1);
    const counts = labels.map((label) => figures.by_scale[label] ?? { prompt_tokens: 0, prefix_hit_tokens: 0 });
    const shares = counts.map(({ prompt_tokens: asked, prefix_hit_tokens: found }) => (asked ? found / asked : 0));
    const told = say(shares.map((share, index) => (counts[index].prompt_tokens ? percent(share) : "no prompts")));
    const plot = new Plot(drawing, { x: [0, labels.length], y: [0, 1], told });
    plot.across([0, 0.5, 1], percent);
    labels.forEach((_, index) => plot.bar(index + 0.2, index + 0.8, 0, shares[index], series[index].tint));
    plot.along(labels.map((_, index) => index + 0.5), (x) => labels[x - 0.5], true);
    plot.show();
    list(["Scale", "Prompt tokens", "From the cache", "Share"], () =>
      labels.map((label, index) => [label, count(counts[index].prompt_tokens), count(counts[index].prefix_hit_tokens), percent(shares[index])]));
  };
  return { figure: whole, draw };
}

function times(title, about, series, read) {
  const { whole, drawing, say, list } = figure(title, about, series);
  const draw = (history) => {
    const points = history.quantiles(read, SHARES);
    const known = points.flatMap(([, values]) => values).filter((value) => value !== null);
    const marks = steps(Math.max(...known, 0), 0.01);
    const plot = new Plot(drawing, { x: [-SHOWN, 0], y: [0, marks.at(-1)], told: say(points.at(-1)[1].map(seconds)) });
    plot.across(marks, (value) => (marks.at(-1) < 1 ? `${measure(1000 * value)} ms` : `${measure(value)} s`));
    plot.along([-SHOWN, -SHOWN / 2, 0], ago);
    series.forEach((each, index) => plot.line(points.map(([x, values]) => [x, values[index]]), each.tint));
    plot.show();
    const every = Math.max(1, Math.ceil(points.length / ROWS));
    list(["Seconds ago", ...series.map((each) => each.name)], () =>
      points.filter((_, index) => (points.length - 1 - index) % every === 0).reverse()
        .map(([x, values]) => [count(-x), ...values.map(seconds)]));
  };
  return { figure: whole, draw };
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
