// One panel of a figure as SVG. Text goes in as text nodes only, so that no name can become markup.

const SVG = "http://www.w3.org/2000/svg";
const GRID_WIDTH = 480; // of a panel with a grid, before it is scaled
const FINER = 4; // cells of a map for each cell of its grid
const LABELS = 92; // pixels to the right of a panel whose points have names
const MARKS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (r) => polygon([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]], r),
  diamond: (r) => polygon([[0, -1.25], [1.1, 0], [0, 1.25], [-1.1, 0]], r),
  up: (r) => polygon([[0, -1.15], [1.1, 0.85], [-1.1, 0.85]], r),
  down: (r) => polygon([[0, 1.15], [1.1, -0.85], [-1.1, -0.85]], r),
  left: (r) => polygon([[-1.15, 0], [0.85, 1.1], [0.85, -1.1]], r),
  right: (r) => polygon([[1.15, 0], [-0.85, 1.1], [-0.85, -1.1]], r),
  hexagon: (r) => polygon([...Array(6).keys()].map((k) => [1.15 * Math.sin((k * Math.PI) / 3),
    -1.15 * Math.cos((k * Math.PI) / 3)]), r),
  star: (r) => polygon([...Array(10).keys()].map((k) => {
    const size = k % 2 ? 0.6 : 1.4;
    return [size * Math.sin((k * Math.PI) / 5), -size * Math.cos((k * Math.PI) / 5)];
  }), r),
  cross: (r) => `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}`,
  plus: (r) => `M${-1.2 * r} 0H${1.2 * r}M0 ${-1.2 * r}V${1.2 * r}`,
};

function polygon(corners, r) {
  return `M${corners.map(([x, y]) => `${(x * r).toFixed(2)} ${(y * r).toFixed(2)}`).join("L")}z`;
}

function make(parent, name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.append(node);
  return node;
}

/** Give a node a method's colors; the style sheet chooses between light and dark. */
function paint(node, style) {
  node.classList.add("ink");
  node.style.setProperty("--light", style.light);
  node.style.setProperty("--dark", style.dark);
}

function drawMark(parent, style, x, y, size) {
  const isLine = style.mark === "cross" || style.mark === "plus";
  const mark = make(parent, "path", { d: MARKS[style.mark](size), transform: `translate(${x} ${y})` });
  mark.setAttribute("fill", isLine ? "none" : "currentColor");
  if (style.open) mark.setAttribute("class", "hollow");
  if (isLine || style.open) mark.setAttribute("stroke", "currentColor");
  if (isLine || style.open) mark.setAttribute("stroke-width", isLine ? 2.2 : 1.8);
  return mark;
}

/** Return the lowest and the highest places of series, errors included. */
function placesOf(series) {
  return {
    xs: series.flatMap((s) => s.x),
    ys: series.flatMap((s) => s.y.flatMap((y, i) => (s.error ? [y - s.error[i], y + s.error[i]] : [y]))),
  };
}

/** Return the value at a place between entries, counted from 0. */
function between(values, place) {
  const index = Math.min(Math.floor(place), values.length - 2);
  return values[index] + (place - index) * (values[index + 1] - values[index]);
}

/** Return the color of a share of a grid's scale, from 0 to 1. */
function colorAt({ colors }, share) {
  const place = share * (colors.length - 1);
  return `rgb(${[0, 1, 2].map((channel) => Math.round(between(colors.map((color) => color[channel]), place))).join(" ")})`;
}

/** Draw the values of a grid as colored cells, filled in linearly between its points. */
function drawGrid(svg, grid, x, y) {
  const cells = make(svg, "g", { class: "cells", "shape-rendering": "crispEdges" });
  const range = Math.log((grid.high - grid.low + grid.offset) / grid.offset) || 1;
  for (let row = 0; row < (grid.y.length - 1) * FINER; row++) {
    const [bottom, top] = [row, row + 1].map((line) => y(between(grid.y, line / FINER)));
    const line = grid.x.map((_, i) => between(grid.values.map((values) => values[i]), (row + 0.5) / FINER));
    for (let column = 0; column < (grid.x.length - 1) * FINER; column++) {
      const [left, right] = [column, column + 1].map((edge) => x(between(grid.x, edge / FINER)));
      const value = between(line, (column + 0.5) / FINER);
      make(cells, "rect", {
        x: left, y: top, width: right - left + 0.3, height: bottom - top + 0.3,
        fill: colorAt(grid, Math.log((value - grid.low + grid.offset) / grid.offset) / range),
      });
    }
  }
}

/** Draw the scale of a grid's colors below the x axis: equal lengths are equal shares of the logarithm. */
function drawColors(svg, grid, box) {
  const [steps, top] = [40, box.bottom + 56];
  const width = (box.right - box.left) / steps;
  for (let step = 0; step < steps; step++) {
    make(svg, "rect", {
      x: box.left + step * width, y: top, width: width + 0.3, height: 12, fill: colorAt(grid, (step + 0.5) / steps),
    });
  }
  grid.ticks.forEach((value, i) => {
    const share = i / Math.max(1, grid.ticks.length - 1);
    const anchor = { 0: "start", 1: "end" }[share] || "middle";
    make(svg, "text", { x: box.left + share * (box.right - box.left), y: top + 28, "text-anchor": anchor },
      String(Number(value.toPrecision(3))));
  });
}

function writeLeader(svg, { point, place }, x, y) {
  make(svg, "line", { class: "leader", x1: x(point[0]), y1: y(point[1]), x2: x(place[0]), y2: y(place[1]) });
}

function writeLabel(svg, { text, place }, x, y) {
  make(svg, "text", { class: "name", x: x(place[0]), y: y(place[1]) + 5, "text-anchor": "middle" }, text);
}

/**
 * Draw a panel and return the SVG and its points, each with its place and its series.
 * Panels of a figure that have the name of an axis in common have its bounds in common: `sameX` and `sameY` are the
 * series of all of them.
 */
function drawPanel(panel, styles, width, sameX, sameY) {
  const { grid } = panel;
  if (grid) width = GRID_WIDTH; // a square that the style sheet scales
  const least = panel.series.some((s) => s.named) ? 300 : 230;
  const height = grid ? GRID_WIDTH + 50 : Math.round(Math.min(330, Math.max(least, width * 0.66)));
  const lines = panel.x_ticks.some(([, name]) => name.includes("\n")) ? 2 : 1;
  const isNamed = panel.title.includes(panel.y_label);
  const box = { left: 58, right: width - (panel.labeled ? LABELS : 14), top: isNamed ? 10 : 26, bottom: height - 30 - 14 * lines };
  if (grid) box.bottom = box.top + box.right - box.left;
  const svg = document.createElementNS(SVG, "svg");
  const series = panel.series;
  const xs = placesOf(sameX).xs.concat(panel.x_ticks.map(([x]) => x));
  const { ys } = placesOf(sameY);
  let [xBounds, yBounds] = [boundsOfX(xs, panel.log_x, panel.x_ticks.length > 0), extent(ys, 0.07)];
  if (panel.diagonal) {
    const low = Math.max(0, Math.floor(Math.min(...xs, ...ys) * 10) / 10);
    xBounds = yBounds = [low, 1.005];
  }
  if (grid) [xBounds, yBounds] = [grid.x, grid.y].map((axis) => [axis[0], axis[axis.length - 1]]);
  const { x, y, names } = placeNames(series.filter((s) => s.named), (room) => ({
    x: scale(xBounds, [box.left + room.left, box.right], panel.log_x),
    y: scale(yBounds, [box.bottom - room.bottom, box.top + room.top]),
  }), box);
  for (const [key, value] of Object.entries({
    class: grid ? "plot map" : "plot", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": `${panel.title}${grid ? `, from ${numberText(grid.low)} to ${numberText(grid.high)}` : ""}: ${panel.y_label} against ${panel.x_label}, ${series.length} series. `
      + "Arrow keys read the points; all numbers are in the table below.",
  })) svg.setAttribute(key, value);

  if (!isNamed) make(svg, "text", { x: 0, y: 13 }, panel.y_label);
  drawAxes(svg, panel, box, x, y, xBounds, yBounds, grid ? box.bottom + 44 : height);
  if (grid) {
    drawGrid(svg, grid, x, y);
    drawColors(svg, grid, box);
  }
  if (panel.diagonal) make(svg, "line", { class: "guide", x1: x(xBounds[0]), y1: y(xBounds[0]), x2: x(1), y2: y(1) });
  for (const label of panel.labels) writeLeader(svg, label, x, y);
  const points = series.flatMap((s) => drawSeries(svg, s, styles[s.method] || styles[""], x, y, grid !== null));
  if (panel.labeled) labelPoints(svg, points.filter((p) => p.series.method), box);
  for (const name of names) writeName(svg, name);
  for (const label of panel.labels) writeLabel(svg, label, x, y);
  return { svg, points };
}

/**
 * Put names beside the points of a front, on the side where nothing is: to the left, and above if it rises.
 * Room is made at the edges until they fit.
 */
function placeNames(fronts, scales, box) {
  const room = { left: 0, top: 0, bottom: 0 };
  for (let attempt = 0; ; attempt++) {
    const { x, y } = scales(room);
    const names = [];
    for (const s of fronts) {
      const up = s.y[s.y.length - 1] < s.y[0] ? -1 : 1;
      s.x.forEach((value, i) => {
        const [px, py] = [x(value), y(s.y[i])];
        const right = px - 7;
        const left = right - s.names[i].length * 6.1;
        let height = py - up * 9;
        for (const other of names) {
          if (other.right > left - 4 && up * (other.height - height) < 14) height = other.height - up * 14;
        }
        names.push({ text: s.names[i], px, py, left, right, height });
      });
    }
    const over = {
      left: Math.max(0, ...names.map((name) => box.left + 4 - name.left)),
      top: Math.max(0, ...names.map((name) => box.top + 8 - name.height)),
      bottom: Math.max(0, ...names.map((name) => name.height + 9 - box.bottom)),
    };
    if (attempt === 4 || Math.max(over.left, over.top, over.bottom) < 1) return { x, y, names };
    for (const side of Object.keys(room)) room[side] += over[side];
  }
}

/** Return a name that fits into a number of pixels; the legend has the whole of it. */
function shorten(name, room) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `11.5px ${getComputedStyle(document.body).fontFamily}`; // as the style has names
  let kept = name;
  while (kept.length > 3 && pen.measureText(kept).width > room) kept = `${kept.slice(0, -2)}…`;
  return kept;
}

function writeName(svg, { text, px, py, right, height }) {
  if (Math.abs(height - py) > 12) {
    make(svg, "line", { class: "leader", x1: px - 3, y1: py, x2: right + 2, y2: height });
  }
  make(svg, "text", { class: "name", x: right, y: height + 4, "text-anchor": "end" }, text);
}

function drawAxes(svg, panel, box, x, y, xBounds, yBounds, height) {
  const rows = ticks(...yBounds, 5);
  for (const value of rows.found) {
    make(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
    make(svg, "text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, tickText(value, rows.step));
  }
  for (const guide of panel.guides) {
    make(svg, "line", { class: "guide", x1: x(guide), x2: x(guide), y1: box.top, y2: box.bottom });
  }
  make(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
  const columns = ticks(...xBounds, Math.max(3, Math.round((box.right - box.left) / 60)));
  const named = panel.x_ticks.length ? panel.x_ticks : columns.found.map((v) => [v, tickText(v, columns.step)]);
  let free = -Infinity; // where the next name may begin
  for (const [value, name] of named) {
    const parts = name.split("\n");
    const half = Math.max(...parts.map((part) => part.length)) * 3.2;
    const place = Math.max(x(value), half);
    make(svg, "line", { class: "axis", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 });
    if (place - half < free) continue;
    free = place + half + 6;
    parts.forEach((part, row) => {
      make(svg, "text", { x: place, y: box.bottom + 17 + 14 * row, "text-anchor": "middle" }, part);
    });
  }
  make(svg, "text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, panel.x_label);
}

function drawSeries(svg, series, style, x, y, isOnGrid) {
  const group = make(svg, "g", { "data-method": series.method, "data-label": series.label });
  paint(group, series.color ? { light: series.color, dark: series.color } : style);
  const isStrong = style.strong && !series.faint;
  const places = series.x.map((value, i) => [x(value), y(series.y[i])]);
  if (series.error && series.shape !== "marks" && !series.faint) {
    const side = (sign) => places.map(([px], i) => `${px} ${y(series.y[i] + sign * series.error[i])}`);
    make(group, "path", {
      d: `M${side(1).concat(side(-1).reverse()).join("L")}z`, fill: "currentColor", "fill-opacity": 0.13,
    });
  }
  if (series.shape !== "marks") {
    make(group, "path", {
      d: `M${places.map((p) => p.join(" ")).join("L")}`, fill: "none", stroke: "currentColor", "stroke-linejoin": "round",
      "stroke-width": series.faint ? 1 : isStrong ? 2.6 : 1.7, "stroke-opacity": series.faint ? 0.55 : 1,
      "stroke-dasharray": series.dashed ? "5 4" : "none",
    });
  }
  places.forEach(([px, py], i) => {
    if (series.shape === "marks" && series.error && !series.faint) {
      const [top, bottom] = [y(series.y[i] + series.error[i]), y(series.y[i] - series.error[i])];
      make(group, "path", { d: `M${px} ${top}V${bottom}`, stroke: "currentColor", "stroke-width": 1.5, "stroke-opacity": 0.4 });
    }
    if (series.shape !== "line") {
      if (isOnGrid && !series.faint) drawMark(group, style, px, py, isStrong ? 6 : 4.6).setAttribute("class", "outline");
      const mark = drawMark(group, style, px, py, series.faint ? 2.6 : isStrong ? 6 : 4.6);
      if (series.faint) mark.setAttribute("opacity", 0.65);
    }
  });
  return places.map(([px, py], index) => ({ px, py, index, series, style }));
}

/** Write each point's method beside it, pushed apart where several have about the same place. */
function labelPoints(svg, points, box) {
  const columns = new Map();
  for (const point of points) {
    const key = Math.round(point.px / 30);
    columns.set(key, [...(columns.get(key) || []), point]);
  }
  for (const column of columns.values()) {
    column.sort((a, b) => a.py - b.py);
    const step = 14;
    const tops = column.map((point) => point.py);
    for (let i = 1; i < tops.length; i++) tops[i] = Math.max(tops[i], tops[i - 1] + step);
    const over = Math.max(0, tops[tops.length - 1] - box.bottom + 4);
    tops[tops.length - 1] -= over;
    for (let i = tops.length - 2; i >= 0; i--) tops[i] = Math.min(tops[i], tops[i + 1] - step);
    column.forEach((point, i) => {
      const start = Math.max(...column.map((p) => p.px)) + 10;
      if (Math.abs(tops[i] - point.py) > 3) {
        make(svg, "line", { class: "leader", x1: point.px + 6, y1: point.py, x2: start + 6, y2: tops[i] });
      }
      const text = shorten(point.series.label, box.right + LABELS - start - 8);
      const name = make(svg, "text", { class: "name", x: start + 8, y: tops[i] + 4 }, text);
      if (point.style.strong) name.classList.add("strong");
    });
  }
}
