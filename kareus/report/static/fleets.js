// The page of emulated fleets: tables in the paper's form, frontiers, stragglers, power caps and hours.

const megajoules = (value) => `${(value / 1e6).toFixed(2)} MJ`;
const megawatts = (value) => (value === null ? DASH : (value / 1e6).toFixed(3));
const count = (value) => value.toLocaleString("en-US");
const isBaseline = (method) => method === "sequential" || method === "sequential+perseus";
const ours = (method) => (method === "kareus" ? "ours" : null);

function countsTable(parent) {
  const rows = data.fleets.map((own) => ({
    cells: [
      own.fleet,
      count(own.gpus),
      count(own.pipelines),
      count(own.num_microbatches),
      own.reduction_s.toFixed(3),
      own.exposed_s ? "exposed" : "hidden",
    ],
  }));
  const names = columns(
    1,
    "fleet",
    "GPUs",
    "pipelines",
    "microbatches per pipeline",
    "gradient reduction (s)",
    "counted as",
  );
  table(parent, "Strong scaling", [names], rows);
}

function throughputTable(parent) {
  const rows = data.fleets.flatMap((own) =>
    own.methods.map((row) => ({
      texts: 2,
      kind: ours(row.method),
      cells: [
        own.fleet,
        row.method,
        String(own.num_microbatches),
        row.time_s.toFixed(3),
        (row.energy_j / 1e6).toFixed(2),
        percent(row.time_reduction_percent),
        percent(row.energy_reduction_percent),
      ],
    })),
  );
  const groups = [{ text: "" }, { text: "" }, { text: "" }, { text: "fastest plan", span: 2 }];
  groups.push({ text: "less than sequential", span: 2 });
  const names = columns(2, "fleet", "method", "microbatches", "time (s)", "energy (MJ)", "time", "energy");
  table(parent, "One iteration at max throughput", [groups, names], rows);
}

function improvementTable(parent) {
  const rows = data.fleets.flatMap((own) =>
    own.methods
      .filter(({ method }) => !isBaseline(method))
      .map((row) => ({
        texts: 2,
        kind: ours(row.method),
        cells: [
          own.fleet,
          row.method,
          String(own.num_microbatches),
          percent(row.iso_time_energy_reduction_percent),
          percent(row.iso_energy_time_reduction_percent),
        ],
      })),
  );
  const names = columns(2, "fleet", "method", "microbatches", "energy, same time", "time, same energy");
  table(parent, "Frontier improvement, reductions against sequential+perseus", [names], rows);
}

function frontierPanels(parent) {
  const methods = data.fleets[0].frontiers.map(({ method }) => method);
  const legend = methods.map((method) => [method, { ...methodStyle(method), line: true }]);
  const body = figure(parent, "Iteration time and energy of each fleet", legend);
  const grid = html("div", { class: "panels" });
  body.append(grid);
  for (const own of data.fleets) {
    const title = `${own.fleet}: ${count(own.num_microbatches)} microbatches on ${count(own.pipelines)} pipelines`;
    const chart = html("div", { class: "chart" });
    grid.append(html("div", { class: "chart" }, html("h3", {}, title), chart));
    responsive(chart, (width) => drawFleet(own, title, width));
  }
}

function drawFleet({ frontiers }, title, width) {
  const all = frontiers.flatMap(({ plans }) => plans);
  const { root, x, y } = plot({
    width,
    height: 280,
    x: extent(all.map((plan) => plan.time_s)),
    y: extent(all.map((plan) => plan.energy_j / 1e6)),
    xLabel: "iteration time (s)",
    yLabel: "iteration energy, all GPUs (MJ)",
    title,
  });
  const spots = frontiers.flatMap((line) => drawMethod(root, x, y, line, 1e6, fleetPlanRows));
  hover(root, nearest(spots));
  return root;
}

function fleetPlanRows(plan) {
  return [
    ["time", seconds(plan.time_s)],
    ["energy", megajoules(plan.energy_j)],
    ["static, dynamic", `${megajoules(plan.static_energy_j)}, ${megajoules(plan.dynamic_energy_j)}`],
    ["against sequential: time", lessOrMore(plan.time_reduction_percent)],
    ["energy", lessOrMore(plan.energy_reduction_percent)],
    ["gap to lower bound", percent(plan.gap * 100, 2)],
  ];
}

function stragglerTable(parent) {
  const rows = data.stragglers.map((row) => ({
    texts: 2,
    kind: ours(row.method),
    cells: [
      row.fleet,
      row.method,
      `${row.slowdown}x`,
      row.time_s.toFixed(3),
      (row.waiting_energy_j / 1e6).toFixed(2),
      (row.energy_j / 1e6).toFixed(2),
      percent(row.saving_percent),
    ],
  }));
  const names = columns(2, "fleet", "method", "slowdown", "time (s)", "waiting (MJ)", "adapting (MJ)", "energy less");
  table(parent, "One slow pipeline: the others wait, or take the plan that just meets it", [names], rows);
}

function powerTable(parent) {
  const rows = data.power_caps.map((row) => ({
    texts: 2,
    kind: ours(row.method),
    cells: [
      row.fleet,
      row.method,
      megawatts(row.cap_w),
      megawatts(row.power_w),
      row.time_s === null ? DASH : row.time_s.toFixed(3),
    ],
  }));
  const names = columns(2, "fleet", "method", "cap (MW)", "power (MW)", "time (s)");
  table(parent, "The fastest plan within a mean power of all GPUs", [names], rows);
}

function chargeTable(parent) {
  const rows = data.charges.map((row) => ({
    texts: 3,
    kind: ours(row.method),
    cells: [
      row.fleet,
      row.method,
      row.unit,
      count(Math.round(row.steady)),
      count(Math.round(row.hourly)),
      percent(row.saving_percent),
    ],
  }));
  const names = columns(3, "fleet", "method", "series", "one plan", "by the hour", "less");
  table(parent, "Charge of the same iterations: money, or grams of CO2", [names], rows);
}

function hourPanels(parent) {
  const legend = [...new Set(data.hours.map(({ method }) => method))].map((method) => [
    method,
    { ...methodStyle(method), line: true },
  ]);
  const body = figure(parent, "Mean power of the fleet by the hour", legend);
  const grid = html("div", { class: "panels" });
  body.append(grid);
  for (const { fleet } of data.fleets) {
    const lines = data.hours.filter((line) => line.fleet === fleet && line.policy === "hourly");
    if (!lines.length) continue;
    const series = { ...lines[0], power_w: null };
    for (const [title, own, values, label] of [
      [`${fleet}: power`, lines, (line) => line.power_w.map((w) => w / 1e6), "mean power, all GPUs (MW)"],
      [`${fleet}: series`, [series], (line) => line.value, series.unit],
    ]) {
      const chart = html("div", { class: "chart" });
      grid.append(html("div", { class: "chart" }, html("h3", {}, title), chart));
      responsive(chart, (width) => drawHours(own, values, label, title, width));
    }
  }
}

function drawHours(lines, values, yLabel, title, width) {
  const all = lines.flatMap(values);
  const { root, x, y } = plot({
    width,
    height: 220,
    x: [0, lines[0].hour.length],
    y: extent(all),
    xLabel: "hour",
    yLabel,
    title,
  });
  for (const line of lines) {
    const heights = values(line);
    const path = line.hour.map((hour, i) => `${i ? "V" : `M${x(hour)} `}${y(heights[i])}H${x(hour + 1)}`);
    const color = line.power_w ? methodStyle(line.method).color : "ink";
    root.append(svg("path", { class: "steps", d: path.join(""), style: `stroke:var(--${color})` }));
  }
  return root;
}

const report = document.getElementById("report");
document.body.append(tooltip);
headline(report, data.fleets.map((own) => `${count(own.gpus)} GPUs`).join(", "));
section(
  report,
  "Strong scaling",
  "Fleets of equal pipelines; the iteration is that of one pipeline, and what is exposed of the gradient reduction.",
  countsTable,
  throughputTable,
  improvementTable,
);
section(
  report,
  "Iteration frontiers",
  "Each point is a plan that all pipelines run; a step shows what is attainable within a time.",
  frontierPanels,
);
if (data.stragglers.length) section(report, "Stragglers", "", stragglerTable);
if (data.power_caps.length) section(report, "Power caps", "", powerTable);
if (data.charges.length) section(report, "Hours of a series", "", chargeTable, hourPanels);
