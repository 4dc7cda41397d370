// Puts a page together from the data block: its head, its sections, its downloads.

function tiles(parent) {
  if (!data.tiles.length) return;
  const items = data.tiles.map(({ value, text }) =>
    html("li", {}, html("strong", {}, lessOrMore(value)), html("span", {}, text)),
  );
  parent.append(html("ul", { class: "tiles", "aria-label": "kareus in short" }, ...items));
}

function anyFigure(parent, name) {
  if (name === "timelines") timelineFigure(parent);
  else if (name in data.plots) plotFigure(parent, data.plots[name]);
  else sharesFigure(parent, data.shares[name]);
}

readPlots(data.plots);
const report = document.getElementById("report");
document.body.append(tooltip);
headline(report);
tiles(report);
for (const { title, text, sheets, figures, folded } of data.sections) {
  section(report, title, text, (box) => {
    const inner = folded ? html("details", {}, html("summary", {}, sheets[0].caption)) : box;
    if (folded) box.append(inner);
    for (const sheet of sheets) sheetTable(inner, sheet);
    for (const name of figures) anyFigure(inner, name);
  });
}
downloadsSection(report);
