// Makes elements of HTML and SVG, and writes numbers.

const SVG = "http://www.w3.org/2000/svg";

export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** A count, in full. */
export const count = (value) => whole.format(Math.round(value));

/** A measure, to three digits. */
export const measure = (value) => (value >= 1000 ? whole.format(Math.round(value)) : short.format(value));

export const percent = (share) => `${short.format(100 * share)} %`;

export function seconds(value) {
  if (value === null || value === undefined) return "none";
  if (value < 0.001) return `${short.format(1e6 * value)} µs`;
  return value < 1 ? `${short.format(1000 * value)} ms` : `${short.format(value)} s`;
}

/** A figure for a narrow axis: 12, 3.4k, 1.2M. */
export function compact(value) {
  if (value >= 1e6) return `${short.format(value / 1e6)}M`;
  return value >= 10000 ? `${short.format(value / 1000)}k` : short.format(value);
}

/** A table of a head and rows; the first cell of a row names it. */
export function table(element, caption, head, rows) {
  element.replaceChildren(
    html("caption", { class: "hidden" }, caption),
    html("thead", {}, html("tr", {}, ...head.map((cell) => html("th", { scope: "col" }, cell)))),
    html(
      "tbody",
      {},
      ...rows.map(([first, ...others]) =>
        html("tr", {}, html("th", { scope: "row" }, first), ...others.map((cell) => html("td", {}, cell))),
      ),
    ),
  );
  if (element.closest(".scroll")) hint(element.closest(".scroll"));
}

/** Say of a table that is wider than its place that it scrolls. */
export function hint(place) {
  const isWide = place.scrollWidth > place.clientWidth + 1;
  let told = place.previousElementSibling;
  if (!told?.classList.contains("sideways")) {
    if (!isWide) return;
    told = html("p", { class: "sideways" }, "Scroll the table sideways for all columns.");
    place.before(told);
  }
  told.hidden = !isWide;
}

/** A mark in a scale's colour. */
export const swatch = (index) => html("span", { class: `swatch ${tint(index)}`, "aria-hidden": "true" });

/** A line as charts draw it. */
export const dash = (name) =>
  svg("svg", { class: "dash", width: 22, height: 8, "aria-hidden": "true" }, svg("path", { class: `line ${name}`, d: "M0 4h22" }));

/** The class with a scale's colour. */
export const tint = (index) => `s${index % 8}`;
