// The page of emulated fleets: tables in the paper's form, frontiers, stragglers, power caps and hours.

const megawatts = (value) => (value === null ? DASH : (value / 1e6).toFixed(3));
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

readPlots(data.plots);
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
  (box) => plotFigure(box, data.plots.fleet),
);
if (data.stragglers.length) section(report, "Stragglers", "", stragglerTable);
if (data.power_caps.length) section(report, "Power caps", "", powerTable);
if (data.charges.length) section(report, "Hours of a series", "", chargeTable, (box) => plotFigure(box, data.plots.hours));
