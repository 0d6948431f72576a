// Draws charts as SVG, in pixels of the page, so that text has its size at every width.
import { svg } from "./elements.js";

const LEFT = 44;
const TOP = 8;
const BOTTOM = 22;

export class Plot {
  /**
   * x, y: the lowest and the highest value. height, right: pixels, of the whole and of the margin. told: what the chart
   * says to those who do not see it. isLogarithmic: whether y is.
   */
  constructor(container, { x, y, height = 170, told, isLogarithmic = false, right = 10 }) {
    this.container = container;
    this.width = Math.max(container.clientWidth, 220);
    this.height = height;
    this.right = right;
    const bend = isLogarithmic ? Math.log10 : (value) => value;
    const [low, high] = y.map(bend);
    this.x = (value) => LEFT + ((value - x[0]) / (x[1] - x[0] || 1)) * (this.width - LEFT - right);
    this.y = (value) => height - BOTTOM - ((bend(value) - low) / (high - low || 1)) * (height - BOTTOM - TOP);
    this.drawing = svg("svg", { viewBox: `0 0 ${this.width} ${height}`, width: this.width, height, role: "img" }, svg("title", {}, told));
  }

  /** Lines across at values of y, and their names. */
  across(values, format) {
    for (const value of values) {
      this.drawing.append(
        svg("line", { class: "grid", x1: LEFT, x2: this.width - this.right, y1: this.y(value), y2: this.y(value) }),
        svg("text", { class: "tick", x: LEFT - 7, y: this.y(value) + 4, "text-anchor": "end" }, format(value)),
      );
    }
    return this;
  }

  /** Names below, at values of x: centred, or those at the ends within the chart. */
  along(values, format, isCentred = false) {
    values.forEach((value, index) => {
      const anchor = isCentred ? "middle" : index === 0 ? "start" : index === values.length - 1 ? "end" : "middle";
      this.drawing.append(svg("text", { class: "tick", x: this.x(value), y: this.height - 5, "text-anchor": anchor }, format(value)));
    });
    return this;
  }

  /** A line through points. A value of null interrupts it. */
  line(points, name) {
    let path = "";
    let isDown = false;
    for (const [x, y] of points) {
      if (y !== null) path += `${isDown ? "L" : "M"}${round(this.x(x))} ${round(this.y(y))}`;
      isDown = y !== null;
    }
    if (path) this.drawing.append(svg("path", { class: `line ${name}`, d: path }));
    return this;
  }

  /** The surface between two lines over the same values of x. */
  area(points, name) {
    if (points.length < 2) return this;
    const there = points.map(([x, , high]) => `${round(this.x(x))} ${round(this.y(high))}`);
    const back = points.map(([x, low]) => `${round(this.x(x))} ${round(this.y(low))}`).reverse();
    this.drawing.append(svg("path", { class: `area ${name}`, d: `M${there.join("L")}L${back.join("L")}Z` }));
    return this;
  }

  /** A bar from one value of x to another. */
  bar(from, to, low, high, name) {
    if (high <= low) return this;
    const [left, right, top, bottom] = [this.x(from) + 1, this.x(to) - 1, this.y(high), this.y(low)];
    this.drawing.append(
      svg("rect", { class: `bar ${name}`, x: left, y: top, width: Math.max(right - left, 1), height: Math.max(bottom - top, 1) }),
    );
    return this;
  }

  /** A name beside a point. */
  name(x, y, told) {
    this.drawing.append(svg("text", { class: "tick", x: this.x(x) + 6, y: this.y(y) + 4 }, told));
    return this;
  }

  /** A line across with a name, such as a limit. */
  limit(value, name) {
    const y = this.y(value);
    this.drawing.append(
      svg("line", { class: "limit", x1: LEFT, x2: this.width - this.right, y1: y, y2: y }),
      svg("text", { class: "limit-name", x: LEFT + 8, y: y - 6 }, name),
    );
    return this;
  }

  show() {
    this.container.replaceChildren(this.drawing);
  }
}

const round = (value) => Math.round(10 * value) / 10;

/** Values for an axis from 0 to at least the highest: two or three steps of 1, 2 or 5 times a power of ten. */
export function steps(highest, least = 1) {
  const top = Math.max(highest, least);
  const power = 10 ** Math.floor(Math.log10(top / 2));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => top / each <= 3);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, index) => index * step);
}
