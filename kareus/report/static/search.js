// Small multiples of the search: every measured candidate of a partition, by the pass that chose it.

const PASSES = {
  initial: { color: "gray", shape: "ring", text: "initial design" },
  random: { color: "gray", shape: "ring", text: "random" },
  all: { color: "gray", shape: "ring", text: "exhaustive" },
  total: { color: "blue", shape: "circle", text: "total-energy pass" },
  dynamic: { color: "orange", shape: "square", text: "dynamic-energy pass" },
  static: { color: "green", shape: "triangle", text: "static-energy pass" },
  improvement: { color: "blue", shape: "circle", text: "expected improvement" },
  uncertainty: { color: "purple", shape: "diamond", text: "exploration (uncertainty)" },
};
const passStyle = (name) => PASSES[name] ?? { ...UNKNOWN, text: name };

function searchFigure(parent) {
  const used = new Set(data.search.flatMap(({ candidates }) => candidates.map((c) => c.chosen_by)));
  const order = [
    ...Object.keys(PASSES).filter((name) => used.has(name)),
    ...[...used].filter((name) => !(name in PASSES)),
  ];
  const legend = order.map((name) => [passStyle(name).text, passStyle(name)]);
  if (used.size) legend.push(["measured frontier", { color: "ink", line: true }]);
  const body = figure(parent, "Measured candidates of each partition", legend);
  if (!data.search.length) body.append(html("p", {}, "None: a block has no collectives, or an odd microbatch no halves."));
  const grid = html("div", { class: "panels" });
  body.append(grid);
  for (const search of data.search) {
    const chart = html("div", { class: "chart" });
    grid.append(
      html(
        "div",
        { class: "chart" },
        html("h3", {}, search.partition),
        html("p", { class: "panel-note" }, effort(search)),
        chart,
      ),
    );
    responsive(chart, (width) => drawSearch(search, width));
  }
}

function effort({ rounds, candidates }) {
  const last = rounds.at(-1);
  const minutes = rounds.reduce((sum, round) => sum + round.measuring_s, 0) / 60;
  const clock = minutes < 90 ? `${minutes.toFixed(0)} min` : `${(minutes / 60).toFixed(1)} h`;
  const measured = `${candidates.length} candidates in ${rounds.length} round${rounds.length === 1 ? "" : "s"}, ${clock} of the testbed's clock`;
  return last?.stop ? `${measured}; ended: ${last.stop}` : measured;
}

function drawSearch({ partition, candidates }, width) {
  const { root, x, y } = plot({
    width,
    height: 300,
    x: extent(candidates.map((c) => c.time_s * 1e3)),
    y: extent(candidates.map((c) => c.dynamic_energy_j)),
    xLabel: "time (ms)",
    yLabel: "dynamic energy, one GPU (J)",
    title: `Measured candidates of ${partition}`,
  });
  const points = candidates.map((c) => ({
    x: x(c.time_s * 1e3),
    y: y(c.dynamic_energy_j),
    describe: () => ({
      title: `${c.frequency_mhz} MHz, ${c.sm_count} SMs, beside ${c.launch}`,
      rows: candidateRows(c),
    }),
  }));
  points.forEach((p, i) => root.append(marker(passStyle(candidates[i].chosen_by), p.x, p.y, 2.8)));
  const frontier = points.filter((_, i) => candidates[i].on_frontier).sort((a, b) => a.x - b.x || a.y - b.y);
  root.append(
    steps(
      frontier.map((p) => [p.x, p.y]),
      "ink",
    ),
  );
  hover(root, nearest(points));
  return root;
}

function candidateRows(c) {
  const compared = (measured, predicted, format) =>
    predicted === null ? format(measured) : `${format(measured)} (predicted ${format(predicted)})`;
  return [
    ["chosen by", `${passStyle(c.chosen_by).text}, round ${c.round}`],
    ["time", compared(c.time_s, c.predicted_time_s, milliseconds)],
    ["dynamic energy", compared(c.dynamic_energy_j, c.predicted_dynamic_energy_j, joules)],
    ["total energy", joules(c.energy_j)],
    ["on the frontier", c.on_frontier ? "yes" : "no"],
  ];
}
