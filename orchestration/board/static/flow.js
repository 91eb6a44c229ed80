// The topology as SVG: topics and sub-topologies at the places that the server has laid out.
const NS = "http://www.w3.org/2000/svg";
const WIDTH = 196, GAP = 92, ROW = 84, TOPIC = 40, PART = 62, MARGIN = 6, LONGEST = 27, CELLS = 16;

function make(name, parent, attributes = {}) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

function text(parent, attributes, content) {
  const element = make("text", parent, attributes);
  element.textContent = content;
  return element;
}

function shortened(name) {
  return name.length <= LONGEST ? name : `${name.slice(0, LONGEST - 11)}…${name.slice(-10)}`;
}

export class Flow {
  constructor(container) {
    this.container = container;
    this.places = new Map();
    this.edges = new Map();
  }

  // Draw the graph anew; rates and lags are filled in by `rate` and `lag`.
  draw(graph, application) {
    this.places.clear();
    this.edges.clear();
    const places = Object.entries(graph.places || {}), edges = Object.entries(graph.edges || {});
    if (!places.length) {
      const none = document.createElement("p");
      none.className = "faint";
      none.textContent = "No topology is recorded yet: it is published when an instance starts.";
      this.container.replaceChildren(none);
      return;
    }
    const columns = Math.max(...places.map(([, place]) => place.column)) + 1;
    const rows = Math.max(...places.map(([, place]) => place.row)) + 1;
    const width = columns * WIDTH + (columns - 1) * GAP + 2 * MARGIN, height = (rows - 1) * ROW + PART + 2 * MARGIN;
    const svg = make("svg", null, { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    svg.style.setProperty("--wide", `${width}px`);
    make("title", svg).textContent = `Topology of ${application}: ${places.length} topics and sub-topologies`;
    const lines = make("g", svg), shapes = make("g", svg), labels = make("g", svg);
    const read = new Set(edges.filter(([, edge]) => edge.reads).map(([, edge]) => edge.topic));
    const written = new Set(edges.filter(([, edge]) => !edge.reads).map(([, edge]) => edge.topic));
    const at = new Map();
    for (const [key, place] of places) {
      const high = place.kind === "topic" ? TOPIC : PART;
      const x = MARGIN + place.column * (WIDTH + GAP), y = MARGIN + place.row * ROW + PART / 2;
      at.set(key, { x, y });
      const group = make("g", shapes, { class: place.kind === "topic" ? "topic" : "part", transform: `translate(${x} ${y - high / 2})` });
      make("rect", group, { class: "shape", width: WIDTH, height: high, rx: place.kind === "topic" ? high / 2 : 9 });
      const inner = place.kind === "topic" ? place.name.replace(`${application}-`, "") : place.name;
      make("title", group).textContent = [place.kind === "topic" ? `topic ${place.name}` : place.name, ...(place.nodes || [])].join("\n");
      const entry = { group, cells: [] };
      if (place.kind === "topic") {
        text(group, { x: WIDTH / 2, y: 17, "text-anchor": "middle" }, shortened(inner));
        entry.role = !written.has(place.name) ? "input" : read.has(place.name) ? "repartition" : "output";
        entry.sub = text(group, { class: "sub", x: WIDTH / 2, y: 31, "text-anchor": "middle" }, entry.role);
      } else {
        text(group, { x: 12, y: 20, "font-weight": 620 }, shortened(place.kind === "global" ? `Global ${place.name}` : place.name));
        const stores = place.kind === "global" ? "on every instance" : (place.stores || []).join(", ") || "no store";
        text(group, { class: "sub", x: 12, y: 35 }, shortened(stores));
        entry.cells = Array.from({ length: place.kind === "part" ? CELLS : 0 }, (_, number) =>
          make("rect", group, { class: "cell", x: 12 + number * 11, y: 43, width: 8, height: 8, rx: 2, visibility: "hidden" }));
        entry.number = place.number;
      }
      this.places.set(key, entry);
    }
    for (const [key, edge] of edges) {
      const start = at.get(edge.start), end = at.get(edge.end);
      if (!start || !end) continue;
      const x1 = start.x + WIDTH, x2 = end.x, bend = x2 > x1 ? (x2 - x1) / 2 : GAP;
      const d = `M${x1} ${start.y}C${x1 + bend} ${start.y} ${x2 - bend} ${end.y} ${x2} ${end.y}`;
      const group = make("g", lines);
      make("path", group, { class: "edge", d });
      make("path", group, { class: "stream", d });
      const label = text(labels, { class: "rate", x: (x1 + x2) / 2, y: (start.y + end.y) / 2 - 5 }, "");
      this.edges.set(key, { group, label });
    }
    this.container.replaceChildren(svg);
  }

  rate(key, perSecond, shown) {
    const edge = this.edges.get(key);
    if (!edge) return;
    edge.label.textContent = perSecond ? `${shown}/s` : "";
    edge.group.classList.toggle("moving", Boolean(perSecond));
    const pace = perSecond ? [2.6, 1.7, 1.1, 0.7][Math.min(3, Math.floor(Math.log10(Math.max(1, perSecond))))] : 0;
    if (edge.pace !== pace) {
      edge.pace = pace;
      edge.group.style.setProperty("--pace", `${pace}s`);
    }
  }

  lag(topic, lag, shown) {
    const place = this.places.get(`topic ${topic}`);
    if (!place) return;
    place.sub.textContent = lag ? `lag ${shown}` : place.role;
    place.group.classList.toggle("lagging", Boolean(lag));
  }

  // `looks`: the look of each active task of a sub-topology, in order.
  tasks(number, looks) {
    for (const place of this.places.values()) {
      if (place.number !== number || !place.cells.length) continue;
      const worst = looks.includes("paused") ? "bad" : looks.includes("restoring") ? "busy" : "good";
      place.group.dataset.level = worst;
      const order = looks.length > CELLS ? [...looks].sort((a, b) => (a === "running") - (b === "running")) : looks;
      place.cells.forEach((cell, index) => {
        cell.setAttribute("visibility", index < order.length ? "visible" : "hidden");
        if (index < order.length) cell.dataset.look = order[index];
      });
    }
  }
}
