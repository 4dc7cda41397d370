// What the searches brought and took: which pass found the frontiers, and where the time went.

const BAR_HEIGHT = 14;
const ROW_HEIGHT = 38;

function effortFigure(parent) {
  if (!data.efforts.length) return;
  const names = data.efforts[0].passes.map(({ name }) => name);
  const legend = names.map((name) => [passStyle(name).text, passStyle(name)]);
  const body = figure(parent, "Who found the frontier", legend);
  responsive(body, drawEffort);
}

const onFrontier = ({ passes }) => passes.reduce((sum, pass) => sum + pass.on_frontier, 0);

/** One bar for each partition: shares of its frontier by the pass that chose them. */
function drawEffort(width) {
  const height = data.efforts.length * ROW_HEIGHT;
  const name = `Share of the measured frontier by pass (${data.testbed.label})`;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  const parts = [];
  data.efforts.forEach((effort, row) => {
    const top = row * ROW_HEIGHT;
    const total = onFrontier(effort);
    root.append(svg("text", { x: 0, y: top + 12 }, `${effort.partition}, ${total} candidates on the frontier`));
    let left = 0;
    for (const pass of effort.passes) {
      const share = pass.on_frontier / total;
      if (!share) continue;
      const box = { x: left * width, y: top + 17, width: share * width, height: BAR_HEIGHT };
      root.append(svg("rect", { ...box, class: "part", style: `fill:var(--${passStyle(pass.name).color})` }));
      const text = percent(100 * share, 0);
      if (box.width > 34)
        root.append(svg("text", { class: "part-text", x: box.x + box.width / 2, y: box.y + 11 }, text));
      parts.push({ effort, pass, box, text });
      left += share;
    }
  });
  hover(root, (x, y) => {
    const found = parts.find(({ box }) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height);
    return found ? { ...describePart(found), outline: svg("rect", { ...found.box, class: "focus" }) } : null;
  });
  return root;
}

function describePart({ effort, pass, text }) {
  return {
    title: `${passStyle(pass.name).text}, ${effort.partition}`,
    rows: [
      ["of the frontier", `${text} (${pass.on_frontier})`],
      ["candidates measured", String(pass.measured)],
    ],
  };
}

function effortTable(parent) {
  if (!data.efforts.length) return;
  const names = data.efforts[0].passes.map(({ name }) => name);
  const rows = data.efforts.map((effort) => {
    const shares = Object.fromEntries(effort.passes.map((p) => [p.name, (100 * p.on_frontier) / onFrontier(effort)]));
    const all = effort.profiling_s + effort.optimisation_s;
    return {
      cells: [
        effort.partition,
        String(effort.passes.reduce((sum, pass) => sum + pass.measured, 0)),
        String(onFrontier(effort)),
        ...names.map((name) => percent(shares[name] ?? null, 0)),
        (effort.profiling_s / 60).toFixed(1),
        (effort.looking_s / 60).toFixed(1),
        (effort.optimisation_s / 60).toFixed(2),
        percent((100 * effort.profiling_s) / all),
      ],
    };
  });
  const groups = [
    { text: "" },
    { text: "candidates", span: 2 },
    { text: "share of the frontier found by pass", span: names.length },
    { text: "time", span: 4 },
  ];
  const heads = columns(
    1,
    "partition",
    "measured",
    "on the frontier",
    ...names,
    "profiling (min)",
    "of it looks (min)",
    "optimisation (min)",
    "profiling share",
  );
  table(parent, "Searches by pass and by time", [groups, heads], rows);
  parent.append(
    html(
      "p",
      { class: "label" },
      "Profiling is the testbed's clock, virtual if it is simulated; optimisation is the planning machine's, spent on surrogates and acquisition.",
    ),
  );
}
