// The pipeline of a chosen plan: one lane for each stage, bars coloured by the mean power of a GPU.

// Viridis, sampled at equal steps: even in lightness, so it reads without colour vision and in print.
const VIRIDIS = [
  [68, 1, 84],
  [72, 40, 120],
  [62, 74, 137],
  [49, 104, 142],
  [38, 130, 142],
  [31, 158, 137],
  [53, 183, 121],
  [110, 206, 88],
  [181, 222, 43],
  [253, 231, 37],
];

function viridis(share) {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1);
  const i = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[i].map((from, channel) => Math.round(from + (VIRIDIS[i + 1][channel] - from) * (at - i)));
}
const rgb = (channels) => `rgb(${channels.join(" ")})`;
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 130 ? "#000" : "#fff");

/** What a bar is called; B is a whole backward or, where it is split, that of inputs. */
const LETTERS = { forward: "F", backward: "B", "input-gradient": "B", "weight-gradient": "W" };

const power = (schedule) => schedule.energy_j / schedule.time_s;

function timelineFigure(parent) {
  const names = data.timelines.map(({ title }, i) => (i < data.chosen ? `${i + 1}: ${title}` : title));
  const select = html(
    "select",
    { "aria-label": "Plan to show" },
    ...names.map((name, i) => html("option", { value: i }, name)),
  );
  const facts = html("span", { class: "quiet" });
  parent.append(html("p", { class: "line" }, select, facts));
  const place = html("div");
  parent.append(place);
  const show = () => {
    const plan = data.timelines[Number(select.value)];
    facts.textContent = `${seconds(plan.time_s)}, ${kilojoules(plan.energy_j)}`;
    place.replaceChildren();
    const body = figure(place, plan);
    const chart = html("div", { class: "chart" });
    body.append(html("div", { class: "scroll" }, chart), powerScale(plan));
    responsive(chart, (width) => drawTimeline(plan, width));
  };
  select.addEventListener("change", show);
  show();
}

function powerScale({ powers_w: [low, high] }) {
  const box = svg("svg", {
    width: 250,
    height: 30,
    viewBox: "0 0 250 30",
    role: "img",
    "aria-label": `Colours from ${watts(low)} to ${watts(high)}`,
  });
  for (let i = 0; i < 200; i += 1) {
    box.append(svg("rect", { x: 20 + i, y: 0, width: 1.5, height: 11, style: `fill:${rgb(viridis(i / 199))}` }));
  }
  for (const value of [low, (low + high) / 2, high]) {
    const x = scale([low, high], [20, 220])(value);
    box.append(svg("text", { class: "tick", x, y: 25, "text-anchor": "middle" }, watts(value)));
  }
  const waiting = svg(
    "svg",
    { width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true" },
    ...hatch(1, 1, 28, 12),
  );
  return html(
    "p",
    { class: "power-scale" },
    html("span", { class: "line" }, "mean power of a GPU", box),
    html("span", { class: "line" }, waiting, `waiting for other stages: ${watts(data.blocking_power_w)}`),
  );
}

/** A hatched box: the stage waits. */
function hatch(x, y, width, height) {
  const lines = [];
  for (let at = -height; at < width; at += 7) {
    const from = Math.max(at, 0);
    const to = Math.min(at + height, width);
    lines.push(
      `M${(x + from).toFixed(1)} ${(y + height - (from - at)).toFixed(1)}L${(x + to).toFixed(1)} ${(y + height - (to - at)).toFixed(1)}`,
    );
  }
  return [
    svg("rect", { class: "waiting", x, y, width, height, style: "fill:var(--panel)" }),
    svg("path", { class: "hatch", d: lines.join("") }),
  ];
}

function drawTimeline(plan, available) {
  const lane = 46;
  const left = 62;
  const longest = Math.max(...plan.stages.map((stage) => stage.instructions.length));
  const width = Math.max(available, left + 14 + longest * (plan.chunks > 1 ? 44 : 36));
  const bottom = 8 + plan.stages.length * (lane + 8);
  const height = bottom + 44;
  const x = scale([0, plan.time_s], [left, width - 14]);
  const root = drawing(width, height, plan.title);
  const lanes = plan.stages.map((stage, i) => drawLane(root, x, 8 + i * (lane + 8), lane, plan, stage));
  timeAxis(root, x, bottom, left, width - 14, plan);
  hover(root, lanes, inside(lanes.flat()));
  return root;
}

function drawLane(root, x, y, lane, plan, stage) {
  root.append(svg("text", { x: 2, y: y + lane / 2 + 4 }, `stage ${stage.stage}`));
  root.append(...hatch(x(0), y, x(plan.time_s) - x(0), lane));
  return stage.instructions.map((instruction) => {
    const schedule = plan.schedules[instruction.schedule];
    const bar = {
      x: x(instruction.start_s),
      y,
      width: x(instruction.start_s + schedule.time_s) - x(instruction.start_s),
      height: lane,
    };
    const color = viridis(scale(plan.powers_w, [0, 1])(power(schedule)));
    root.append(svg("rect", { ...bar, class: "bar", style: `fill:${rgb(color)}` }));
    const chunk = plan.chunks > 1 ? `.${instruction.chunk}` : "";
    const name = `${LETTERS[instruction.direction]}${instruction.microbatch}${chunk}`;
    const at = { x: bar.x + bar.width / 2, style: `fill:${inkOn(color)}` };
    if (bar.width > 7 * name.length + 4) root.append(svg("text", { ...at, class: "bar-text", y: y + (bar.width > 30 ? 21 : 27) }, name));
    if (bar.width > 30)
      root.append(svg("text", { ...at, class: "bar-small", y: y + 34 }, String(schedule.frequency_mhz)));
    return boxSpot(bar, `${name}, stage ${stage.stage}`, barRows(plan, instruction, schedule));
  });
}

function timeAxis(root, x, y, left, right, plan) {
  const { values, decimals } = ticks(x.domain, (right - left) / 90);
  root.append(svg("line", { class: "axis", x1: left, x2: right, y1: y, y2: y }));
  for (const value of values) {
    root.append(
      svg("line", { class: "axis", x1: x(value), x2: x(value), y1: y, y2: y + 5 }),
      svg("text", { class: "tick", x: x(value), y: y + 18, "text-anchor": "middle" }, value.toFixed(decimals)),
    );
  }
  root.append(svg("text", { x: left, y: y + 36 }, `time (s); in a bar: ${barText(plan)}, MHz`));
}

function barText(plan) {
  const directions = new Set(plan.stages.flatMap((stage) => stage.instructions.map((i) => i.direction)));
  const parts = directions.has("weight-gradient") ? " (B: input gradients, W: weight gradients)" : "";
  return `microbatch${plan.chunks > 1 ? ".chunk" : ""}${parts}`;
}

function barRows(plan, instruction, schedule) {
  return [
    ["direction", instruction.direction],
    ["microbatch", String(instruction.microbatch)],
    ...(plan.chunks > 1 ? [["chunk", String(instruction.chunk)]] : []),
    ["execution", schedule.execution],
    ["frequency", `${schedule.frequency_mhz} MHz`],
    ["power of a GPU", watts(power(schedule))],
    ["energy of a GPU", joules(schedule.energy_j)],
    ["start", seconds(instruction.start_s)],
    ["duration", seconds(schedule.time_s)],
    ...schedule.partitions.map((p) => [p.partition, `${p.sm_count} SMs, beside ${p.launch}`]),
  ];
}
