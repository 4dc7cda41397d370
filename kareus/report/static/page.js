// Puts the page of a workload together from the data block.

readPlots(data.plots);

function tiles(parent) {
  const ours = data.methods.find((row) => row.method === "kareus");
  if (!ours) return;
  const tile = (value, text) => html("li", {}, html("strong", {}, lessOrMore(value)), html("span", {}, text));
  parent.append(
    html(
      "ul",
      { class: "tiles", "aria-label": "kareus in short" },
      tile(ours.time_reduction_percent, "time at max throughput, against sequential"),
      tile(ours.energy_reduction_percent, "energy at max throughput, against sequential"),
      tile(ours.iso_time_energy_reduction_percent, "energy in the same time as sequential+perseus"),
      tile(ours.iso_energy_time_reduction_percent, "time for the same energy as sequential+perseus"),
    ),
  );
}

function summarySection(parent) {
  const rows = data.methods.map((row) => ({
    kind: row.method === "kareus" ? "ours" : null,
    cells: [
      row.method,
      row.time_s.toFixed(3),
      ...[row.energy_j, row.static_energy_j, row.dynamic_energy_j].map((value) => (value / 1e3).toFixed(2)),
      ...[
        row.time_reduction_percent,
        row.energy_reduction_percent,
        row.iso_time_energy_reduction_percent,
        row.iso_energy_time_reduction_percent,
      ].map((value) => percent(value)),
    ],
  }));
  const groups = [
    { text: "" },
    { text: "fastest plan", span: 4 },
    { text: "less than sequential", span: 2 },
    { text: "less than sequential+perseus", span: 2 },
  ];
  const names = columns(
    1,
    "method",
    "time (s)",
    "energy (kJ)",
    "static (kJ)",
    "dynamic (kJ)",
    "time",
    "energy",
    "energy, same time",
    "time, same energy",
  );
  table(parent, "One iteration by method", [groups, names], rows);
  parent.append(
    html(
      "p",
      { class: "label" },
      `${DASH} no plan of the method satisfies the constraint, or it is the baseline itself`,
    ),
  );
}

function plansSection(parent) {
  const rows = data.plans.map((plan, i) => ({
    texts: 3,
    cells: [
      String(i + 1),
      plan.selector,
      plan.method,
      plan.time_s.toFixed(3),
      (plan.energy_j / 1e3).toFixed(2),
      percent(plan.time_reduction_percent),
      percent(plan.energy_reduction_percent),
      percent(plan.gap * 100, 2),
    ],
  }));
  const names = columns(3, "plan", "selector", "method", "time (s)", "energy (kJ)", "time less", "energy less", "gap");
  table(parent, "Chosen plans, reductions against sequential at max throughput", [names], rows);
}

function runsSection(parent) {
  const above = (value) => (value === null || value < 0 ? percent(value) : `+${percent(value)}`);
  const rows = data.runs.map((row) => ({
    kind: row.method === "kareus" ? "ours" : null,
    cells: [
      row.method,
      row.predicted_time_s.toFixed(3),
      row.time_s.toFixed(3),
      above(row.time_percent),
      (row.predicted_energy_j / 1e3).toFixed(2),
      row.energy_j === null ? DASH : (row.energy_j / 1e3).toFixed(2),
      above(row.energy_percent),
    ],
  }));
  const groups = [{ text: "" }, { text: "time (s)", span: 3 }, { text: "energy (kJ)", span: 3 }];
  const names = columns(1, "method", "predicted", "ran", "off by", "predicted", "ran", "off by");
  table(parent, `Means of ${data.runs[0].iterations} iterations`, [groups, names], rows);
}

function effortTable(parent) {
  if (!data.efforts.length) return;
  const names = data.efforts[0].passes.map(({ name }) => name);
  const rows = data.efforts.map((effort) => {
    const found = effort.passes.reduce((sum, pass) => sum + pass.on_frontier, 0);
    const shares = Object.fromEntries(effort.passes.map((p) => [p.name, (100 * p.on_frontier) / found]));
    const all = effort.profiling_s + effort.optimisation_s;
    return {
      cells: [
        effort.partition,
        String(effort.passes.reduce((sum, pass) => sum + pass.measured, 0)),
        String(found),
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

function sourcesSection(parent) {
  const details = html("details", {}, html("summary", {}, `The ${data.sources.length} tables behind this page`));
  parent.append(details);
  const rows = data.sources.map((s) => ({ texts: 4, cells: [s.name, s.config_hash, s.kareus_version, s.created_at] }));
  table(details, "Inputs of this report", [columns(4, "table", "configuration", "kareus", "created (UTC)")], rows);
}

const report = document.getElementById("report");
document.body.append(tooltip);
headline(report, `${data.gpus} GPUs`);
tiles(report);
section(report, "Summary", "", summarySection, plansSection);
section(
  report,
  "Iteration frontiers",
  "Each point is a plan that can be run; a step shows what is attainable within a time. Numbers mark the chosen plans.",
  (box) => plotFigure(box, data.plots.iteration),
);
section(
  report,
  "Pipeline timeline",
  "When every instruction of a plan runs, and what it draws. Hatched: the stage waits. Point at an instruction, or reach the figure with the Tab key and an instruction with the arrow keys.",
  timelineFigure,
  (box) => plotFigure(box, data.plots.power),
);
if (data.runs.length) {
  section(
    report,
    "End to end",
    data.testbed.kind === "simulated"
      ? "The fastest plan of each method, played back on the simulated testbed: whole instructions, with noise, on chips that stay warm. Predictions are put together from partitions that were measured one by one, each on a chip that had cooled down."
      : "The fastest plan of each method, run by the engine, beside what was predicted.",
    runsSection,
  );
}
section(
  report,
  "Search",
  "Candidates that were measured for every partition. Prediction and measurement appear where a point is pointed at.",
  (box) => plotFigure(box, data.plots.search),
  (box) => sharesFigure(box, data.shares.passes),
  effortTable,
);
section(
  report,
  "Microbatch frontiers",
  `What one instruction can cost. The vertical axis leaves out blocking power (${watts(data.blocking_power_w)}), which is paid in any case while the iteration lasts; stages that cost the same share a panel.`,
  (box) => plotFigure(box, data.plots.microbatch),
);
downloadsSection(report);
section(report, "Provenance", "", sourcesSection);
