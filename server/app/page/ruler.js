// The lengths of requests, divided by scale: each scale is equally wide, and within it the axis is linear.
import { count, svg, tint } from "./elements.js";

const BAR = 14;

/** Where a length stands on a ruler, from 0 to 1. */
function place(ends, tokens) {
  const index = ends.findIndex((end) => tokens <= end);
  if (index < 0) return 1;
  const start = index ? ends[index - 1] : 0;
  return (index + (tokens - start) / (ends[index] - start)) / ends.length;
}

/**
 * Draw a ruler.
 *
 * ends: the longest request of each scale, tokens. trained: the trained length. to, scale: a request's length and the
 * index of its scale, where there is a request. All keys of a request have one scale, and so the bar has one colour.
 * told: what the ruler says to those who do not see it.
 */
export function ruler(container, { ends, labels, trained, to, scale, told, isSmall = false }) {
  const width = Math.max(container.clientWidth, 200);
  const at = (tokens) => place(ends, tokens) * width;
  const top = isSmall ? 10 : 26;
  const height = top + BAR + (isSmall ? 22 : 38);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  drawing.append(svg("title", {}, told));
  const step = width / ends.length;
  ends.forEach((end, index) => {
    const left = index * step;
    drawing.append(
      svg("rect", {
        class: `segment ${tint(index)}`, x: left + (index ? 1 : 0), y: top, width: step - (index ? 1 : 0), height: BAR,
      }),
      svg("text", { class: "tick", x: left + step, y: top + BAR + 15, "text-anchor": "end" }, count(end)),
    );
    if (!isSmall) {
      drawing.append(svg("text", { class: "name", x: left + step / 2, y: top - 9, "text-anchor": "middle" }, labels[index]));
    }
  });
  if (to) {
    drawing.append(svg("rect", { class: `reached ${tint(scale)}`, x: 0, y: top, width: at(to), height: BAR }));
    drawing.append(svg("path", { class: "tip", d: `M${at(to)} ${top - 1}l-5 -8h10Z` }));
  }
  if (trained <= ends.at(-1)) {
    drawing.append(svg("line", { class: "trained", x1: at(trained), x2: at(trained), y1: top - 3, y2: top + BAR + 4 }));
    if (!isSmall) {
      const [x, anchor] = at(trained) < 90 ? [0, "start"] : [at(trained), "end"];
      drawing.append(svg("text", { class: "tick", x, y: top + BAR + 32, "text-anchor": anchor }, "trained length"));
    }
  }
  container.replaceChildren(drawing);
}
