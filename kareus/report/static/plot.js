// Plots, as the data block defines them: panels of series, with a legend, tooltips and the files for papers.

const FORMS = {
  text: (value) => value,
  count,
  seconds,
  milliseconds,
  joules,
  kilojoules,
  megajoules,
  watts,
  kilowatts,
  celsius,
  percent: (value) => percent(value, 2),
  lessOrMore,
};

function plotFigure(parent, plot) {
  const legend = new Map();
  for (const { series } of plot.panels) {
    for (const one of series) if (!legend.has(one.name) && one.shown.length) legend.set(one.name, one);
  }
  const body = figure(parent, plot, [...legend.entries()]);
  if (!plot.panels.length) body.append(html("p", {}, plot.empty));
  const alone = plot.panels.length === 1;
  const grid = html("div", { class: alone ? "panel" : "panels" });
  body.append(grid);
  for (const panel of plot.panels) {
    const chart = html("div", { class: "chart" });
    const name = alone || !panel.title ? null : html("h3", {}, panel.title);
    const note = panel.note ? html("p", { class: "panel-note" }, panel.note) : null;
    grid.append(html("div", { class: "chart" }, name, note, chart));
    const height = (width) => (alone ? Math.round(Math.max(320, Math.min(480, width * 0.5))) : 270);
    responsive(chart, (width) => drawPanel(plot, panel, width, height(width)));
  }
}

function drawPanel(plot, panel, width, height) {
  const all = panel.series.flatMap(({ shown }) => shown);
  const { root, x, y } = axes({
    width,
    height,
    x: spanned(panel.x, all.map((point) => point.x)),
    y: spanned(panel.y, all.map((point) => point.y)),
    xLabel: panel.x.label,
    yLabel: panel.y.label,
    title: panel.title ? `${plot.title}: ${panel.title}` : plot.title,
  });
  const lanes = panel.series.map((series) => drawSeries(root, x, y, series)).filter((spots) => spots.length);
  hover(root, lanes, nearest(lanes.flat().reverse()));
  return root;
}

const spanned = (axis, values) => (axis.from_zero ? [0, extent(values)[1]] : extent(values));

/** Draws one series; returns the points that can be pointed at. */
function drawSeries(root, x, y, series) {
  const places = series.shown.map((point) => ({ x: x(point.x), y: y(point.y), row: point.row }));
  if (series.line) root.append(path(places, series));
  if (series.shape) places.forEach((at) => root.append(mark(series, at, places.length)));
  if (!series.tips.length) return [];
  return places.map(({ x: px, y: py, row }) => ({
    x: px,
    y: py,
    title: series.title ? row[series.title] : series.name,
    rows: series.tips.map(([name, column, form]) => (row[column] === null ? null : [name, FORMS[form](row[column])])),
    outline: () => svg("circle", { class: "focus", cx: px, cy: py, r: 7 }),
  }));
}

function mark(series, { x, y, row }, count) {
  if (series.shape !== "number") return marker(series, x, y, series.line && count === 1 ? 5.5 : 3);
  return svg(
    "g",
    { class: "plan" },
    svg("circle", { cx: x, cy: y, r: 8 }),
    svg("text", { class: "number", x, y: y + 4 }, row.number),
  );
}

/** Points with the values that place them, as numbers of the axes' units. */
function readPlots(plots) {
  for (const plot of Object.values(plots)) {
    for (const panel of plot.panels) {
      for (const series of panel.series) {
        series.shown = rowsOf(series.points).map((row) => ({
          x: row[panel.x.column] * panel.x.scale,
          y: row[panel.y.column] * panel.y.scale,
          row,
        }));
      }
    }
  }
}
