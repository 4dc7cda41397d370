// What figures share: words for numbers, captions, legends, redrawing on resize, and the tooltip.

const DASH = "\u2013";
const count = (value) => value.toLocaleString("en-US");
const seconds = (value) => `${value.toFixed(3)} s`;
const milliseconds = (value) => `${(value * 1e3).toFixed(3)} ms`;
const joules = (value) => `${value.toPrecision(4)} J`;
const kilojoules = (value) => `${(value / 1e3).toFixed(2)} kJ`;
const megajoules = (value) => `${(value / 1e6).toFixed(2)} MJ`;
const watts = (value) => `${value.toFixed(0)} W`;
const kilowatts = (value) => `${(value / 1e3).toFixed(2)} kW`;
const celsius = (value) => `${value.toFixed(1)} \u00b0C`;
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

/** A figure with its title, the label of the testbed, its files, a legend and a body to draw into. */
function figure(parent, { name, title, table: source }, legend = []) {
  const body = html("div", { class: "chart" });
  const items = legend.map(([text, style]) => html("li", {}, key(style), text));
  parent.append(
    html(
      "figure",
      { "aria-label": `${title} (${data.testbed.label})` },
      html(
        "figcaption",
        {},
        html("h3", {}, title),
        html("p", { class: "label" }, data.testbed.label),
        files(title, [
          ["SVG", `figures/${name}.svg`],
          ["PDF", `figures/${name}.pdf`],
          ...tableLinks(source),
        ]),
      ),
      items.length ? html("ul", { class: "legend" }, ...items) : null,
      body,
    ),
  );
  return body;
}

const tableLinks = (name) => [
  ["CSV", `data/${name}.csv`],
  ["Parquet", `data/${name}.parquet`],
];

/** Links to files beside the page. */
function files(what, links) {
  const items = links.map(([text, place]) => html("a", { href: encodeURI(place), "aria-label": `${text}: ${what}` }, text));
  return html("p", { class: "files" }, ...items);
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

/** Show a text beside a place of the window. */
function showTooltip({ title, rows }, x, y) {
  const list = rows
    .filter((row) => row !== null)
    .flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);
  tooltip.replaceChildren(html("strong", {}, title), html("dl", {}, ...list));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 16 + box.width < innerWidth ? x + 16 : x - 16 - box.width;
  const top = y + 16 + box.height < innerHeight ? y + 16 : y - 16 - box.height;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

/**
 * Tell of what is pointed at, or reached with the arrow keys: left and right within a lane, up and down to the next one.
 * `lanes` are lists of spots ({ x, y, title, rows, outline }); `locate(x, y)` finds the spot under the pointer, or null.
 */
function hover(root, lanes, locate) {
  const focus = svg("g");
  root.append(focus);
  const leave = () => {
    focus.replaceChildren();
    tooltip.hidden = true;
  };
  const zoom = () => root.viewBox.baseVal.width / root.getBoundingClientRect().width;
  const move = (event) => {
    const box = root.getBoundingClientRect();
    const spot = locate((event.clientX - box.left) * zoom(), (event.clientY - box.top) * zoom());
    if (!spot) return leave();
    focus.replaceChildren(spot.outline());
    return showTooltip(spot, event.clientX, event.clientY);
  };
  root.addEventListener("pointermove", move);
  root.addEventListener("pointerdown", move);
  root.addEventListener("pointerleave", leave);
  if (!lanes.some((lane) => lane.length)) return;
  let [lane, at] = [lanes.findIndex((spots) => spots.length), 0];
  const show = () => {
    const spot = lanes[lane][at];
    focus.replaceChildren(spot.outline());
    focus.firstChild.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = root.getBoundingClientRect();
    showTooltip(spot, box.left + spot.x / zoom(), box.top + spot.y / zoom());
  };
  root.setAttribute("tabindex", "0");
  root.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight ArrowUp ArrowDown Escape");
  root.addEventListener("focus", () => root.matches(":focus-visible") && show());
  root.addEventListener("blur", leave);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return leave();
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return undefined;
    event.preventDefault();
    [lane, at] = stepped(lanes, lane, at, event.key);
    return show();
  });
}

/** Lane and number of the spot that an arrow key leads to; in another lane, of the one that is nearest in x. */
function stepped(lanes, lane, at, key) {
  if (key === "ArrowLeft") return [lane, Math.max(at - 1, 0)];
  if (key === "ArrowRight") return [lane, Math.min(at + 1, lanes[lane].length - 1)];
  const next = Math.max(0, Math.min(lane + (key === "ArrowUp" ? -1 : 1), lanes.length - 1));
  if (next === lane || !lanes[next].length) return [lane, at];
  const away = lanes[next].map((spot) => Math.abs(spot.x - lanes[lane][at].x));
  return [next, away.indexOf(Math.min(...away))];
}

/** A spot that is a box. */
function boxSpot(box, title, rows) {
  const middle = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  return { ...middle, box, title, rows, outline: () => svg("rect", { ...box, class: "focus" }) };
}

/** Locate the box that holds a point. */
function inside(spots) {
  const holds = ({ box }, x, y) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height;
  return (x, y) => spots.find((spot) => holds(spot, x, y)) ?? null;
}

/** Locate the nearest spot within 24 pixels. */
function nearest(spots) {
  return (x, y) => {
    let [best, distance] = [null, 24];
    for (const spot of spots) {
      const d = Math.hypot(spot.x - x, spot.y - y);
      if (d < distance) [best, distance] = [spot, d];
    }
    return best;
  };
}
