// Hands figures to Vega-Embed, and ties the page together: widths, schemes, tables, the plan that is clicked on.

const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const views = new Map();
const html = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// What stands between backticks is code, as in parts.html.
const withCode = (text) => text.split("`").map((part, i) => (i % 2 ? html("code", {}, part) : part));

/** Keeps lines from breaking within `--name`: without its dashes beside it a flag reads as a word. */
function keepFlags() {
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) if (/--\w/.test(walker.currentNode.data) && !walker.currentNode.parentNode.closest(".flag, pre")) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.split(/(--\w[\w-]*)/);
    text.replaceWith(...parts.map((part, i) => (i % 2 ? html("span", { class: "flag" }, part) : part)));
  }
}

// Data comes column by column, which keeps the page small.
const rowsOf = (columns) => {
  const names = Object.keys(columns);
  if (!names.length) return [];
  return columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
};

/** A specification as wide as its place: panels below or beside one another, legends in as many columns as fit. */
function fitted(spec, width) {
  const narrow = width < 560;
  if (spec.vconcat) for (const view of spec.vconcat) view.width = width - 62;
  else if (spec.facet) {
    if (width < 700) spec.columns = 1;
    spec.spec.width = width / spec.columns - 78;
  } else Object.assign(spec, { width, autosize: { type: "fit-x", contains: "padding" } });
  const named = spec.encoding?.y; // bars whose names would leave no space for them: names stand above
  if (narrow && named?.type === "nominal") {
    Object.assign(named.axis, { labelAlign: "left", labelPadding: -2, labelOffset: -17, labelLimit: width });
    spec.mark.height.band = 0.4;
    spec.height *= 1.7;
  }
  const legend = { columns: narrow ? 1 : Math.floor(width / 220) };
  return JSON.parse(JSON.stringify(spec), (key, value) => (key === "legend" && value?.columns ? { ...value, ...legend } : value));
}

async function draw(box) {
  const name = box.dataset.figure;
  const { spec, data: datasets } = data.figures[name];
  const scheme = dark.matches ? "dark" : "light";
  const whole = fitted(structuredClone(spec), box.clientWidth);
  whole.datasets = Object.fromEntries(Object.entries(datasets).map(([key, columns]) => [key, rowsOf(columns)]));
  box.dataset.width = box.clientWidth;
  views.get(name)?.finalize();
  const result = await vegaEmbed(box, whole, {
    config: data.themes[scheme],
    renderer: "svg",
    actions: false,
    tooltip: { theme: scheme },
  });
  views.set(name, result.view);
  result.view.addEventListener("click", (_, item) => {
    const at = item?.datum;
    if (data.fleets && at?.plan !== undefined) chooseFleet(at);
    else if (at?.number !== undefined && data.chosen) choose(planOfChosen(data.chosen[at.number - 1]));
    else if (at?.plan !== undefined) choose(planOfPoint(at));
    else if (at?.link) location.href = at.link;
  });
  if (name === data.timeline) begin?.();
  box.dataset.drawn = "";
}
let begin = null; // shows where a long timeline begins

const boxes = [...document.querySelectorAll("[data-figure]")];
const isShown = (box) => !box.closest("details:not([open])");
const waiting = new Map();
function redraw(box) {
  clearTimeout(waiting.get(box));
  waiting.set(box, setTimeout(() => draw(box), 120));
}
addEventListener("resize", () => boxes.filter(isShown).filter((box) => Math.abs(box.clientWidth - box.dataset.width) > 4).forEach(redraw));
dark.addEventListener("change", () => boxes.filter(isShown).forEach(draw));
for (const fold of document.querySelectorAll("details.section"))
  fold.addEventListener("toggle", () => fold.querySelectorAll("[data-figure]:not([data-drawn])").forEach(draw));

// Buttons that zoom: scales are bound to the selection `zoom`, whose signals are named after columns.
for (const button of document.querySelectorAll("[data-zoom]"))
  button.addEventListener("click", () => {
    const figure = button.closest("figure"), { id } = figure, view = views.get(id), factor = Number(button.dataset.zoom);
    if (!factor) return draw(figure.querySelector("[data-figure]"));
    for (const [axis, column] of Object.entries(data.figures[id].zooms)) {
      const [low, high] = view.scale(axis).domain(), middle = (low + high) / 2, half = ((high - low) / 2) * factor;
      view.signal(`zoom_${column}`, [middle - half, middle + half]);
    }
    view.run();
  });

// Behind every figure, and folded: its data as a table, made when it is opened.
for (const fold of document.querySelectorAll("[data-table]"))
  fold.addEventListener("toggle", () => {
    if (fold.open && !fold.querySelector("table")) fold.append(tableOf(data.figures[fold.dataset.table]));
  });

function tableOf({ title, heads, data: datasets }) {
  const names = Object.keys(heads), rows = rowsOf(Object.values(datasets)[0]);
  const canChoose = rows[0]?.plan !== undefined && (data.schedules || data.fleets);
  const cell = (value) => html("td", { class: typeof value === "number" ? "" : "text" }, value === null ? "–" : `${value}`);
  const line = (row) => {
    const cells = names.map((name) => cell(row[name]));
    if (canChoose) {
      const button = html("button", { type: "button" }, "Show");
      button.addEventListener("click", () => (data.fleets ? chooseFleet(row) : choose(planOfPoint(row))));
      cells.push(html("td", {}, button));
    }
    return html("tr", {}, ...cells);
  };
  const head = html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, heads[name])));
  const table = html("table", { class: "sortable" }, html("caption", {}, title), html("thead", {}, head), html("tbody", {}, ...rows.map(line)));
  sortable(table);
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table);
}

/** The number that a cell begins with, in base units: 8 kW is 8,000. */
function numberIn(text) {
  const [, digits, prefix] = text.replaceAll(",", "").match(/^(-?[\d.]+(?:e[+-]?\d+)?)\s*([GMkm]?)(?:[WJs]\b)?/) ?? [];
  return Number.parseFloat(digits) * ({ G: 1e9, M: 1e6, k: 1e3, m: 1e-3 }[/[WJs]$/.test(text) ? prefix : ""] ?? 1);
}

// Tables that sort by a click on a head, or Enter.
function sortable(table) {
  const heads = [...table.tHead.rows].at(-1).cells;
  [...heads].forEach((head, column) => {
    const button = html("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
      const text = (row) => row.cells[column]?.textContent.trim() ?? "";
      const order = (a, b) => {
        const [m, n] = [a, b].map((row) => numberIn(text(row)));
        if (Number.isNaN(m) && Number.isNaN(n)) return down * text(a).localeCompare(text(b));
        return Number.isNaN(m) - Number.isNaN(n) || down * (m - n); // what has no number comes last
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
document.querySelectorAll("table.sortable").forEach(sortable);

// The plan that is shown below the frontier: one that was chosen, or a point that was clicked on.
const planOfChosen = (chosen) => ({ ...chosen, file: `plans/${encodeURIComponent(chosen.name)}.json` });
const planOfPoint = ({ method, plan, time_s, energy_kj }) => ({
  method, plan, time_s, energy_j: 1e3 * energy_kj,
  selector: `deadline=${(Math.ceil(time_s * 1e4) / 1e4).toFixed(4)}s`,
  rows: scheduleOf(method, plan), ...powerOf(method, plan),
});

/** The end of a link to a plan: `plan=fastest`, or of a point `point=kareus,12`; and the plan that one leads to. */
const placeOf = ({ name, method, plan }) => (name === undefined ? `point=${encodeURIComponent(method)},${plan}` : `plan=${encodeURIComponent(name)}`);
function planOfPlace(place) {
  const [kind, rest = ""] = place.replace(/^#/, "").split("="), [method, number] = rest.split(",").map(decodeURIComponent);
  const chosen = kind === "plan" && data.chosen.find(({ name }) => name === method);
  const point = kind === "point" && rowsOf(data.figures.iteration.data.plans).find((row) => row.method === method && `${row.plan}` === number);
  return chosen ? planOfChosen(chosen) : point ? planOfPoint(point) : planOfChosen(data.chosen[0]);
}

function scheduleOf(method, plan) {
  const found = data.schedules.plans[method]?.[plan];
  if (!found) return null;
  const { stage, label } = data.schedules.instructions, { points } = data.schedules, ended = {};
  const rows = { stage, label, start_s: [], end_s: [], time_ms: [], frequency_mhz: [], power_w: [], energy_j: [], runs: [] };
  found[0].forEach((point, i) => {
    const start = (ended[stage[i]] ?? 0) + found[1][i];
    ended[stage[i]] = start + points.time_us[point];
    rows.start_s.push(start / 1e6);
    rows.end_s.push(ended[stage[i]] / 1e6);
    rows.time_ms.push(points.time_us[point] / 1e3);
    for (const name of ["frequency_mhz", "power_w", "energy_j", "runs"]) rows[name].push(points[name][point]);
  });
  return rows;
}

/** Power of all GPUs from each change on, and in means of the second before, as schedules.py writes them. */
function powerOf(method, plan) {
  const [, , between_us, powers_w, means_w] = data.schedules.plans[method]?.[plan] ?? [];
  if (!between_us) return {};
  let end_us = 0;
  const start_s = between_us.map((us) => (end_us += us) / 1e6), kilo = (watts) => watts.map((w) => w / 1e3);
  const moments = means_w.map((_, i, all) => (i * end_us) / 1e6 / (all.length - 1));
  return { powers: { start_s, power_kw: kilo(powers_w) }, means: { start_s: moments, power_kw: kilo(means_w) } };
}

const less = (value, before, of) => {
  const percent = 100 * (1 - value / before), size = Math.abs(percent);
  return size < 0.05 ? `the same ${of}` : `${size.toFixed(size < 9.95 ? 1 : 0)} % ${percent > 0 ? "less" : "more"} ${of}`;
};

const compared = (value, before, baseline) => {
  const time = less(value.time_s, before.time_s, "time"), energy = less(value.energy_j, before.energy_j, "energy");
  const isAsFast = time === "the same time", isAsFrugal = energy === "the same energy";
  if (isAsFast && isAsFrugal) return `the same time and energy as ${baseline}`;
  if (isAsFast) return `${energy} than ${baseline} in ${time}`;
  return isAsFrugal ? `${time} than ${baseline} with ${energy}` : `${time} and ${energy} than ${baseline}`;
};

/** Buttons for the chosen plans, where there are several. */
function otherPlans(shown) {
  if (data.chosen.length < 2) return [];
  const buttons = data.chosen.map((chosen, i) => {
    const button = html("button", { type: "button", "aria-pressed": `${chosen.name === shown.name}` }, `${i + 1}: ${chosen.selector}`);
    button.addEventListener("click", () => choose(planOfChosen(chosen)));
    return button;
  });
  return [html("p", { class: "buttons", role: "group", "aria-label": "Chosen plans" }, ...buttons)];
}

/** Put text into a paragraph, which is hidden without any. */
function show(id, text) {
  const paragraph = document.getElementById(id);
  paragraph.replaceChildren(...withCode(text ?? ""));
  paragraph.hidden = !text;
}

/** The head of the page: the sentence, tiles and command of the plan that is shown, as headline.py writes them. */
function headline(plan, command) {
  const { baseline, tokens } = data;
  const title = plan.title ?? `Plan ${plan.selector}${plan.method === "kareus" ? "" : ` of ${plan.method}`}`;
  document.getElementById("headline").textContent =
    `${title}${data.trainers[plan.method] ?? ""}: ${compared(plan, baseline, baseline.name)}.`;
  show("meaning", plan.meaning);
  const values = [...document.querySelectorAll("#tiles strong")];
  const figures = [
    significant(plan.time_s, 4), significant(plan.energy_j / 1e3, 4),
    Math.round(tokens / plan.time_s).toLocaleString("en-US"), significant(plan.energy_j / tokens / data.joules_per_token, 3),
    `${((100 * data.mfu_s) / plan.time_s).toFixed(1)} %`, (plan.energy_j / plan.time_s / 1e3).toFixed(2),
  ];
  values.forEach((value, i) => { value.textContent = figures[i]; });
  const taking = document.getElementById("taking"), [link, copy, code] = taking.children;
  link.hidden = !plan.file;
  link.href = plan.file ?? "";
  copy.dataset.copy = code.textContent = plan.command ?? command;
  copy.textContent = "Copy the command";
  const turning = document.getElementById("turning");
  show("in-trainer", plan.in_trainer?.words);
  turning.hidden = !plan.in_trainer?.is_obeyable; // a point that is clicked on is no file yet
  const lines = (plan.in_trainer?.lines ?? []).map((line) => html("code", { class: "line" }, line));
  turning.replaceChildren(html("span", {}, plan.in_trainer?.turning ?? ""), " ", ...lines);
}

function choose(plan) {
  const { baseline, folder, tokens } = data;
  const method = plan.method === "kareus" ? "" : ` --method ${plan.method}`;
  const command = `kareus select ${plan.selector} ${folder}${method}`;
  const copy = html("button", { type: "button", class: "button", "data-copy": command }, "Copy the command");
  const facts = [
    `${significant(plan.time_s, 4)} s`, `${significant(plan.energy_j / 1e3, 4)} kJ`,
    `${Math.round(tokens / plan.time_s).toLocaleString("en-US")} tokens/s`, `${scaled(plan.energy_j / tokens, "J/token", 3)}`,
    `${((100 * data.mfu_s) / plan.time_s).toFixed(1)} % MFU`,
  ];
  document.getElementById("selected").replaceChildren(
    ...otherPlans(plan),
    html("h3", {}, `${plan.file ? "Chosen plan" : "Plan"}: ${plan.method}, ${plan.selector}`),
    html("p", {}, `${facts.join(", ")}: ${compared(plan, baseline, "the baseline")}.`),
    html("p", { class: "buttons" }, ...(plan.file ? [html("a", { class: "button", href: plan.file, download: "" }, "plan.json")] : [copy]), html("code", {}, command)),
    html("p", { class: "quiet" }, plan.rows ? "Its pipeline is below. Click on another point to see its plan." : "Too many plans for one page: the command writes this one, and the pipeline below stays that of the plan before."),
  );
  current = plan;
  history.replaceState(null, "", `#${placeOf(plan)}`);
  headline(plan, command);
  work();
  if (plan.rows) showTimeline(plan);
  keepFlags();
}

/** A value with at least so many significant digits, as `significant` in units.py writes it. */
function significant(value, digits) {
  const decimals = Math.max(0, digits - 1 - (value ? Math.floor(Math.log10(Math.abs(value))) : 0));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals, signDisplay: "negative" });
}

/** A value with a unit of its size, as `scaled` in units.py writes it. */
function scaled(value, unit, significant = 4) {
  const [factor, prefix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"]].find(([f]) => Math.abs(value) >= f) ?? [1, ""];
  const shown = value / factor, digits = Math.max(0, significant - Math.abs(shown).toFixed(0).length);
  return `${shown.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, signDisplay: "negative" })} ${prefix}${unit}`;
}

/** A duration of hours and more, as `duration` in units.py writes it. */
function duration(seconds) {
  const hours = seconds / 3600, days = hours / 24;
  const [value, unit] = Math.abs(days) >= 365.25 ? [days / 365.25, "years"] : Math.abs(hours) >= 48 ? [days, "days"] : [hours, "h"];
  const digits = Math.max(0, 3 - Math.abs(value).toFixed(0).length);
  return `${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, signDisplay: "negative" })} ${unit}`;
}

/** A plan of a fleet: what it takes, what it saves, and the clocks of every stage. */
function chooseFleet({ fleet, method, plan }) {
  const { title, gpus, pipelines, num_microbatches, counted, plans } = data.fleets[fleet];
  const chosen = plans[method][plan], baseline = plans.sequential?.["0"];
  const facts = [
    scaled(chosen.time_s, "s"), `${scaled(chosen.energy_j, "J")} of all ${gpus.toLocaleString("en-US")} GPUs`,
    `${scaled(chosen.energy_j / pipelines, "J")} a pipeline`, scaled(chosen.power_w, "W"), `${scaled(chosen.power_w / gpus, "W")} a GPU`,
  ];
  const saved = baseline ? `: ${compared(chosen, baseline, "sequential")}` : "";
  const updates = chosen.stages.some((stage) => stage.length > 3);
  const heads = ["stage", "forward (mean MHz)", "backward (mean MHz)", "busy", ...(updates ? ["reduction and update"] : [])];
  const share = (busy_s) => `${Math.round((100 * busy_s) / chosen.pipeline_time_s)} %`;
  const rows = chosen.stages.map(([forward, backward, busy_s, update_s], stage) =>
    html("tr", {}, ...[stage, forward ?? "–", backward ?? "–", share(busy_s), ...(updates ? [scaled(update_s, "s", 3)] : [])].map((cell) => html("td", {}, `${cell}`))));
  const caption = "One of its equal pipelines, stage by stage";
  const table = html("table", {}, html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))), html("tbody", {}, ...rows));
  const planned = counted === "planned" ? "all pipelines:" : "one pipeline:";
  const selector = `deadline=${(Math.ceil(chosen.pipeline_time_s * 1e4) / 1e4).toFixed(4)}s`;
  document.getElementById("selected").replaceChildren(
    html("h3", {}, `${method}, ${title}, ${scaled(chosen.time_s, "s")}`),
    html("p", {}, `${facts.join(", ")}${saved}. At most ${(100 * chosen.gap).toFixed(2)} % above the least energy possible in its time.`),
    html("p", {}, `As a plan of ${planned} its workload with `, html("code", {}, `num_microbatches=${num_microbatches}`), ", selector ", html("code", {}, selector)),
    ...(rows.length ? [html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table)] : []),
    html("p", { class: "quiet" }, "Click on another point to see its plan; the table behind the figure serves the keyboard."),
  );
}

function showTimeline(plan) {
  const figure = data.figures[data.timeline];
  figure.data.plan = plan.rows;
  figure.data.plan_powers = plan.powers;
  figure.data.plan_means = plan.means;
  figure.spec.vconcat[0].title.text = `${plan.method}, ${plan.selector}: ${significant(plan.time_s, 4)} s, ${significant(plan.energy_j / 1e3, 4)} kJ`;
  document.getElementById("bottleneck").replaceChildren(...withCode(plan.bottleneck ?? pace(plan)));
  const shown = document.getElementById(data.timeline);
  for (const link of shown.querySelectorAll("[data-kind]")) {
    link.hidden = !plan.file;
    if (plan.file) link.href = `timelines/${encodeURIComponent(plan.name)}.${link.dataset.kind}`;
  }
  shown.querySelector("[data-table] > .scroll")?.remove();
  shown.querySelector("[data-table]").open = false;
  begin = null;
  offerParts(plan);
  const box = shown.querySelector("[data-figure]");
  if (box.dataset.drawn !== undefined) draw(box);
}

const MANY = 48; // instructions of a stage from which a timeline cannot be read as a whole

/** Parts of a long timeline that can be read, by the instructions of the first stage. */
function partsOf({ rows, time_s }) {
  const first = rows.stage.flatMap((stage, i) => (stage === rows.stage[0] ? [i] : []));
  const [forwards, backwards] = ["F", "B"].map((letter) => first.filter((i) => rows.label[i].startsWith(letter)));
  if (first.length < MANY || backwards.length < 3) return {};
  const middle = backwards[Math.floor(backwards.length / 2)], next = backwards[Math.floor(backwards.length / 2) + 1];
  return {
    "Warm-up": [0, rows.start_s[backwards[1]]],
    "One period": [rows.start_s[middle], rows.start_s[next]],
    "Cool-down": [rows.start_s[forwards.at(-1)], time_s],
  };
}

/** Buttons for these parts; the first one is shown to begin with. */
function offerParts(plan) {
  const figure = document.getElementById(data.timeline), parts = partsOf(plan);
  const show = (name) => {
    const view = views.get(data.timeline);
    view?.signal("zoom_start_s", parts[name]).run();
    for (const button of figure.querySelectorAll(".parts button")) button.setAttribute("aria-pressed", button.textContent === name);
  };
  figure.querySelector(".parts")?.remove();
  if (!Object.keys(parts).length) return;
  const buttons = Object.keys(parts).map((name) => {
    const button = html("button", { type: "button" }, name);
    button.addEventListener("click", () => show(name));
    return button;
  });
  figure.querySelector(".tools").after(html("p", { class: "buttons parts", role: "group", "aria-label": "Parts of the timeline" }, ...buttons));
  begin = () => show("Warm-up");
}

/** Which stage sets the pace of a plan that was clicked on, as `bottleneck_stage` in headline.py chooses it. */
function pace({ rows }) {
  const busy = {}, clocks = {};
  rows.stage.forEach((stage, i) => {
    if (/^[REU]/.test(rows.label[i])) return; // the update of the weights
    busy[stage] = (busy[stage] ?? 0) + rows.time_ms[i];
    (clocks[stage] ??= []).push([rows.frequency_mhz[i], rows.time_ms[i]]);
  });
  if (Object.keys(busy).length === 1) return "The pipeline has one stage, which is busy throughout.";
  const mean = (stage) => clocks[stage].reduce((sum, [mhz, ms]) => sum + mhz * ms, 0) / busy[stage];
  const first = data.baseline.waiting_least.reduce((a, b) => (mean(b) > mean(a) ? b : a));
  const seen = clocks[first].map(([mhz]) => mhz), [least, most] = [Math.min(...seen), Math.max(...seen)];
  const lasts = (clock) => clocks[first].reduce((sum, [mhz, ms]) => sum + (mhz === clock ? ms : 0), 0);
  const longest = seen.reduce((a, b) => (lasts(b) > lasts(a) || (lasts(b) === lasts(a) && b < a) ? b : a));
  const range = least === most ? `${most} MHz` : `${least} to ${most} MHz, for longest at ${longest}`;
  return `Stage ${first} is the bottleneck: at the baseline it waits least. The plan runs its ${seen.length} forwards and backwards at ${range}.`;
}

// What a whole run saves. Less of time than the answer's percent has digits for is none.
const ROUNDED = 0.0005;
const form = document.getElementById("run");
let current = data.chosen?.[0];
function work() {
  if (!form) return;
  const [tokens, price, hour, carbon] = ["tokens", "price", "hour", "carbon"].map((name) => form.elements[name].valueAsNumber || 0);
  const currency = form.elements.currency.value.trim();
  const iterations = tokens / data.tokens;
  const saved = (key) => iterations * (data.baseline[key] - current[key]);
  const whole = duration(iterations * data.baseline.time_s), hours = saved("time_s") / 3600, kwh = saved("energy_j") / 3.6e6;
  const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
  const money = kwh * price + hours * data.gpus * hour, carbon_t = number((kwh * carbon) / 1e6);
  const isAsLong = Math.abs(saved("time_s")) < ROUNDED * iterations * data.baseline.time_s;
  const time = isAsLong ? `takes as long (${whole}) and saves` : saved("time_s") < 0 ? `takes ${duration(-saved("time_s"))} more than ${whole} and saves` : `saves ${duration(saved("time_s"))} of ${whole},`;
  const energy = scaled(1e3 * kwh, "Wh", 3), carbon_words = `${carbon_t} t of CO₂`;
  const what = money < 0 ? `${energy} and ${carbon_words}, and costs ${number(-money)} ${currency} more` : `${energy}, ${number(money)} ${currency} and ${carbon_words}`;
  form.elements.saved.textContent = `${time} ${what}`;
}
form?.addEventListener("input", work);

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Cannot copy: mark the text";
  }
});

if (data.fleets) {
  const [fleet, { plans }] = Object.entries(data.fleets)[0], method = plans.kareus ? "kareus" : Object.keys(plans)[0];
  const all = Object.entries(plans[method]), least_s = Math.min(...all.map(([, { time_s }]) => time_s));
  const fast = all.filter(([, { time_s }]) => time_s <= least_s * (1 + data.as_fast));
  const [plan] = fast.reduce((a, b) => (b[1].energy_j < a[1].energy_j ? b : a)); // `fastest`, as in the headline
  chooseFleet({ fleet, method, plan });
}
if (data.chosen) choose(planOfPlace(location.hash));
addEventListener("hashchange", () => data.chosen && choose(planOfPlace(location.hash)));
keepFlags();
boxes.filter(isShown).forEach(draw);
