// Drawing: elements, scales, axes, markers and steps. Text enters the page as text only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** Linear map from `domain` to `range`, both [from, to]. */
function scale([d0, d1], [r0, r1]) {
  const map = (value) => r0 + ((value - d0) / (d1 - d0)) * (r1 - r0);
  map.domain = [d0, d1];
  return map;
}

/** Range of `values` with a margin of `share` of it on both ends. */
function extent(values, share = 0.06) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const margin = (high - low) * share || Math.abs(high) * share || 1;
  return [low - margin, high + margin];
}

/** Round numbers within [low, high], about `count` of them, and the decimals that tell them apart. */
function ticks([low, high], count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); i += 1) values.push(i * step);
  const exponent = Math.floor(Math.log10(step) + 1e-9);
  const half = Math.abs(step / 10 ** exponent - 2.5) < 1e-6 ? 1 : 0;
  return { values, decimals: Math.max(0, half - exponent) };
}

const SHAPES = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  square: (r) => `M${-r * 0.88} ${-r * 0.88}h${r * 1.76}v${r * 1.76}h${-r * 1.76}Z`,
  triangle: (r) => `M0 ${-r * 1.2}L${r * 1.1} ${r * 0.8}H${-r * 1.1}Z`,
  diamond: (r) => `M0 ${-r * 1.3}L${r * 1.15} 0L0 ${r * 1.3}L${-r * 1.15} 0Z`,
  wedge: (r) => `M0 ${r * 1.2}L${r * 1.1} ${-r * 0.8}H${-r * 1.1}Z`,
  cross: (r) => `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}`,
  plus: (r) => `M${-r * 1.2} 0H${r * 1.2}M0 ${-r * 1.2}V${r * 1.2}`,
  ring: (r) => SHAPES.circle(r),
  number: (r) => SHAPES.circle(r),
};

/** A point. Open shapes are stroked, the others filled. */
function marker({ shape, color }, x, y, r = 3.5) {
  const open = shape === "cross" || shape === "plus" || shape === "ring";
  return svg("path", {
    class: "mark",
    d: SHAPES[shape](r),
    transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})`,
    style: open ? `fill:none;stroke:var(--${color});stroke-width:1.5` : `fill:var(--${color})`,
  });
}

/** Points joined by rising x: in steps (right, then up or down) or straight. */
function path(places, { color, line, faint }) {
  const join = line === "steps" ? (x, y) => `H${x}V${y}` : (x, y) => `L${x} ${y}`;
  const d = places.map(({ x, y }, i) => (i ? join(x.toFixed(2), y.toFixed(2)) : `M${x.toFixed(2)} ${y.toFixed(2)}`));
  return svg("path", { class: faint ? "line-of faint" : "line-of", d: d.join(""), style: `stroke:var(--${color})` });
}

/** An empty drawing that says what it shows and on which testbed. */
function drawing(width, height, title) {
  const name = `${title} (${data.testbed.label})`;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
}

/** An empty plot: the drawing, its axes with labels, and the scales `x` and `y`. */
function axes({ width, height, x: xDomain, y: yDomain, xLabel, yLabel, title }) {
  const margin = { top: 22, right: 14, bottom: 42, left: 54 };
  const x = scale(xDomain, [margin.left, width - margin.right]);
  const y = scale(yDomain, [height - margin.bottom, margin.top]);
  const root = drawing(width, height, title);
  const bottom = height - margin.bottom;
  const right = width - margin.right;
  const xTicks = ticks(xDomain, (right - margin.left) / 60);
  const yTicks = ticks(yDomain, (bottom - margin.top) / 36);
  for (const value of yTicks.values) {
    const at = y(value);
    root.append(
      svg("line", { class: "grid", x1: margin.left, x2: right, y1: at, y2: at }),
      svg(
        "text",
        { class: "tick", x: margin.left - 7, y: at + 4, "text-anchor": "end" },
        value.toFixed(yTicks.decimals),
      ),
    );
  }
  for (const value of xTicks.values) {
    const at = x(value);
    root.append(
      svg("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 5 }),
      svg("text", { class: "tick", x: at, y: bottom + 18, "text-anchor": "middle" }, value.toFixed(xTicks.decimals)),
    );
  }
  root.append(
    svg("line", { class: "axis", x1: margin.left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { x: (margin.left + right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel),
    svg("text", { x: 2, y: 11 }, yLabel),
  );
  return { root, x, y };
}
