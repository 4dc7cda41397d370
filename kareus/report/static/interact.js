// What figures share: words for numbers, captions, legends, redrawing on resize, and the tooltip.

const DASH = "\u2013";
const seconds = (value) => `${value.toFixed(3)} s`;
const milliseconds = (value) => `${(value * 1e3).toFixed(3)} ms`;
const kilojoules = (value) => `${(value / 1e3).toFixed(2)} kJ`;
const joules = (value) => `${value.toPrecision(4)} J`;
const watts = (value) => `${value.toFixed(0)} W`;
/** A percentage with a true minus sign and no line break before the sign; a dash if there is none. */
const percent = (value, digits = 1) =>
  value === null
    ? DASH
    : `${value
        .toFixed(digits)
        .replace(/^-(0(?:\.0+)?)$/, "$1")
        .replace("-", "\u2212")}\u00a0%`;
/** A reduction in words: "12.0 % less", or "3.0 % more" when it is negative. */
const lessOrMore = (value) => (value === null ? DASH : `${percent(Math.abs(value))} ${value < 0 ? "more" : "less"}`);

/** A figure with its title, the label of the testbed, a legend and a body to draw into. */
function figure(parent, title, legend = []) {
  const body = html("div", { class: "chart" });
  const items = legend.map(([name, style]) => html("li", {}, key(style), name));
  parent.append(
    html(
      "figure",
      { "aria-label": `${title} (${data.testbed.label})` },
      html("figcaption", {}, html("h3", {}, title), html("p", { class: "label" }, data.testbed.label)),
      items.length ? html("ul", { class: "legend" }, ...items) : null,
      body,
    ),
  );
  return body;
}

function key(style) {
  const box = svg("svg", { width: 16, height: 12, viewBox: "0 0 16 12", "aria-hidden": "true" });
  if (style.line)
    box.append(svg("line", { x1: 0, x2: 16, y1: 6, y2: 6, style: `stroke:var(--${style.color});stroke-width:2` }));
  if (style.shape) box.append(marker(style, 8, 6, 4));
  return box;
}

/** Call `draw(width)` now and whenever the width of `body` changes; it returns what to show. */
function responsive(body, draw) {
  let drawn = 0;
  const redraw = () => {
    const width = Math.floor(body.clientWidth);
    if (width === drawn || width === 0) return;
    drawn = width;
    body.replaceChildren(draw(width));
  };
  redraw();
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(body);
}

const tooltip = html("div", { id: "tooltip", role: "status", hidden: "" });

function showTooltip(event, { title, rows }) {
  const list = rows
    .filter((row) => row !== null)
    .flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);
  tooltip.replaceChildren(html("strong", {}, title), html("dl", {}, ...list));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width < innerWidth ? event.clientX + 16 : event.clientX - 16 - box.width;
  const top = event.clientY + 16 + box.height < innerHeight ? event.clientY + 16 : event.clientY - 16 - box.height;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

/** Show what `locate(x, y)` finds under the pointer: { title, rows, outline } or null. */
function hover(root, locate) {
  const focus = svg("g");
  root.append(focus);
  const leave = () => {
    focus.replaceChildren();
    tooltip.hidden = true;
  };
  const move = (event) => {
    const box = root.getBoundingClientRect();
    const zoom = root.viewBox.baseVal.width / box.width;
    const found = locate((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
    if (!found) return leave();
    focus.replaceChildren(found.outline);
    return showTooltip(event, found);
  };
  root.addEventListener("pointermove", move);
  root.addEventListener("pointerdown", move);
  root.addEventListener("pointerleave", leave);
}

/** Locate the nearest of `points` ({ x, y, describe }) within 24 pixels. */
function nearest(points) {
  return (x, y) => {
    let best = null;
    let distance = 24;
    for (const point of points) {
      const d = Math.hypot(point.x - x, point.y - y);
      if (d < distance) [best, distance] = [point, d];
    }
    return best && { ...best.describe(), outline: svg("circle", { class: "focus", cx: best.x, cy: best.y, r: 7 }) };
  };
}
