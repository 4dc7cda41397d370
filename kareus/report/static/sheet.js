// Tables as the data block gives them: cells of text, heads in groups, first cells that may lead to a page.

const LONG = 60; // characters of a cell, from which it is broken into lines

function sheetTable(parent, sheet) {
  const kind = (i) => (i < sheet.texts ? "text" : null);
  const groups = sheet.groups.map(([text, span]) =>
    html("th", { scope: span > 1 ? "colgroup" : "col", colspan: span }, text),
  );
  const names = sheet.names.map((name, i) => html("th", { scope: "col", class: kind(i) }, name));
  const rows = sheet.rows.map(({ cells: [first, ...others], link, ours }) =>
    html(
      "tr",
      { class: ours ? "ours" : null },
      html("th", { scope: "row" }, link ? html("a", { href: encodeURI(link) }, first) : first),
      ...others.map((cell, i) => html("td", { class: cell.length > LONG ? "long" : kind(i + 1) }, cell.replace(/^-/, "\u2212"))),
    ),
  );
  parent.append(
    html(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": sheet.caption },
      html(
        "table",
        {},
        html("caption", {}, html("span", {}, `${sheet.caption} (${data.testbed.label})`)),
        html("thead", {}, groups.length ? html("tr", {}, ...groups) : null, html("tr", {}, ...names)),
        html("tbody", {}, ...rows),
      ),
    ),
    sheet.note ? html("p", { class: "label" }, sheet.note) : "",
    sheet.source ? files(sheet.caption, tableLinks(sheet.source)) : "",
  );
}
