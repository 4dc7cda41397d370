// What pages are put together from: the header, tables and sections.

const BADGES = { simulated: "SIMULATED TESTBED", cuda: "MEASURED", mixed: "SIMULATED AND MEASURED" };

/** What the page is about. */
function headline(parent) {
  const { title, scale, testbed, provenance } = data;
  const badge = BADGES[testbed.kind];
  const hash = provenance.config_hash;
  const facts = [
    `kareus ${provenance.kareus_version}`,
    `configuration ${hash}`,
    `seed ${provenance.seed ?? DASH}`,
    `created ${provenance.created_at}`,
  ];
  parent.append(
    html(
      "header",
      {},
      html("h1", {}, title),
      html(
        "p",
        { class: "line" },
        html("span", { class: "badge" }, badge),
        html("span", {}, scale ? `${testbed.label}, ${scale}` : testbed.label),
      ),
      html("p", { class: "quiet" }, testbed.detail),
      html("p", { class: "quiet" }, facts.join(" \u00b7 ")),
    ),
  );
}

function section(parent, title, text, ...builders) {
  const box = html("section", {}, html("h2", {}, title), text ? html("p", { class: "quiet" }, text) : null);
  parent.append(box);
  for (const build of builders) build(box);
}

function downloadsSection(parent) {
  const text =
    "The tables behind this page, with the workload and the testbed in every row. Nested columns stand in the Parquet files alone.";
  section(parent, "Downloads", text, (box) => {
    const list = html("ul", { class: "downloads" });
    for (const { name, meaning, rows } of data.tables) {
      const size = html("span", { class: "quiet" }, `${count(rows)} rows`);
      list.append(html("li", {}, html("strong", {}, name), ` ${meaning} `, size, files(name, tableLinks(name))));
    }
    box.append(list);
  });
}
