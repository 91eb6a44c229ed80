// The topology as SVG: topics and sub-topologies at the places that the server has laid out.
const NS = "http://www.w3.org/2000/svg";
const WIDTH = 206, GAP = 92, ROW = 78, SPACE = 24, TOPIC = 40, PART = 62, LINE = 15, MARGIN = 6, CELLS = 16, NODES = 6;

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

// Take characters out of the middle of a text until it fits: the ends of names differ most.
function fit(element, room) {
  const whole = element.textContent;
  for (let kept = whole.length - 1; kept > 4 && element.getComputedTextLength() > room; kept -= 1) {
    const end = Math.floor(kept * 0.4);
    element.textContent = `${whole.slice(0, kept - end)}…${whole.slice(-end)}`;
  }
}

// The lines of a sub-topology's nodes, the last one for those that do not fit.
function lines(place) {
  const nodes = place.nodes || [];
  return nodes.length <= NODES ? nodes : [...nodes.slice(0, NODES - 1), `and ${nodes.length - NODES + 1} more`];
}

function tall(place) {
  return place.kind === "topic" ? TOPIC : place.kind === "part" ? PART + lines(place).length * LINE : PART - 14;
}

// Return the middle of each place: at its row, moved so that nothing in a column overlaps.
function spread(places) {
  const columns = new Map(), middles = new Map();
  for (const entry of places) columns.set(entry[1].column, [...(columns.get(entry[1].column) || []), entry]);
  for (const column of columns.values()) {
    let edge = -Infinity, shift = 0;
    for (const [key, place] of column.sort(([, a], [, b]) => a.row - b.row)) {
      const wanted = place.row * ROW, middle = Math.max(wanted, edge + SPACE + tall(place) / 2);
      shift += (wanted - middle) / column.length;
      edge = middle + tall(place) / 2;
      middles.set(key, middle);
    }
    for (const [key] of column) middles.set(key, middles.get(key) + shift);
  }
  const top = Math.min(...places.map(([key, place]) => middles.get(key) - tall(place) / 2));
  for (const [key, middle] of middles) middles.set(key, middle - top + MARGIN);
  return middles;
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
    const middles = spread(places);
    const width = columns * WIDTH + (columns - 1) * GAP + 2 * MARGIN;
    const height = Math.max(...places.map(([key, place]) => middles.get(key) + tall(place) / 2)) + MARGIN;
    const svg = make("svg", null, { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    svg.style.setProperty("--wide", `${width}px`);
    make("title", svg).textContent = `Topology of ${application}: ${places.length} topics and sub-topologies`;
    const paths = make("g", svg), shapes = make("g", svg), labels = make("g", svg), texts = [];
    const read = new Set(edges.filter(([, edge]) => edge.reads).map(([, edge]) => edge.topic));
    const written = new Set(edges.filter(([, edge]) => !edge.reads).map(([, edge]) => edge.topic));
    const at = new Map();
    for (const [key, place] of places) {
      const nodes = place.kind === "part" ? lines(place) : [];
      const high = tall(place);
      const x = MARGIN + place.column * (WIDTH + GAP), y = middles.get(key);
      at.set(key, { x, y });
      const group = make("g", shapes, { class: place.kind === "topic" ? "topic" : "part", transform: `translate(${x} ${y - high / 2})` });
      make("rect", group, { class: "shape", width: WIDTH, height: high, rx: place.kind === "topic" ? high / 2 : 9 });
      const internal = place.kind === "topic" && place.name.startsWith(`${application}-`) && place.name.endsWith("-repartition");
      const inner = internal ? place.name.slice(application.length + 1) : place.name; // other topics have the names that users gave them
      make("title", group).textContent = [place.kind === "topic" ? `topic ${place.name}` : place.name, ...(place.nodes || [])].join("\n");
      const entry = { group, cells: [], topics: [] };
      if (place.kind === "topic") {
        texts.push(text(group, { x: WIDTH / 2, y: 17, "text-anchor": "middle" }, inner));
        entry.role = !written.has(place.name) ? "input" : read.has(place.name) ? "repartition" : "output";
        entry.sub = text(group, { class: "sub", x: WIDTH / 2, y: 31, "text-anchor": "middle" }, entry.role);
      } else {
        texts.push(text(group, { x: 12, y: 20, "font-weight": 620 }, place.kind === "global" ? `Global ${place.name}` : place.name));
        const stores = place.kind === "global" ? "on every instance" : (place.stores || []).join(", ") || "no store";
        texts.push(text(group, { class: "sub", x: 12, y: 35 }, stores));
        nodes.forEach((node, number) => texts.push(text(group, { class: "node", x: 12, y: 51 + number * LINE }, node)));
        entry.cells = Array.from({ length: place.kind === "part" ? CELLS : 0 }, (_, number) =>
          make("rect", group, { class: "cell", x: 12 + number * 11, y: high - 19, width: 8, height: 8, rx: 2, visibility: "hidden" }));
        entry.number = place.number;
      }
      this.places.set(key, entry);
    }
    for (const [key, edge] of edges) {
      const start = at.get(edge.start), end = at.get(edge.end);
      if (!start || !end) continue;
      const x1 = start.x + WIDTH, x2 = end.x, bend = x2 > x1 ? (x2 - x1) / 2 : GAP;
      const d = `M${x1} ${start.y}C${x1 + bend} ${start.y} ${x2 - bend} ${end.y} ${x2} ${end.y}`;
      const group = make("g", paths);
      make("path", group, { class: "edge", d });
      make("path", group, { class: "stream", d });
      const label = text(labels, { class: "rate", x: (x1 + x2) / 2, y: (start.y + end.y) / 2 - 5 }, "");
      this.edges.set(key, { group, label });
      if (edge.reads && this.places.get(edge.end)) this.places.get(edge.end).topics.push(edge.topic);
    }
    this.container.replaceChildren(svg);
    for (const each of texts) fit(each, WIDTH - 24);
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
    if (place) place.sub.textContent = lag ? `lag ${shown}` : place.role;
  }

  // `late`: the topics whose readers lag.
  late(late) {
    for (const [key, place] of this.places) {
      const lags = place.sub ? key.slice(6) in late : place.topics.some((topic) => topic in late);
      place.group.classList.toggle("lagging", lags);
    }
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
