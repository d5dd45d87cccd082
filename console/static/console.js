// The live parts of the pages: forms and dialogs that call the REST API, charts, and live tails.
// Whatever comes from the cluster is set as text, never as HTML.
"use strict";

const LIVE_SECONDS = 2;
const TAIL_ROWS = 300;
const IMPORT_RECORDS = 500;
const IMPORT_CHARACTERS = 4 * 1024 * 1024;
const EXPORT_RECORDS = 100000;
const COLOURED_CHARACTERS = 64 * 1024;
const PREVIEW_CHARACTERS = 400;
const SHOWN_HEADERS = 20;

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const csrf = document.querySelector('meta[name="csrf-token"]').content;

function announce(text) {
  const status = document.getElementById("status");
  status.textContent = text;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => { status.textContent = ""; }, 6000);
}

async function call(method, url, body) {
  const headers = { "X-CSRF-Token": csrf };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(url, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  const answer = text ? JSON.parse(text) : null;
  if (!response.ok) throw new Error((answer && answer.detail) || response.statusText);
  return answer;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Forms.

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function pairs(text) {
  return Object.fromEntries(lines(text).map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`Expected NAME=VALUE: ${line}`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

const READERS = {
  int: (text) => (text === "" ? undefined : Number(text)),
  optional: (text) => (text === "" ? undefined : text),
  lines,
  pairs,
};

function bodyOf(form) {
  if (form.dataset.body) return JSON.parse(form.dataset.body);
  if ("config" in form.dataset) return configChange(form);
  if ("produce" in form.dataset) return { records: [recordOf(form)] };
  if ("quotas" in form.dataset) return quotaChanges(form);
  const fields = all("[name]", form);
  return fields.length ? namedValues(fields) : undefined;
}

function namedValues(fields) {
  const body = {};
  for (const field of fields) {
    const value = (READERS[field.dataset.as] || ((text) => text))(field.value);
    if (value === undefined) continue;
    const path = field.name.split(".");
    let target = body;
    for (const part of path.slice(0, -1)) target = target[part] ??= {};
    target[path.at(-1)] = value;
  }
  return body;
}

function quotaChanges(form) {
  const body = { entity: {}, set: {}, unset: [], ...namedValues(all("[name]", form)) };
  for (const field of all("[data-quota]", form)) {
    if (field.value !== "") body.set[field.dataset.quota] = Number(field.value);
    // What was there, and is empty now.
    else if (field.defaultValue !== "") body.unset.push(field.dataset.quota);
  }
  return body;
}

function configChange(form) {
  const name = form.querySelector("#config-name").value;
  if (form.querySelector("#config-reset").checked) return { unset: [name] };
  return { set: { [name]: form.querySelector("#config-value").value } };
}

function recordOf(form) {
  const value = (name) => form.querySelector(`[name="${name}"]`).value;
  const encoding = value("encoding");
  const encoded = (data) => (encoding === "base64" ? { encoding, data: data.trim() } : data);
  const record = { value: form.querySelector('[name="tombstone"]').checked ? null : encoded(value("value")) };
  if (value("key") !== "") record.key = encoded(value("key"));
  if (value("partition") !== "") record.partition = Number(value("partition"));
  const headers = Object.entries(pairs(value("headers")));
  record.headers = headers.map(([name, one]) => ({ name, value: one }));
  return record;
}

function urlOf(form, body) {
  const [method, template] = form.dataset.api.split(" ");
  let url = template;
  for (const field of all("[data-path]", form)) {
    url = url.replace(`{${field.dataset.path}}`, encodeURIComponent(field.value));
  }
  const next = (form.dataset.next || "").replace("{name}", encodeURIComponent(body?.name ?? ""));
  return { method, url, next };
}

function showError(form, text) {
  const error = form.querySelector(".error");
  error.textContent = text;
  error.hidden = !text;
}

async function submit(form, send) {
  const buttons = all("button", form);
  showError(form, "");
  const were = buttons.map((button) => button.disabled);
  buttons.forEach((button) => { button.disabled = true; });
  try {
    await send();
  } catch (error) {
    showError(form, error.message);
  } finally {
    buttons.forEach((button, number) => { button.disabled = were[number]; });
  }
}

function wireForm(form) {
  const confirm = form.querySelector("[data-confirm]");
  const button = form.querySelector('button[type="submit"]');
  if (confirm && button && !("reset" in form.dataset)) {
    const check = () => { button.disabled = confirm.value !== confirm.dataset.confirm; };
    confirm.addEventListener("input", check);
    check();
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (confirm && confirm.value !== confirm.dataset.confirm) return;
    submit(form, async () => {
      if ("import" in form.dataset) return importFile(form);
      if ("reset" in form.dataset) return resetOffsets(form, false);
      const body = bodyOf(form);
      const { method, url, next } = urlOf(form, body);
      await call(method, url, body);
      if (next) location.assign(next);
      else location.reload();
    });
  });
  const dryRun = form.querySelector("[data-dry-run]");
  if (dryRun) {
    dryRun.addEventListener("click", () => submit(form, () => resetOffsets(form, true)));
    const reset = () => {
      if (button) button.disabled = !form.dataset.planned || confirm.value !== confirm.dataset.confirm;
    };
    if (confirm) confirm.addEventListener("input", reset);
    for (const field of all("[name]", form)) {
      field.addEventListener("input", () => { delete form.dataset.planned; reset(); });
    }
  }
}

async function resetOffsets(form, isDryRun) {
  const body = bodyOf(form);
  if (!body.value) delete body.value;
  const { method, url } = urlOf(form, body);
  const answer = await call(method, url, { ...body, dry_run: isDryRun });
  if (!isDryRun) return location.reload();
  if (!answer.items.length) throw new Error("Nothing to reset: the group has no committed offsets. Name topics.");
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Partition", "Before", "After"]) head.append(element("th", name === "Partition" ? "" : "right", name));
  const rows = table.createTBody();
  for (const one of answer.items) {
    const row = rows.insertRow();
    row.append(
      element("td", "mono", `${one.topic}-${one.partition}`),
      element("td", "right", shownNumber(one.before)), element("td", "right", shownNumber(one.after)),
    );
  }
  form.querySelector(".plan").replaceChildren(table);
  form.dataset.planned = "yes";
  const confirm = form.querySelector(".confirm");
  if (confirm) confirm.hidden = false;
}

async function importFile(form) {
  const keepsPartitions = form.querySelector("#i-partition").checked;
  const text = await form.querySelector("#i-file").files[0].text();
  const batches = batchesOf(text.split("\n"), keepsPartitions);
  const { method, url } = urlOf(form);
  let imported = 0;
  for (const records of batches) {
    await call(method, url, { records }).catch((error) => {
      throw new Error(imported ? `${error.message}; ${grouped(imported)} records before it were imported` : error.message);
    });
    imported += records.length;
    announce(`Imported ${grouped(imported)} records`);
  }
  location.reload();
}

// Records of JSON lines, as many at a time as a request may have.
function batchesOf(text, keepsPartitions) {
  const batches = [];
  let room = 0;
  text.forEach((line, number) => {
    if (!line.trim()) return;
    let record;
    try { record = JSON.parse(line); } catch (error) { throw new Error(`Line ${number + 1}: ${error.message}`); }
    if (!keepsPartitions) delete record.partition;
    room -= line.length;
    if (room < 0 || batches.at(-1).length === IMPORT_RECORDS) {
      batches.push([]);
      room = IMPORT_CHARACTERS - line.length;
    }
    batches.at(-1).push(record);
  });
  return batches;
}

// Dialogs.

function openDialog(button) {
  const dialog = document.getElementById(button.dataset.open);
  const fill = JSON.parse(button.dataset.fill || "{}");
  for (const target of all("[data-from]", dialog)) {
    const value = fill[target.dataset.from] ?? "";
    if ("value" in target) target.value = target.defaultValue = value;
    else target.textContent = value;
  }
  dialog.showModal();
  const fields = all("input:not([readonly]), select, textarea", dialog);
  const first = fields.find((field) => !field.dataset.from || !field.value) ?? fields[0];
  if (first) first.focus();
}

document.addEventListener("click", (event) => {
  const open = event.target.closest("[data-open]");
  if (open) openDialog(open);
  const close = event.target.closest("[data-close]");
  if (close) close.closest("dialog").close();
  if (event.target.closest("[data-theme-toggle]")) switchTheme();
  if (event.target.closest("[data-logout]")) {
    call("POST", "/logout").then(() => location.assign("/login"));
  }
});

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("ottla-theme", root.dataset.theme); } catch { /* forbidden */ }
}

// Numbers, as the server writes them.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const grouped = (number) => number.toLocaleString("en").replaceAll(",", "\u2009");

const FORMATS = {
  records: (number) => grouped(Math.round(number)),
  rate: (number) => `${grouped(number > 0 && number < 10 ? Math.round(number * 10) / 10 : Math.round(number))}/s`,
  bytes(number) {
    let unit = 0;
    for (; number >= 1024 && unit < SIZES.length - 1; unit += 1) number /= 1024;
    return `${number.toFixed(unit ? 1 : 0)} ${SIZES[unit]}`;
  },
};

const shownNumber = (number) => (number === null ? "–" : FORMATS.records(number));

// Charts: the server keeps the samples of the last minutes, so that they are there at once.

const CHART_MS = 5 * 60 * 1000;
const LEAST_CHART_MS = 60 * 1000;
const WIDTH = 300;
const TOP = 4;
const BOTTOM = 58;

// The least round number that is not below: 1, 2, 5, 10, …, and a power of two for bytes.
function ceiling(number, unit) {
  if (unit === "bytes") return 2 ** Math.ceil(Math.log2(number));
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= number);
}

// How much time a chart shows: as much as there are points for.
function span(points) {
  const whole = Math.ceil((Date.now() - points[0][0]) / LEAST_CHART_MS) * LEAST_CHART_MS;
  return Math.min(Math.max(whole, LEAST_CHART_MS), CHART_MS);
}

// Times and numbers as points in a chart that ends now.
function placed(points, most, length) {
  const now = Date.now();
  return points.map(([at, number]) => [
    WIDTH * (1 - (now - at) / length), BOTTOM - (number / most) * (BOTTOM - TOP),
  ]);
}

const pathOf = (places) => places.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function rates(samples) {
  return samples.slice(1).map(([at, number], before) => {
    const [then, last] = samples[before];
    return [at, Math.max(0, (number - last) / ((at - then) / 1000))];
  });
}

// Keep what is in the window of a chart.
function appendTo(samples, more) {
  samples.push(...more);
  const oldest = Date.now() - CHART_MS;
  while (samples.length && samples[0][0] < oldest) samples.shift();
}

function wireChart(figure) {
  const { live } = figure.dataset;
  const format = FORMATS[figure.dataset.unit];
  const output = figure.querySelector("output");
  const [line, area, cursor, top] = [".line", ".area", ".cursor", ".top"].map((one) => figure.querySelector(one));
  const plot = figure.querySelector(".plot");
  const samples = [];
  let points = [];
  let hovered = null;

  function show() {
    const point = hovered === null ? points.at(-1) : nearest();
    if (!point) return;
    const ago = Math.round((Date.now() - point[0]) / 1000);
    output.textContent = format(point[1]) + (hovered === null ? "" : `, ${ago} s ago`);
    const x = hovered === null ? -9 : placed([point], 1, span(points))[0][0];
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }

  function nearest() {
    const at = Date.now() - (1 - hovered) * span(points);
    const distance = ([time]) => Math.abs(time - at);
    return points.reduce((best, one) => (distance(one) < distance(best) ? one : best), points[0]);
  }

  function draw() {
    points = "rate" in figure.dataset ? rates(samples) : samples;
    if (!points.length) return;
    const most = ceiling(Math.max(1, ...points.map((one) => one[1])), figure.dataset.unit);
    const places = placed(points, most, span(points));
    figure.querySelector(".axis span").textContent = `−${span(points) / LEAST_CHART_MS} min`;
    line.setAttribute("d", pathOf(places));
    area.setAttribute("d", `${pathOf(places)}L${places.at(-1)[0].toFixed(1)} ${BOTTOM}L${places[0][0].toFixed(1)} ${BOTTOM}Z`);
    top.textContent = format(most);
    show();
  }

  async function sample() {
    const since = samples.length ? samples.at(-1)[0] : 0;
    const answer = await call("GET", `${live}${live.includes("?") ? "&" : "?"}since=${since}`);
    if (answer.points === null) {
      output.textContent = "not available";
      return;
    }
    appendTo(samples, answer.points);
    figure.dispatchEvent(new CustomEvent("sampled", { detail: answer }));
    draw();
  }

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    hovered = (event.clientX - box.left) / box.width;
    show();
  });
  plot.addEventListener("pointerleave", () => { hovered = null; show(); });
  repeat(sample, (error) => {
    output.textContent = "not available";
    output.title = error.message;
  });
}

// Call again and again while the page is visible, one call at a time.
async function repeat(poll, onError = () => {}) {
  for (;;) {
    if (!document.hidden) await poll().catch(onError);
    await new Promise((resolve) => { setTimeout(resolve, LIVE_SECONDS * 1000); });
  }
}

// Lists whose numbers change.

function setText(cell, text) {
  if (cell && cell.textContent !== text) cell.textContent = text;
}

function wireTopics(body) {
  const cells = (name) => new Map(all(`[data-${name}]`, body).map((one) => [one.dataset[name], one]));
  const [records, written] = [cells("records"), cells("rate")];
  const query = new URLSearchParams([...written.keys()].map((name) => ["topic", name]));
  if (!written.size) return;
  repeat(async () => {
    for (const one of await call("GET", `/api/v1/live/topics?${query}`)) {
      setText(records.get(one.name), shownNumber(one.records));
      setText(written.get(one.name), one.rate === null ? "–" : FORMATS.rate(one.rate));
    }
  });
}

function wireGroups(body) {
  const rows = new Map(all("[data-group]", body).map((one) => [one.dataset.group, one]));
  const query = new URLSearchParams([...rows.keys()].map((name) => ["group", name]));
  if (!rows.size) return;
  repeat(async () => {
    for (const one of await call("GET", `/api/v1/live/groups?${query}`)) {
      for (const field of ["members", "lag"]) {
        setText(rows.get(one.group_id).querySelector(`[data-field="${field}"]`), shownNumber(one[field]));
      }
    }
  });
}

// The offsets of a group, each with a small chart of its lag since the page was opened.
function wireLags(figure) {
  const rows = new Map(all("[data-tp]").map((one) => [one.dataset.tp, one]));
  const lags = new Map([...rows.keys()].map((tp) => [tp, []]));
  figure.addEventListener("sampled", (event) => {
    const { items = [], points: totals } = event.detail;
    if (totals.length) setText(document.querySelector('[data-total="lag"]'), shownNumber(totals.at(-1)[1]));
    for (const one of items) {
      const row = rows.get(`${one.topic}-${one.partition}`);
      if (!row) continue;
      for (const field of ["committed", "end", "lag"]) {
        setText(row.querySelector(`[data-field="${field}"]`), shownNumber(one[field]));
      }
      const points = lags.get(row.dataset.tp);
      appendTo(points, [[Date.now(), one.lag ?? 0]]);
      const most = Math.max(1, ...points.map((point) => point[1]));
      row.querySelector(".spark .line").setAttribute("d", pathOf(placed(points, most, span(points))));
    }
  });
}

// Live tails.

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function visible(text) {
  return text.replace(CONTROLS, (one) => {
    const code = one.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

const textOf = (field) => (field === null ? "null" : field.encoding === "base64" ? `base64:${field.data}` : visible(field.data));

// An object or array, indented; null if it is neither, or nested so deeply that it would be long.
function pretty(text) {
  try {
    const parsed = JSON.parse(text);
    if (parsed === null || typeof parsed !== "object") return null;
    const indented = JSON.stringify(parsed, null, 2);
    return indented.length <= 4 * Math.max(text.length, 1024) ? indented : null;
  } catch {
    return null;
  }
}

// Colours for JSON: the text becomes spans, each set as text.
const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function colour(pre) {
  const text = pre.textContent;
  if (text.length > COLOURED_CHARACTERS || pre.childElementCount) return;
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(TOKENS)) {
    parts.push(text.slice(last, match.index));
    const [token, string, colon] = match;
    if (colon) parts.push(element("span", "key", string), colon);
    else parts.push(element("span", string ? "string" : "literal", token));
    last = match.index + token.length;
  }
  parts.push(text.slice(last));
  pre.replaceChildren(...parts);
}

document.addEventListener("toggle", (event) => {
  if (event.target.open) all("pre[data-json]", event.target).forEach(colour);
}, true);

const clock = (time) => (time === null ? "–" : time.replace("T", " ").replace("Z", ""));

function emphasis(field) {
  const text = field === null ? "null" : field.size ? null : "empty";
  return text && element("em", "", text);
}

function rowOf(record) {
  const row = element("tr", "fresh");
  const key = element("td", "mono key");
  key.append(emphasis(record.key) ?? textOf(record.key).slice(0, PREVIEW_CHARACTERS));
  row.append(
    element("td", "right", record.partition), element("td", "right", grouped(record.offset)),
    element("td", "nowrap when", clock(record.time)), key,
  );
  const details = element("details");
  const value = textOf(record.value);
  const summary = element("summary", "mono");
  summary.append(emphasis(record.value) ?? value.slice(0, PREVIEW_CHARACTERS));
  if (record.headers.length) {
    summary.append(" ", element("span", "badge", `${record.headers.length} header${record.headers.length > 1 ? "s" : ""}`));
  }
  const indented = record.value?.encoding === "utf-8" ? pretty(record.value.data) : null;
  const pre = element("pre", "bytes", indented === null ? value : visible(indented));
  pre.tabIndex = 0;
  if (indented !== null) pre.dataset.json = "";
  const list = element("dl");
  const add = (name, content) => {
    const described = element("dd");
    described.append(content);
    list.append(element("dt", "", name), described);
  };
  add("Key", emphasis(record.key) ?? element("pre", "bytes", textOf(record.key)));
  for (const header of record.headers.slice(0, SHOWN_HEADERS)) {
    add(`Header ${visible(header.name)}`, element("pre", "bytes", textOf(header.value)));
  }
  add("Value", emphasis(record.value) ?? pre);
  const box = element("div", "record");
  box.append(list);
  details.append(summary, box);
  const cell = element("td", "value");
  cell.append(details);
  row.append(cell);
  return row;
}

function wireTail(button) {
  const pause = document.getElementById("pause");
  const body = document.getElementById("records");
  const query = document.getElementById("query");
  let source = null;
  let held = [];

  const isPaused = () => pause.getAttribute("aria-pressed") === "true";

  function add(record) {
    all(".none", body).forEach((row) => row.remove());
    body.prepend(rowOf(record));
    while (body.rows.length > TAIL_ROWS) body.deleteRow(-1);
  }

  function stop(text) {
    if (source) source.close();
    source = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Live tail";
    pause.hidden = true;
    if (text) announce(text);
  }

  function start() {
    const fields = new FormData(query);
    const wanted = new URLSearchParams();
    for (const name of ["partition", "filter", "filter_kind", "filter_field", "isolation"]) {
      if (fields.get(name)) wanted.set(name, fields.get(name));
    }
    body.replaceChildren();
    held = [];
    source = new EventSource(`${button.dataset.tail}?${wanted}`);
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Stop tail";
    pause.hidden = false;
    source.addEventListener("ready", () => announce("Waiting for new records"));
    source.addEventListener("record", (event) => {
      const record = JSON.parse(event.data);
      if (!isPaused()) return add(record);
      held.push(record);
      if (held.length > TAIL_ROWS) held.shift();
      pause.textContent = `Resume (${held.length})`;
    });
    source.addEventListener("problem", (event) => stop(JSON.parse(event.data).detail));
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) stop("The live tail was rejected");
      else announce("The live tail is interrupted; reconnecting");
    };
  }

  button.addEventListener("click", () => (source ? stop() : start()));
  pause.addEventListener("click", () => {
    const was = isPaused();
    pause.setAttribute("aria-pressed", String(!was));
    pause.textContent = was ? "Pause" : "Resume (0)";
    if (was) held.splice(0).forEach(add);
  });
}

function wireExport(link) {
  link.addEventListener("click", () => {
    const fields = new FormData(document.getElementById("query"));
    const wanted = new URLSearchParams({ format: link.dataset.format });
    for (const name of ["partition", "filter", "filter_kind", "filter_field", "isolation", "limit"]) {
      if (fields.get(name)) wanted.set(name, fields.get(name));
    }
    const start = fields.get("start");
    wanted.set("start", ["offset", "time"].includes(start) ? fields.get("position") : start);
    if (start !== "newest") wanted.set("limit", EXPORT_RECORDS);
    link.href = `${link.dataset.export}?${wanted}`;
  });
}

function wireQuery(form) {
  const start = form.querySelector("[data-start]");
  const position = form.querySelector("[data-position]");
  start.addEventListener("change", () => {
    position.hidden = !["offset", "time"].includes(start.value);
    if (!position.hidden) position.querySelector("input").focus();
  });
  const kind = form.querySelector("[data-kind]");
  const placeholders = JSON.parse(kind.dataset.kind);
  kind.addEventListener("change", () => {
    form.querySelector("#q-filter").placeholder = placeholders[kind.value];
  });
  for (const field of all("[data-submit]")) {
    // A live tail has no records to show again.
    field.addEventListener("change", () => { if (document.getElementById("pause").hidden) form.requestSubmit(); });
  }
}

// Rows of a table by what is in them, and those only that are overridden.
function wireRows(search) {
  const rows = all("tr", document.querySelector(search.dataset.rows));
  const only = document.querySelector(`[data-rows-only="${search.dataset.rows}"]`);
  const filter = () => {
    const wanted = search.value.toLowerCase();
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted)
        || (only.checked && !row.classList.contains("overridden"));
    }
  };
  search.addEventListener("input", filter);
  only.addEventListener("change", filter);
}

// Keys.

let prefix = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog[open]")) return;
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  } else if (event.key === "?") {
    document.getElementById("keys").showModal();
  } else if (event.key === "p" && !prefix) {
    const pause = document.getElementById("pause");
    if (pause && !pause.hidden) pause.click();
  } else if (prefix === "g") {
    const link = document.querySelector(`[data-keys="g ${CSS.escape(event.key)}"]`);
    if (link) link.click();
  }
  prefix = event.key === "g" && prefix !== "g" ? "g" : "";
});

// On a narrow screen the navigation is wider.
document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

all("form[data-api]").forEach(wireForm);
all("figure[data-live]").forEach(wireLags);
all("figure[data-live]").forEach(wireChart);
all("[data-topics]").forEach(wireTopics);
all("[data-groups]").forEach(wireGroups);
all("form#query").forEach(wireQuery);
all("[data-rows]").forEach(wireRows);
all("details[open] pre[data-json]").forEach(colour);
all("[data-tail]").forEach(wireTail);
all("[data-export]").forEach(wireExport);
