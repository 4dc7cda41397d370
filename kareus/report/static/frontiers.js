// Time-energy frontiers: of the iteration, by method, and of the microbatch, by stage and direction.

const METHODS = {
  sequential: { color: "gray", shape: "diamond" },
  "sequential+perseus": { color: "orange", shape: "square" },
  nanobatching: { color: "purple", shape: "wedge" },
  "nanobatching+perseus": { color: "green", shape: "triangle" },
  kareus: { color: "blue", shape: "circle" },
  "kareus-without-frequency": { color: "vermilion", shape: "cross" },
  "kareus-without-kernel-schedule": { color: "olive", shape: "plus" },
};
const EXECUTIONS = {
  sequential: { color: "orange", shape: "square" },
  nanobatching: { color: "green", shape: "triangle" },
  overlap: { color: "blue", shape: "circle" },
};
const UNKNOWN = { color: "gray", shape: "ring" };
const methodStyle = (name) => METHODS[name] ?? UNKNOWN;

function iterationFigure(parent) {
  const legend = data.iteration.map(({ method }) => [method, { ...methodStyle(method), line: true }]);
  legend.push(["chosen plan", { color: "ink", shape: "circle" }]);
  const body = figure(parent, "Iteration time and energy by method", legend);
  responsive(body, (width) => {
    const all = data.iteration.flatMap(({ plans }) => plans);
    const { root, x, y } = plot({
      width,
      height: Math.round(Math.max(320, Math.min(480, width * 0.5))),
      x: extent([...all, ...data.plans].map((plan) => plan.time_s)),
      y: extent([...all, ...data.plans].map((plan) => plan.energy_j / 1e3)),
      xLabel: "iteration time (s)",
      yLabel: "iteration energy, all GPUs (kJ)",
      title: "Iteration time and energy by method",
    });
    const points = data.iteration.flatMap((line) => drawMethod(root, x, y, line, 1e3, planRows));
    points.push(...data.plans.map((plan, i) => drawChosen(root, x, y, plan, i + 1)).reverse());
    hover(root, nearest(points.reverse()));
    return root;
  });
}

/* Frontier of one method: `unit` is the joules of a unit of y, `rows` describes a plan on hover. */
function drawMethod(root, x, y, { method, plans }, unit, rows) {
  const style = methodStyle(method);
  const points = plans.map((plan) => ({
    x: x(plan.time_s),
    y: y(plan.energy_j / unit),
    describe: () => ({ title: method, rows: rows(plan) }),
  }));
  root.append(
    steps(
      points.map((p) => [p.x, p.y]),
      style.color,
    ),
  );
  root.append(...points.map((p) => marker(style, p.x, p.y, plans.length > 1 ? 3 : 5.5)));
  return points;
}

function drawChosen(root, x, y, plan, number) {
  const point = { x: x(plan.time_s), y: y(plan.energy_j / 1e3) };
  root.append(
    svg("circle", { class: "plan", cx: point.x, cy: point.y, r: 8 }),
    svg("text", { class: "number", x: point.x, y: point.y + 4 }, String(number)),
  );
  return { ...point, describe: () => ({ title: `${number}: ${plan.method}, ${plan.selector}`, rows: planRows(plan) }) };
}

function planRows(plan) {
  return [
    ["time", seconds(plan.time_s)],
    ["energy", kilojoules(plan.energy_j)],
    ["static, dynamic", `${kilojoules(plan.static_energy_j)}, ${kilojoules(plan.dynamic_energy_j)}`],
    ["against sequential: time", lessOrMore(plan.time_reduction_percent)],
    ["energy", lessOrMore(plan.energy_reduction_percent)],
    ["gap to lower bound", percent(plan.gap * 100, 2)],
  ];
}

function microbatchFigure(parent) {
  const legend = Object.entries(EXECUTIONS).map(([name, style]) => [name, style]);
  legend.push(["frontier of sequential", { color: "orange", line: true }]);
  legend.push(["frontier of nanobatching", { color: "green", line: true }]);
  const body = figure(parent, "Microbatch frontiers, points of kareus by execution", legend);
  const grid = html("div", { class: "panels" });
  body.append(grid);
  for (const group of data.microbatch) {
    const title = `${group.direction}, stage ${group.stages.join(", ")}`;
    const chart = html("div", { class: "chart" });
    grid.append(html("div", { class: "chart" }, html("h3", {}, title), chart));
    responsive(chart, (width) => drawMicrobatch(group, title, width));
  }
}

function drawMicrobatch({ methods }, title, width) {
  const all = methods.flatMap(({ points }) => points);
  const { root, x, y } = plot({
    width,
    height: 260,
    x: extent(all.map((p) => p.time_s * 1e3)),
    y: extent(all.map((p) => p.effective_energy_j)),
    xLabel: "time (ms)",
    yLabel: "energy less blocking, per GPU (J)",
    title: `Microbatch frontier, ${title}`,
  });
  const spots = [];
  for (const { method, points } of methods) {
    const places = points.map((p) => [x(p.time_s * 1e3), y(p.effective_energy_j)]);
    const ours = method === "kareus";
    root.append(steps(places, methodColor(method), ours ? "faint" : ""));
    if (!ours) continue;
    points.forEach((p, i) => {
      const [px, py] = places[i];
      root.append(marker(EXECUTIONS[p.execution] ?? UNKNOWN, px, py, 3));
      spots.push({
        x: px,
        y: py,
        describe: () => ({ title: `${p.execution}, ${p.frequency_mhz} MHz`, rows: microbatchRows(p) }),
      });
    });
  }
  hover(root, nearest(spots));
  return root;
}

const methodColor = (method) => (EXECUTIONS[method] ?? methodStyle(method)).color;

function microbatchRows(point) {
  return [
    ["time", milliseconds(point.time_s)],
    ["energy of one GPU", joules(point.energy_j)],
    ["less blocking energy", joules(point.effective_energy_j)],
  ];
}
