// The page: every figure drawn from the data in it, methods hidden by a click, points read by pointer and keys.

const { figures, styles } = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const tip = document.getElementById("tip");

function element(parent, name, className = "", text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  parent.append(node);
  return node;
}

function drawLegend(holder, figure) {
  const methods = new Set(figure.panels.flatMap((panel) => panel.series.map((s) => s.method)));
  for (const method of methods) {
    if (!method) continue;
    const button = element(holder, "button", styles[method].strong ? "strong" : "");
    button.type = "button";
    button.title = "Hide or show in all charts";
    button.dataset.toggles = method;
    button.setAttribute("aria-pressed", "true");
    const icon = make(button, "svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" });
    paint(icon, styles[method]);
    drawMark(icon, styles[method], 0, 0, 4.8);
    button.append(method);
    button.addEventListener("click", () => toggle(method));
  }
  const lines = figure.panels.flatMap((panel) => panel.series.filter((s) => !s.method));
  for (const [label, series] of new Map(lines.map((s) => [s.label, s]))) {
    const entry = element(holder, "span", "line");
    const icon = make(entry, "svg", { width: 22, height: 16, viewBox: "0 -8 22 16", "aria-hidden": "true" });
    if (series.color) make(icon, "line", { class: "edge", x2: 22 });
    paint(icon, series.color ? { light: series.color, dark: series.color } : styles[""]);
    make(icon, "line", { x2: 22, stroke: "currentColor", "stroke-dasharray": series.dashed ? "5 4" : "none" });
    entry.append(label);
  }
}

function toggle(method) {
  if (!hidden.delete(method)) hidden.add(method);
  for (const button of document.querySelectorAll("[data-toggles]")) {
    button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.toggles)));
  }
  drawAll();
}

function drawAll() {
  hideTip();
  for (const holder of document.querySelectorAll("[data-panel]")) {
    const [name, number] = holder.dataset.panel.split("/");
    const panels = figures[name].panels;
    const panel = panels[number];
    const shown = (found) => found.flatMap(({ series }) => series.filter((s) => !hidden.has(s.method)));
    const series = shown([panel]);
    const width = Math.round(holder.clientWidth);
    if (!width) continue;
    holder.replaceChildren();
    if (!series.some((s) => s.method)) {
      element(holder, "p", "note", "Every method of this chart is hidden; click one in the legend.");
      continue;
    }
    const sameX = shown(panels.filter((other) => other.x_label === panel.x_label && other.log_x === panel.log_x));
    const sameY = shown(panels.filter((other) => other.y_label === panel.y_label));
    const labels = panel.labels.filter((label) => !hidden.has(label.method));
    const { svg, points } = drawPanel({ ...panel, series, labels }, styles, width, sameX, sameY);
    holder.append(svg);
    listen(svg, points.sort((a, b) => Boolean(b.series.method) - Boolean(a.series.method)), panel);
  }
}

function listen(svg, points, panel) {
  let current = -1;
  const halo = make(svg, "circle", { class: "halo", r: 8, visibility: "hidden" });
  const show = (index) => {
    current = index;
    const point = points[index];
    halo.setAttribute("cx", point.px);
    halo.setAttribute("cy", point.py);
    halo.setAttribute("visibility", "visible");
    showTip(svg, point, panel);
  };
  const leave = () => {
    current = -1;
    halo.setAttribute("visibility", "hidden");
    hideTip();
  };
  const point = (event) => {
    const bounds = svg.getBoundingClientRect();
    const ratio = svg.viewBox.baseVal.width / bounds.width;
    const [x, y] = [(event.clientX - bounds.left) * ratio, (event.clientY - bounds.top) * ratio];
    // Where a line without a method goes through a method's mark, the mark is meant.
    const distances = points.map((p) => Math.hypot(p.px - x, p.py - y) + (p.series.method ? 0 : 12));
    const nearest = distances.indexOf(Math.min(...distances));
    if (distances[nearest] < 36) show(nearest);
    else leave();
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(0); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") leave();
    if (!step) return;
    event.preventDefault();
    show((current + step + points.length) % points.length);
  });
}

function showTip(svg, point, panel) {
  const { series, index } = point;
  const name = new Map(panel.x_ticks).get(series.x[index]);
  const where = name === undefined ? numberText(series.x[index]) : name.replace("\n", " ");
  const error = series.error ? ` ± ${Number(series.error[index].toPrecision(2))}` : "";
  tip.replaceChildren();
  element(tip, "b", "", series.names[index] || series.label);
  element(tip, "div", "", `${panel.y_label}: ${numberText(series.y[index])}${error}`);
  element(tip, "div", "", `${panel.x_label}: ${where}`);
  tip.hidden = false;
  const bounds = svg.getBoundingClientRect();
  const ratio = bounds.width / svg.viewBox.baseVal.width;
  const left = bounds.left + point.px * ratio + 14;
  const top = bounds.top + point.py * ratio - tip.offsetHeight - 12;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${scrollX + Math.max(8, Math.min(left, room))}px`;
  tip.style.top = `${scrollY + (top < 8 ? bounds.top + point.py * ratio + 16 : top)}px`;
}

function hideTip() {
  tip.hidden = true;
}

for (const holder of document.querySelectorAll("[data-legend]")) drawLegend(holder, figures[holder.dataset.legend]);
drawAll();

let drawnFor = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawnFor) drawAll(); // on a phone, scrolling alone changes the height
  drawnFor = innerWidth;
});
