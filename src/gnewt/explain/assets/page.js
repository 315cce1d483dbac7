"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const make = (tag, text, parent) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const short = (x) => {
    if (x === null) return "–";
    for (const [size, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (x >= size) return Number((x / size).toPrecision(3)) + " " + prefix;
    return Number(x.toPrecision(3)) + " ";
  };

  // Facts, advice, costs.
  find("head").textContent = "· " + data.head;
  for (const [name, value] of Object.entries(data.facts)) {
    make("dt", name, find("facts"));
    make("dd", typeof value === "number" ? value.toLocaleString("en") : value, find("facts"));
  }
  for (const sentence of data.cheaper.length ? data.cheaper : ["Nothing was found that would help."])
    make("li", sentence, find("cheaper"));
  const known = data.costs.filter((c) => c.flops).map((c) => Math.log10(c.flops));
  const low = Math.min(...known) - 0.5, high = Math.max(...known);
  for (const cost of data.costs) {
    const row = make("div", undefined, find("costs"));
    row.className = "row";
    make("span", cost.method, row);
    const bar = make("div", undefined, row);
    bar.className = "bar";
    const fill = make("i", undefined, bar);
    fill.style.width = cost.flops ? (100 * (Math.log10(cost.flops) - low)) / (high - low || 1) + "%" : "0";
    const time = cost.ms === null ? "" : ` · ${Number(cost.ms.toPrecision(3))} ms`;
    const size = cost.flops === null ? "not counted" : `${short(cost.flops).trim()} flops · ${short(cost.bytes)}B`;
    make("b", size + time, bar);
    if (cost.note) make("span", cost.note, row).className = "note";
  }
  make("p", "Bars are on a logarithmic scale.", find("costs")).className = "hint";

  // Families: layers from the inputs to the losses.
  const drawFamilies = () => {
    const { nodes, edges, left_out } = data.families;
    const layer = nodes.map(() => 0);
    for (const [from, to] of edges) if (from < to && to < nodes.length) layer[to] = Math.max(layer[to], layer[from] + 1);
    const column = new Map();
    nodes.forEach((_, i) => column.set(layer[i], [...(column.get(layer[i]) || []), i]));
    const wide = 200, tall = 62, at = [];
    let rows = 1;
    [...column.keys()].sort((a, b) => a - b).forEach((l, x) => {
      const members = column.get(l);
      rows = Math.max(rows, members.length);
      members.forEach((i, y) => { at[i] = [20 + x * (wide + 70), 20 + y * (tall + 22)]; });
    });
    const space = "http://www.w3.org/2000/svg";
    const add = (tag, values, parent, text) => {
      const node = document.createElementNS(space, tag);
      for (const [k, v] of Object.entries(values)) node.setAttribute(k, v);
      if (text !== undefined) node.textContent = text;
      parent.append(node);
      return node;
    };
    const svg = add("svg", { width: 40 + column.size * (wide + 70), height: 40 + rows * (tall + 22), role: "group" }, find("graph"));
    for (const [from, to, count] of edges) {
      const [x, y] = at[from], [u, v] = at[to];
      const path = from === to
        ? `M${x + wide * 0.3} ${y} C${x + wide * 0.3} ${y - 24} ${x + wide * 0.7} ${y - 24} ${x + wide * 0.7} ${y}`
        : from < to
          ? `M${x + wide} ${y + tall / 2} C${x + wide + 40} ${y + tall / 2} ${u - 40} ${v + tall / 2} ${u} ${v + tall / 2}`
          : `M${x + wide / 2} ${y + tall} C${x + wide / 2} ${y + tall + 40} ${u + wide / 2} ${v + tall + 40} ${u + wide / 2} ${v + tall}`;
      const edge = add("path", { d: path, fill: "none", stroke: colour("soft"), "stroke-width": 1 + Math.min(3, Math.log10(count + 1) / 2) }, svg);
      add("title", {}, edge, `read ${count.toLocaleString("en")} times`);
    }
    nodes.forEach((node, i) => {
      const [x, y] = at[i];
      const group = add("g", { class: "node", tabindex: 0, transform: `translate(${x} ${y})` }, svg);
      const stroke = node.note ? colour("red") : node.kind === "input" ? colour("green") : colour("blue");
      add("rect", { width: wide, height: tall, rx: 8, fill: colour("paper"), stroke, "stroke-width": 1.5,
        "stroke-dasharray": node.kind === "loss" ? "5 3" : "none" }, group);
      const cut = (text, most) => (text.length > most ? "…" + text.slice(1 - most) : text);
      add("text", { x: 10, y: 20 }, group, cut(node.name, 26));
      const size = node.kind === "input" ? `${node.n.toLocaleString("en")} scalars`
        : `${node.n.toLocaleString("en")} × (${node.k} → ${node.kind === "loss" ? "loss" : node.m})`;
      add("text", { x: 10, y: 37, class: "small" }, group, size);
      add("text", { x: 10, y: 53, class: "small" }, group, cut(node.where, 32));
      add("title", {}, group, [node.name, node.where, node.note].filter(Boolean).join("\n"));
    });
    if (left_out) make("p", `${left_out} more families are not drawn.`, find("graph")).className = "hint";
  };
  drawFamilies();

  // A canvas that can be zoomed and moved; `draw(context, width, height, view)` draws it.
  const zoomable = (canvas, draw) => {
    const view = { x: 0, y: 0, scale: 1 };
    let waiting = false;
    const paint = () => {
      waiting = false;
      const dense = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
      canvas.width = Math.max(1, Math.round(width * dense));
      canvas.height = Math.max(1, Math.round(height * dense));
      const context = canvas.getContext("2d");
      context.setTransform(dense, 0, 0, dense, 0, 0);
      context.clearRect(0, 0, width, height);
      draw(context, width, height, view);
    };
    const repaint = () => { if (!waiting) { waiting = true; requestAnimationFrame(paint); } };
    const zoom = (factor, x, y) => {
      const scale = Math.min(4000, Math.max(1, view.scale * factor));
      view.x = x - ((x - view.x) * scale) / view.scale;
      view.y = y - ((y - view.y) * scale) / view.scale;
      view.scale = scale;
      if (scale === 1) view.x = view.y = 0;
      repaint();
    };
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, event.offsetX, event.offsetY);
    }, { passive: false });
    let from = null;
    canvas.addEventListener("pointerdown", (event) => { from = [event.clientX - view.x, event.clientY - view.y]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      view.x = event.clientX - from[0];
      view.y = event.clientY - from[1];
      repaint();
    });
    canvas.addEventListener("pointerup", () => { from = null; });
    canvas.addEventListener("keydown", (event) => {
      const centre = [canvas.clientWidth / 2, canvas.clientHeight / 2];
      if (event.key === "+" || event.key === "=") zoom(1.5, ...centre);
      else if (event.key === "-") zoom(1 / 1.5, ...centre);
      else if (event.key === "0") zoom(1e-9, 0, 0);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(repaint).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    paint();
    return { repaint, view };
  };

  // Fronts: depth to the right, leaves below each other.
  const drawTree = () => {
    const fronts = data.tree, canvas = find("tree");
    const children = fronts.map(() => []), roots = [];
    fronts.forEach((front, i) => (front.p < 0 ? roots : children[front.p]).push(i));
    const depth = fronts.map(() => 0), place = fronts.map(() => 0), stack = roots.slice().reverse();
    const order = [];
    while (stack.length) {
      const i = stack.pop();
      order.push(i);
      for (const c of children[i]) { depth[c] = depth[i] + 1; stack.push(c); }
    }
    let leaves = 0;
    for (const i of order) if (!children[i].length) place[i] = leaves++;
    for (const i of order.slice().reverse())
      if (children[i].length) place[i] = children[i].reduce((sum, c) => sum + place[c], 0) / children[i].length;
    const deepest = 1 + depth.reduce((a, b) => Math.max(a, b), 0);
    const widest = fronts.reduce((a, f) => Math.max(a, f.e + f.s), 1);
    canvas.style.height = Math.min(900, Math.max(260, leaves * 15)) + "px";
    let chosen = -1, boxes = [];
    const draw = (context, width, height, view) => {
      const stepX = (width * view.scale) / deepest, stepY = (height * view.scale) / Math.max(1, leaves);
      const boxWidth = Math.max(1.5, Math.min(64, stepX * 0.62));
      const most = Math.max(2, Math.min(height * 0.8, stepY * 0.8));
      boxes = fronts.map((front, i) => {
        const size = (front.e + front.s) / widest, tall = Math.max(3, most * size), wide = boxWidth * (0.3 + 0.7 * size);
        return [view.x + (depth[i] + 0.5) * stepX - wide / 2, view.y + (place[i] + 0.5) * stepY - tall / 2, wide, tall];
      });
      context.strokeStyle = colour("soft");
      context.lineWidth = 0.8;
      context.beginPath();
      fronts.forEach((front, i) => {
        if (front.p < 0) return;
        const [x, y, , tall] = boxes[i], [u, v, wide, high] = boxes[front.p];
        context.moveTo(x, y + tall / 2);
        context.lineTo(u + wide, v + high / 2);
      });
      context.stroke();
      const blue = colour("blue"), pale = colour("pale"), red = colour("red"), ink = colour("ink");
      context.font = "11px system-ui, sans-serif";
      fronts.forEach((front, i) => {
        const [x, y, wide, tall] = boxes[i];
        if (x > width || x + wide < 0 || y > height || y + tall < 0) return;
        const own = (tall * front.e) / (front.e + front.s || 1);
        context.fillStyle = pale;
        context.fillRect(x, y, wide, tall);
        context.fillStyle = blue;
        context.fillRect(x, y, wide, own);
        if (i === chosen) {
          context.strokeStyle = red;
          context.lineWidth = 2.5;
          context.strokeRect(x - 2, y - 2, wide + 4, tall + 4);
        }
        if (front.c > 1 && wide > 14 && most > 10) {
          context.fillStyle = ink;
          context.fillText("× " + front.c.toLocaleString("en"), x, y + tall + 12);
        }
      });
    };
    const shown = zoomable(canvas, draw);
    const choose = (i) => {
      if (i === chosen) return;
      chosen = i;
      const front = fronts[i], text = find("front");
      text.textContent = "";
      const many = front.c > 1 ? `${front.c.toLocaleString("en")} fronts like this one: ` : "";
      make("strong", `${many}${front.e + front.s} unknowns, ${front.e} eliminated, ${front.s} passed on, ${short(front.f).trim()} flops`, text);
      make("div", "variables: " + front.v, text);
      make("div", "source: " + (front.w.join(", ") || "not known"), text);
      canvas.setAttribute("aria-label", `front ${i + 1} of ${fronts.length}`);
      shown.repaint();
    };
    const under = (event) => {
      let best = -1, least = 12;
      boxes.forEach(([x, y, wide, tall], i) => {
        const dx = Math.max(x - event.offsetX, 0, event.offsetX - x - wide), dy = Math.max(y - event.offsetY, 0, event.offsetY - y - tall);
        if (Math.hypot(dx, dy) < least) { least = Math.hypot(dx, dy); best = i; }
      });
      return best;
    };
    canvas.addEventListener("pointermove", (event) => { const i = under(event); if (i >= 0 && !event.buttons) choose(i); });
    canvas.addEventListener("pointerdown", (event) => { const i = under(event); if (i >= 0) choose(i); });
    canvas.addEventListener("keydown", (event) => {
      const now = chosen < 0 ? roots[0] : chosen, beside = fronts[now].p < 0 ? roots : children[fronts[now].p];
      const at = beside.indexOf(now);
      const next = chosen < 0 ? now : { ArrowLeft: fronts[now].p, ArrowRight: children[now][0],
        ArrowUp: beside[at - 1], ArrowDown: beside[at + 1], Home: roots[0], End: order[order.length - 1] }[event.key];
      if (!event.key.startsWith("Arrow") && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      if (next !== undefined && next >= 0) choose(next);
    });
  };
  drawTree();

  // Matrices: the finest squares that are there and can be told apart.
  find("matrices").className = "matrices";
  for (const matrix of data.matrices) {
    const figure = make("figure", undefined, find("matrices"));
    const canvas = make("canvas", undefined, figure);
    canvas.tabIndex = 0;
    const density = (100 * matrix.entries) / Math.max(1, matrix.n * matrix.n);
    make("figcaption", `${matrix.title}: ${matrix.n.toLocaleString("en")}², ${Number(density.toPrecision(3))} % nonzero`, figure);
    canvas.setAttribute("aria-label", matrix.title);
    for (const level of matrix.levels) { let at = 0; level.at = Int32Array.from(level.cells, (d) => (at += d)); }
    zoomable(canvas, (context, width, height, view) => {
      const side = Math.min(width, height) * view.scale;
      const level = matrix.levels.find((l) => l.bins >= side / 1.5) || matrix.levels[matrix.levels.length - 1];
      const size = side / level.bins, drawn = Math.max(size, 1);
      context.fillStyle = colour("blue");
      for (const cell of level.at) {
        const x = view.x + (cell % level.bins) * size, y = view.y + Math.floor(cell / level.bins) * size;
        if (x < width && y < height && x + drawn > 0 && y + drawn > 0) context.fillRect(x, y, drawn, drawn);
      }
    });
  }
  document.documentElement.dataset.ready = "yes";
})();
