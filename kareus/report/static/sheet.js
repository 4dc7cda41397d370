// Tables as the data block gives them: cells of text, heads in groups, first cells that may lead to a page.

function sheetTable(parent, sheet) {
  const groups = sheet.groups.map(([text, span]) => ({ text: text && span > 0 ? text : "", span }));
  const heads = [...(groups.length ? [groups] : []), columns(sheet.texts, ...sheet.names)];
  const rows = sheet.rows.map(({ cells, link }) => ({
    texts: sheet.texts,
    cells: link ? [html("a", { href: encodeURI(link) }, cells[0]), ...cells.slice(1)] : cells,
  }));
  table(parent, sheet.caption, heads, rows);
  if (sheet.note) parent.append(html("p", { class: "label" }, sheet.note));
  if (sheet.source) parent.append(files(sheet.caption, tableLinks(sheet.source)));
}
