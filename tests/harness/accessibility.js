// Returns what is wrong with the page for people who use a keyboard, a screen reader, or weak eyes.
() => {
  const problems = [];
  const shown = (one) => one.checkVisibility({ checkVisibilityCSS: true }) && !one.closest("[inert]");
  const name = (one) => (
    one.getAttribute("aria-label") || one.textContent.trim() || one.title
    || (one.labels && [...one.labels].map((label) => label.textContent.trim()).join(" "))
    || (one.getAttribute("aria-labelledby") && document.getElementById(one.getAttribute("aria-labelledby"))?.textContent)
  );
  const where = (one) => one.outerHTML.slice(0, 120).replace(/\s+/g, " ");

  if (document.documentElement.lang !== "en") problems.push("no language");
  if (!document.title) problems.push("no title");
  if (document.querySelectorAll("h1").length !== 1) problems.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) problems.push("not one main");
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of ids) if (ids.filter((one) => one === id).length > 1) problems.push(`id ${id} twice`);
  for (const one of document.querySelectorAll("label[for]")) {
    if (!document.getElementById(one.htmlFor)) problems.push(`label of nothing: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("[aria-labelledby]")) {
    if (!document.getElementById(one.getAttribute("aria-labelledby"))) problems.push(`labelled by nothing: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!one.labels.length && !one.getAttribute("aria-label")) problems.push(`no label: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("a[href], button, summary, dialog, figure svg")) {
    if (!name(one)) problems.push(`no name: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("[tabindex]")) {
    if (one.tabIndex > 0) problems.push(`out of order: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("thead th")) {
    if (one.scope !== "col") problems.push(`no scope: ${where(one)}`);
  }
  let level = 0;
  for (const one of document.querySelectorAll("main h1, main h2, main h3")) {
    if (!shown(one)) continue;
    const next = Number(one.tagName[1]);
    if (next > level + 1) problems.push(`heading skipped: ${where(one)}`);
    level = next;
  }

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const background = (one) => {
    const colour = rgba(getComputedStyle(one).backgroundColor);
    if (colour[3] === 1 || !one.parentElement) return colour[3] ? colour : [255, 255, 255, 1];
    const below = background(one.parentElement);
    return [0, 1, 2].map((at) => colour[at] * colour[3] + below[at] * (1 - colour[3])).concat(1);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Set();
  for (const one of document.querySelectorAll("body *")) {
    const has = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!has || !shown(one) || one.disabled || one.closest(".hidden, .skip")) continue;
    const style = getComputedStyle(one);
    const [light, dark] = [luminance(rgba(style.color)), luminance(background(one))].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const key = `${one.tagName}.${one.className} ${style.color}`;
    if (ratio < 4.5 && !seen.has(key)) problems.push(`contrast ${ratio.toFixed(2)}: ${where(one)}`);
    seen.add(key);
  }
  return problems;
}
