// The live parts of the pages: forms and dialogs that call the REST API, charts, and live tails.
// Whatever comes from the cluster is set as text, never as HTML.
"use strict";

const CHART_SECONDS = 2;
const CHART_POINTS = 150;
const TAIL_ROWS = 300;
const IMPORT_RECORDS = 500;

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
  numbers: (text) => Object.fromEntries(Object.entries(pairs(text)).map(([name, one]) => [name, Number(one)])),
};

function bodyOf(form) {
  if (form.dataset.body) return JSON.parse(form.dataset.body);
  if ("config" in form.dataset) return configChange(form);
  if ("produce" in form.dataset) return { records: [recordOf(form)] };
  const fields = all("[name]", form);
  if (!fields.length) return undefined;
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
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Partition", "Before", "After"]) head.append(element("th", "", name));
  const rows = table.createTBody();
  for (const one of answer.items) {
    const row = rows.insertRow();
    row.insertCell().textContent = `${one.topic}-${one.partition}`;
    row.insertCell().textContent = one.before ?? "–";
    row.insertCell().textContent = one.after;
  }
  form.querySelector(".plan").replaceChildren(table);
  form.dataset.planned = "yes";
  const confirm = form.querySelector(".confirm");
  if (confirm) confirm.hidden = false;
}

async function importFile(form) {
  const keepsPartitions = form.querySelector("#i-partition").checked;
  const text = await form.querySelector("#i-file").files[0].text();
  const records = text.split("\n").filter((line) => line.trim()).map((line) => {
    const record = JSON.parse(line);
    if (!keepsPartitions) delete record.partition;
    return record;
  });
  const { method, url } = urlOf(form);
  for (let first = 0; first < records.length; first += IMPORT_RECORDS) {
    await call(method, url, { records: records.slice(first, first + IMPORT_RECORDS) });
    announce(`Imported ${Math.min(first + IMPORT_RECORDS, records.length)} of ${records.length} records`);
  }
  location.reload();
}

// Dialogs.

function openDialog(button) {
  const dialog = document.getElementById(button.dataset.open);
  const fill = JSON.parse(button.dataset.fill || "{}");
  for (const target of all("[data-from]", dialog)) {
    const value = fill[target.dataset.from] ?? "";
    if ("value" in target) target.value = value;
    else target.textContent = value;
  }
  dialog.showModal();
  const first = dialog.querySelector("input:not([readonly]), select, textarea");
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

// Charts.

function wireChart(figure) {
  const { live, key, unit } = figure.dataset;
  const isRate = "rate" in figure.dataset;
  const output = figure.querySelector("output");
  const line = figure.querySelector("polyline");
  const points = [];
  let previous = null;

  async function sample() {
    if (document.hidden) return;
    let number;
    try {
      number = (await call("GET", live))[key];
    } catch (error) {
      output.textContent = "not available";
      output.title = error.message;
      return;
    }
    if (number === null) {
      output.textContent = "too many partitions";
      return;
    }
    const now = performance.now();
    if (isRate) {
      const last = previous;
      previous = { now, number };
      if (!last) return;
      number = Math.max(0, (number - last.number) / ((now - last.now) / 1000));
    }
    points.push(number);
    if (points.length > CHART_POINTS) points.shift();
    output.textContent = `${Math.round(number).toLocaleString("en")}${unit}`;
    const most = Math.max(1, ...points);
    const step = 300 / (CHART_POINTS - 1);
    line.setAttribute("points", points.map((one, at) => (
      `${(300 - (points.length - 1 - at) * step).toFixed(1)},${(58 - (one / most) * 54).toFixed(1)}`
    )).join(" "));
  }

  sample();
  setInterval(sample, CHART_SECONDS * 1000);
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

function pretty(text) {
  try {
    const parsed = JSON.parse(text);
    return typeof parsed === "object" ? JSON.stringify(parsed, null, 2) : text;
  } catch {
    return text;
  }
}

function rowOf(record) {
  const row = element("tr", "fresh");
  row.append(
    element("td", "right", record.partition), element("td", "right", record.offset),
    element("td", "nowrap", record.time ?? "–"), element("td", "mono preview", textOf(record.key).slice(0, 200)),
  );
  const details = element("details");
  const value = textOf(record.value);
  details.append(element("summary", "mono preview", value.slice(0, 200)));
  details.append(element("pre", "bytes", pretty(value)));
  for (const header of record.headers) {
    details.append(element("p", "mono", `${visible(header.name)}: ${textOf(header.value)}`));
  }
  const cell = element("td");
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
    if (start !== "newest") wanted.delete("limit");
    link.href = `${link.dataset.export}?${wanted}`;
  });
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

all("form[data-api]").forEach(wireForm);
all("figure[data-live]").forEach(wireChart);
all("[data-tail]").forEach(wireTail);
all("[data-export]").forEach(wireExport);
