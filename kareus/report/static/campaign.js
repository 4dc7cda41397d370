// Puts the page of a campaign together from the data block.

readPlots(data.plots);

const report = document.getElementById("report");
document.body.append(tooltip);
headline(report, "");
for (const { title, text, sheets, figures } of data.sections) {
  section(
    report,
    title,
    text,
    ...sheets.map((sheet) => (box) => sheetTable(box, sheet)),
    ...figures.map((name) => (box) =>
      name in data.plots ? plotFigure(box, data.plots[name]) : sharesFigure(box, data.shares[name]),
    ),
  );
}
downloadsSection(report);
