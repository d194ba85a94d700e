"use strict";
// The report's page. Everything shown comes from the element "data"; text is only ever set as text, never as markup.
// Names in it may be anybody's. Charts take some HTML and templates for markup: `draw` escapes all text that they get.
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const MADE = JSON.parse(document.getElementById("made").textContent);
  const KEY = "dcpg-report";
  const main = document.getElementById("main");
  const methods = new Map(D.methods.map((m) => [m.label, m]));
  const gameTitle = new Map(D.games.map((g) => [g.id, g.title]));
  const VALUES = { true: "#1f78b4", predicted: "#e31a1c" }; // as in the paper
  const LEVELS = { test: "unseen levels", train: "training levels" };

  // -- what was chosen outlives a refresh
  let chosen = {};
  try { chosen = JSON.parse(sessionStorage.getItem(KEY) || "{}"); } catch { chosen = {}; }
  const remember = (name, value) => {
    chosen[name] = value;
    try { sessionStorage.setItem(KEY, JSON.stringify(chosen)); } catch { /* a page from a file may have no storage */ }
  };
  const recall = (name, values, usual) => (values.includes(chosen[name]) ? chosen[name] : usual);

  // -- elements
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") node.className = value;
      else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((c) => c !== null && c !== undefined));
    return node;
  }
  function section(id, title, text) {
    const node = el("section", { id }, el("h2", {}, title), text ? el("p", {}, text) : null);
    main.append(node);
    document.getElementById("nav").append(el("a", { href: `#${id}` }, title));
    return node;
  }
  function segments(name, options, usual, then) {
    const box = el("span", { class: "segments", role: "group", "aria-label": name.replace("-", " "), "data-control": name });
    let value = recall(name, options.map((o) => o[0]), usual);
    const press = () => box.childNodes.forEach((b) => b.setAttribute("aria-pressed", b.dataset.value === value));
    for (const [key, text] of options) {
      box.append(el("button", { type: "button", "data-value": key, onclick: () => { value = key; remember(name, key); press(); then(); } }, text));
    }
    press();
    return { node: box, get value() { return value; } };
  }
  function select(name, label, options, usual, then) {
    const box = el("select", { "data-control": name, onchange: () => { remember(name, box.value); then(); } });
    for (const [key, text] of options) box.append(el("option", { value: key }, text));
    box.value = recall(name, options.map((o) => o[0]), usual);
    return { node: el("label", {}, label, box), get value() { return box.value; } };
  }
  const format = (x, digits = 2) => (x === null || x === undefined ? "-" : Number(x).toFixed(digits));
  const seeds = (n) => `${n} seed${String(n) === "1" ? "" : "s"}`;
  const thousands = (n) => Number(n).toLocaleString("en");
  function table(head, rows, left = 1, kind = "") {
    const cell = (tag, value, i) => {
      const node = el(tag, { class: i < left ? "left" : "", scope: tag === "th" ? "col" : null });
      if (value !== null && typeof value === "object") node.append(value.own, value.paper ? el("small", {}, `paper ${value.paper}`) : "");
      else node.append(String(value));
      return node;
    };
    return el("div", { class: `scroll ${kind}` }, el("table", {},
      el("thead", {}, el("tr", {}, ...head.map((h, i) => cell("th", h, i)))),
      el("tbody", {}, ...rows.map((r) => el("tr", {}, ...r.map((v, i) => cell("td", v, i)))))));
  }

  const files = (name) => el("p", { class: "note" }, ...["csv", "md", "tex"].flatMap((e) => [el("a", { href: `tables/${name}.${e}` }, `${name}.${e}`), "  "]));

  // -- the chart library: opened while the rest of the page is already shown
  const canDraw = "DecompressionStream" in window;
  if (!canDraw) main.append(el("p", { class: "lead" }, "This browser is too old to draw the charts, which need Chrome 80, Firefox 113, Safari 16.4 or newer; everything else is here."));
  async function openLibrary() {
    const text = atob(document.getElementById("plotly").textContent), packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i); // Uint8Array.from takes 300 ms longer
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(el("script", {}, await new Response(stream).text()));
  }
  const library = canDraw ? openLibrary() : null;

  // -- charts: drawn when they come into view, drawn again when the colours change
  const drawings = new Map();
  const near = new IntersectionObserver(async (entries) => {
    await library;
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "600px" });
  function colours() {
    const style = getComputedStyle(document.documentElement);
    const v = (name) => style.getPropertyValue(name).trim();
    return { ink: v("--ink"), soft: v("--soft"), grid: v("--grid"), card: v("--card"), line: v("--line") };
  }
  const TEMPLATES = ["hovertemplate", "texttemplate"]; // fixed texts: what they show of the data they name as %{...}
  function escaped(value) {
    if (typeof value === "string") return value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "&#37;{");
    if (Array.isArray(value)) return value.map(escaped);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, TEMPLATES.includes(k) ? v : escaped(v)]));
  }
  function draw(node) {
    const make = drawings.get(node);
    if (!make || !node.isConnected) return;
    const c = colours();
    const { traces, layout = {} } = escaped(make(c));
    const axis = { gridcolor: c.grid, zerolinecolor: c.line, linecolor: c.line, automargin: true, tickfont: { size: 11 } };
    const narrow = node.clientWidth < 420;
    const whole = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: c.ink, size: 12, family: "inherit" },
      margin: { l: 46, r: 10, t: layout.title ? 30 : 8, b: 36 }, hoverlabel: { namelength: -1, bgcolor: c.card, bordercolor: c.line, font: { color: c.ink } },
      showlegend: false, dragmode: narrow ? false : "zoom", ...layout,
      xaxis: { ...axis, ...(layout.xaxis || {}) }, yaxis: { ...axis, ...(layout.yaxis || {}) },
    };
    if (layout.title) whole.title = { text: layout.title, font: { size: 13 }, x: 0.02, xanchor: "left", y: 0.97, yanchor: "top" };
    Plotly.react(node, traces, whole, { responsive: true, displaylogo: false, displayModeBar: false });
    node.dataset.drawn = "true";
  }
  function chart(parent, make, size = "") {
    const node = el("div", { class: `chart ${size}`, hidden: canDraw ? null : "", role: "img", "aria-label": parent.closest("section") ? `Chart: ${parent.closest("section").querySelector("h2").textContent}` : "Chart" });
    parent.append(node);
    drawings.set(node, make);
    near.observe(node);
    return node;
  }
  function clear(parent) {
    for (const node of parent.querySelectorAll(".chart")) {
      near.unobserve(node);
      drawings.delete(node);
      if (node.dataset.drawn) Plotly.purge(node);
    }
    parent.replaceChildren();
  }
  const redraw = () => { for (const node of drawings.keys()) if (node.dataset.drawn) draw(node); };
  const faint = (hex, alpha) => {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${alpha})`;
  };
  function band(x, mid, low, high, colour, name, extra = {}) {
    const traces = [];
    if (mid.some((v, i) => high[i] > low[i])) {
      traces.push({ x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: faint(colour, 0.16), line: { width: 0 }, hoverinfo: "skip", type: "scatter", mode: "lines", name: `${name} band`, meta: "band", showlegend: false });
    }
    traces.push({ x, y: mid, name, type: "scatter", mode: x.length < 25 ? "lines+markers" : "lines", marker: { size: 4 }, line: { color: colour, width: 2, ...(extra.line || {}) }, ...(extra.trace || {}) });
    return traces;
  }
  const steps = (c, name) => c[name].steps || c.steps; // a curve's own, if they are not those on training levels
  const around = (c, sign) => c.mean.map((m, i) => m + sign * c.std[i]);

  // -- methods that are shown, the same choice for every chart
  const hidden = new Set(Array.isArray(chosen.hidden) ? chosen.hidden : []);
  const shown = (label) => !hidden.has(label);
  const refreshers = [];
  function chips() {
    const box = el("span", { class: "chips", role: "group", "aria-label": "methods", "data-control": "methods" });
    for (const m of D.methods) {
      const chip = el("button", { type: "button", class: "chip", "data-method": m.label, style: { "--c": m.colour }, "aria-pressed": String(shown(m.label)), onclick: () => {
        if (hidden.has(m.label)) hidden.delete(m.label); else hidden.add(m.label);
        remember("hidden", [...hidden]);
        document.querySelectorAll(".chip").forEach((c) => c.setAttribute("aria-pressed", String(shown(c.dataset.method))));
        refreshers.forEach((f) => f());
      } }, el("i"), m.title);
      box.append(chip);
    }
    return box;
  }
  function live(parent, fill) {
    const refresh = () => { clear(parent); fill(parent); };
    refreshers.push(refresh);
    refresh();
    return refresh;
  }

  // -- overview and headline
  const top = section("overview", "Overview");
  top.append(el("p", { class: "lead" }, `${D.setting}. ${D.methods.length} method${D.methods.length === 1 ? "" : "s"} on ${D.games.length} game${D.games.length === 1 ? "" : "s"}.`));
  if (D.caption) top.append(el("p", { class: "note", "data-part": "caption" }, `${D.caption}${D.like_paper ? "" : " So the paper's own numbers stand beside them in Claims alone."}`));
  const pill = (kind, n, text) => el("span", { class: `pill ${kind}` }, el("b", {}, String(n)), ` ${text}`);
  top.append(el("div", { class: "pills" },
    pill("good", D.runs.finished, "finished"), D.runs.unfinished ? pill("warn", D.runs.unfinished, "unfinished") : null,
    D.runs.problems ? pill("warn", D.runs.problems, "left out or odd") : null, D.missing.length ? pill("", D.missing.length, "things missing") : null,
    el("span", { class: "pill" }, `made ${MADE.made}`)));
  if (D.headline.methods.length) headline();
  function headline() {
    const h = D.headline;
    const measures = [["normalised", "PPO-normalised"], ["iqm", "IQM"], ["mean", "Mean"], ["median", "Median"], ["optimality_gap", "Optimality gap"]]
      .filter(([m]) => (m === "normalised" ? Object.keys(h.normalised.test || {}).length : Object.keys(h.minmax).length));
    if (!measures.length) { h.notes.test.forEach((n) => top.append(el("p", { class: "note" }, n))); return; }
    const measure = segments("measure", measures, measures[0][0], () => refresh());
    const split = segments("headline-split", [["test", "unseen levels"], ["train", "training levels"]], "test", () => refresh());
    const controls = el("div", { class: "controls" }, measure.node, split.node);
    const body = el("div", { class: "two" });
    top.append(controls, chips(), body);
    const value = (m) => (measure.value === "normalised" ? (h.normalised[split.value] || {})[m] : (h.minmax[m] || {})[measure.value]);
    const refresh = live(body, (box) => {
      split.node.hidden = measure.value !== "normalised";
      const list = h.methods.filter((m) => shown(m) && value(m));
      const digits = measure.value === "normalised" ? 1 : 3;
      const holder = el("div");
      box.append(holder);
      chart(holder, (c) => {
        const rows = list.map((m) => value(m));
        const names = list.map((m) => methods.get(m).title);
        const traces = [{ type: "scatter", mode: "markers", name: "these runs", y: names, x: rows.map((r) => r.value), marker: { size: 11, color: list.map((m) => methods.get(m).colour) },
          error_x: { type: "data", symmetric: false, array: rows.map((r) => (r.high === null ? null : r.high - r.value)), arrayminus: rows.map((r) => (r.low === null ? null : r.value - r.low)), thickness: 3, width: 6, color: c.soft },
          hovertemplate: "%{y}: %{x:.3f}<extra></extra>" }];
        const known = rows.map((r, i) => [r.paper, names[i]]).filter((p) => p[0] !== null && p[0] !== undefined);
        if (known.length) {
          traces.push({ type: "scatter", mode: "markers", name: "the paper, 25M steps", x: known.map((p) => p[0]), y: known.map((p) => p[1]), marker: { symbol: "diamond-open", size: 11, color: c.ink }, hovertemplate: `paper, %{y}: %{x:.${digits}f}<extra></extra>` });
        }
        return { traces, layout: { height: 110 + 42 * list.length, margin: { l: 10, r: 12, t: 6, b: 40 }, yaxis: { type: "category", range: [list.length - 0.5, -0.5], automargin: true }, showlegend: traces.length > 1, legend: { orientation: "h", xref: "container", x: 0.02, yanchor: "bottom", yref: "container", y: 0 },
          xaxis: { title: { text: measure.value === "normalised" ? `% of PPO, ${LEVELS[split.value]}` : "min-max normalised return, unseen levels", font: { size: 11 } } } } };
      }, "fitted");
      const papers = list.some((m) => value(m).paper !== null && value(m).paper !== undefined);
      box.append(el("div", {}, table(["method", "score", "95% interval (seeds)", ...(papers ? ["the paper"] : [])], list.map((m) => {
        const r = value(m);
        const interval = r.low === null ? `none: one seed${r.seeds === "1" ? "" : ` on a game (${r.seeds})`}` : `${format(r.low, digits)} to ${format(r.high, digits)} (${r.seeds})`;
        return [methods.get(m).title, format(r.value, digits) + (r.std !== null && r.std !== undefined ? ` ± ${format(r.std, digits)}` : ""), interval, ...(papers ? [format(r.paper, digits)] : [])];
      })), ...(measure.value === "normalised" ? h.notes[split.value] : h.shared).map((n) => el("p", { class: "note" }, n)),
      papers && !D.is_papers ? el("p", { class: "note" }, "The paper's figures are of 25M steps and 10 seeds; these runs are shorter.") : null));
    });
  }

  // -- curves
  if (D.curves.length) {
    const part = section("curves", "Returns", "Mean over seeds of the return in evaluations; bands are one standard deviation over seeds. Drag to zoom, double-click to go back.");
    const what = segments("curves", [["test", "unseen levels"], ["train", "training levels"], ["both", "both"], ["gap", "gap"]], "test", () => refresh());
    const grid = el("div", { class: D.games.length < 4 ? "charts few" : "charts" });
    part.append(el("div", { class: "controls" }, what.node, chips()), grid);
    const refresh = live(grid, (box) => {
      for (const g of D.games) {
        const list = D.curves.filter((c) => c.game === g.id && shown(c.label));
        if (!list.length) continue;
        if ((what.value === "test" || what.value === "gap") && !list.some((c) => c.test)) {
          box.append(el("p", {}, `${g.title} has no unseen levels: give it a test environment.`));
          continue;
        }
        chart(box, () => {
          const traces = [];
          for (const c of list) {
            const m = methods.get(c.label);
            const hover = (name) => ({ customdata: (c[name].seeds || c.seeds).map(seeds), hovertemplate: "%{fullData.name}: %{y:.2f} (%{customdata})<extra></extra>" });
            if (what.value === "gap") {
              if (c.gap) traces.push(...band(steps(c, "gap"), c.gap.mean, [], [], m.colour, m.title, { trace: hover("gap") }));
            } else {
              if (what.value !== "train" && c.test) traces.push(...band(steps(c, "test"), c.test.mean, around(c.test, -1), around(c.test, 1), m.colour, m.title, { trace: hover("test") }));
              if (what.value !== "test") traces.push(...band(c.steps, c.train.mean, around(c.train, -1), around(c.train, 1), m.colour, `${m.title}, training`, { trace: hover("train"), line: what.value === "both" ? { dash: "dot" } : {} }));
            }
          }
          return { traces, layout: { title: g.title, hovermode: "x unified", xaxis: { title: { text: "steps", font: { size: 11 } } }, yaxis: { title: { text: what.value === "gap" ? "training less unseen" : "return", font: { size: 11 } } } } };
        }).dataset.game = g.id;
      }
    });
  }

  // -- the generalisation gap
  if (D.gaps.length) {
    const part = section("gap", "Generalisation gap", "Return on training levels minus return on unseen ones, at the end of training. A gap near zero at a low return means that little was learnt, not that it generalises well.");
    const box = el("div", { class: "charts wide" });
    part.append(box);
    live(box, (b) => chart(b, (c) => ({
      traces: D.methods.filter((m) => shown(m.label)).map((m) => {
        const rows = D.gaps.filter((r) => r.label === m.label);
        return { type: "bar", name: m.title, x: rows.map((r) => gameTitle.get(r.game)), y: rows.map((r) => r.gap), marker: { color: m.colour }, customdata: rows.map((r) => seeds(r.seeds)),
          error_y: { type: "data", array: rows.map((r) => r.std || null), thickness: 1.5, width: 3, color: c.ink }, hovertemplate: "%{fullData.name}, %{x}: %{y:.2f} (%{customdata})<extra></extra>" };
      }), layout: { barmode: "group", height: D.methods.length > 6 ? 520 : 360, showlegend: true, legend: { orientation: "h", y: -0.14 }, xaxis: { type: "category" }, yaxis: { title: { text: "training less unseen", font: { size: 11 } } } },
    }), "fitted"));
  }

  // -- values
  if (D.curves.some((c) => c.predicted_train)) {
    const part = section("values", "Value bias", "What the critic predicts for the first state of an episode against what the agent then earns, both in normalised rewards. The paper measures the true value with a discount of 0.999 for every method. True values often fall steeply at the start, from 20 to 2, say: rewards are divided by the standard deviation of returns, which is tiny while hardly any return has been seen.");
    const which = select("value-method", "method", D.methods.map((m) => [m.label, m.title]), methods.has("dcpg") ? "dcpg" : D.methods[0].label, () => refresh());
    const split = segments("value-split", [["train", "training levels"], ["test", "unseen levels"]], "train", () => refresh());
    const discount = segments("value-discount", [["true", "discount 0.999"], ["own", "the method's own"]], "true", () => refresh());
    const bands = segments("value-bands", [["no", "means"], ["yes", "with deviations"]], "no", () => refresh());
    const grid = el("div", { class: D.games.length < 4 ? "charts few" : "charts" });
    part.append(el("div", { class: "controls" }, which.node, split.node, discount.node, bands.node), grid);
    const refresh = () => {
      clear(grid);
      const list = D.curves.filter((r) => r.label === which.value && r[`predicted_${split.value}`]);
      if (!list.length) grid.append(el("p", {}, "There are no evaluations on these levels."));
      for (const c of list) {
        chart(grid, () => {
          const line = (key, colour, name) => (bands.value === "yes" ? band(steps(c, key), c[key].mean, around(c[key], -1), around(c[key], 1), colour, name) : band(steps(c, key), c[key].mean, [], [], colour, name));
          return { traces: [...line(`${discount.value}_${split.value}`, VALUES.true, "true"), ...line(`predicted_${split.value}`, VALUES.predicted, "predicted")],
            layout: { title: gameTitle.get(c.game), hovermode: "x unified", showlegend: true, legend: { orientation: "h", y: -0.2 }, margin: { l: 46, r: 10, t: 30, b: 46 }, yaxis: { title: { text: "value", font: { size: 11 } } } } };
        });
      }
    };
    refresh();
  }

  // -- stiffness
  if (D.stiffness.training.length || D.stiffness.levels.length) {
    const part = section("stiffness", "Value stiffness", "The mean cosine between the value gradients of two states: high when learning one state's value helps the others', near zero when each is memorised. Much of it can come from errors that share a sign, so both parts are shown.");
    const measure = segments("stiffness", [["stiffness", "stiffness"], ["sign_free", "sign-free"], ["sign_agreement", "sign agreement"]], "stiffness", () => refresh());
    const grid = el("div", { class: "charts few" });
    if (D.stiffness.caption) part.append(el("p", { class: "note" }, D.stiffness.caption));
    part.append(el("div", { class: "controls" }, measure.node, chips()), grid);
    const refresh = live(grid, (box) => {
      if (!D.stiffness.levels.length) box.append(el("p", {}, "Stiffness against the number of training levels needs runs with two numbers of levels."));
      for (const game of [...new Set(D.stiffness.levels.map((r) => r.game))]) {
        chart(box, () => ({ traces: D.stiffness.levels.filter((r) => r.game === game && shown(r.label)).flatMap((r) => band(r.x, r[measure.value].mean, around(r[measure.value], -1), around(r[measure.value], 1), r.colour, r.title)),
            layout: { title: `${gameTitle.get(game) || game}: by training levels (${D.stiffness.sentence})`, showlegend: true, legend: { orientation: "h", y: -0.25 }, margin: { l: 50, r: 10, t: 30, b: 50 }, xaxis: { type: "log", tickvals: [1, 2, 10, 50, 200], title: { text: "training levels", font: { size: 11 } } }, yaxis: { title: { text: "stiffness", font: { size: 11 } } } } }), "tall");
      }
      for (const game of [...new Set(D.stiffness.training.map((r) => r.game))]) {
        chart(box, () => ({ traces: D.stiffness.training.filter((r) => r.game === game && shown(r.label)).map((r) => {
          const m = methods.get(r.label);
          return { type: "scatter", mode: "lines", name: `${m.title}, seed ${r.seed}`, x: r.steps, y: r[measure.value], line: { color: m.colour, width: 1.6 } };
        }), layout: { title: `${gameTitle.get(game)}: over training`, hovermode: "x unified", xaxis: { title: { text: "steps", font: { size: 11 } } }, yaxis: { title: { text: "stiffness", font: { size: 11 } } } } }), "tall");
      }
    });
  }

  // -- statistics
  if (D.headline.methods.length) {
    const part = section("statistics", "Statistics", "Min-max normalised returns on unseen levels; bands are 95% intervals by stratified bootstrap over seeds. A method with a single seed on a game has none.");
    const grid = el("div", { class: "charts few" });
    part.append(chips(), grid);
    live(grid, (box) => {
      const lines = (rows) => Object.entries(rows).filter(([m]) => shown(m)).flatMap(([m, r]) => band(r.x, r.y, r.low || [], r.high || [], methods.get(m).colour, `${methods.get(m).title}, ${seeds(D.headline.minmax[m].iqm.seeds)}`));
      const lacks = (text) => box.append(el("p", {}, text));
      if (Object.keys(D.efficiency).length) chart(box, () => ({ traces: lines(D.efficiency), layout: { title: "IQM over training", hovermode: "x unified", xaxis: { title: { text: "steps", font: { size: 11 } } }, yaxis: { title: { text: "IQM", font: { size: 11 } } } } }), "tall");
      else lacks("The IQM over training needs finished runs on Procgen with two evaluations.");
      if (Object.keys(D.profiles).length) chart(box, () => ({ traces: lines(D.profiles), layout: { title: "Share of runs above a score", hovermode: "x unified", xaxis: { title: { text: "min-max normalised return", font: { size: 11 } } }, yaxis: { range: [0, 1.02], title: { text: "share of runs", font: { size: 11 } } } } }), "tall");
      else lacks("The share of runs above a score needs two finished runs on Procgen with different returns.");
      const list = D.headline.methods.filter(shown);
      if (!D.improvement.length) lacks("The probability that one method beats another needs finished runs of two methods on one game.");
      const over = D.improvement_over.filter(shown);
      if (D.improvement_over.length < D.headline.methods.length) lacks(`With so many methods and variants (${D.headline.methods.length}), each is compared with ${D.improvement_over.map((m) => methods.get(m).title).join(", ")} only.`);
      if (D.improvement.length && list.length > 1 && over.length) {
        chart(box, (c) => {
          const pairs = new Map(D.improvement.map((r) => [JSON.stringify([r.label, r.over]), r]));
          const find = (x, y) => pairs.get(JSON.stringify([x, y]));
          const z = list.map((x) => over.map((y) => (find(x, y) || {}).value ?? null));
          const range = (counts) => { const [low, high] = counts.reduce(([a, b], n) => [Math.min(a, n), Math.max(b, n)], [Infinity, -Infinity]); return seeds(low === high ? low : `${low} to ${high}`); };
          const about = (r) => (!r ? "" : `${r.low === null ? "no interval" : `${format(r.low)} to ${format(r.high)}`}, ${range(r.seeds)}`);
          const every = list.flatMap((x) => over.flatMap((y) => (find(x, y) || { seeds: [] }).seeds));
          const names = list.map((m) => methods.get(m).title), columns = over.map((m) => methods.get(m).title);
          return { traces: [{ type: "heatmap", z, x: columns, y: names, zmin: 0, zmax: 1, colorscale: [[0, "#b2485d"], [0.5, c.card], [1, "#2f8f6b"]], showscale: false, xgap: 2, ygap: 2,
            text: z.map((r) => r.map((v) => (v === null ? "" : v.toFixed(2)))), texttemplate: "%{text}",
            customdata: list.map((x) => over.map((y) => about(find(x, y)))), hovertemplate: "P(%{y} better than %{x}) = %{z:.2f} (%{customdata})<extra></extra>" }],
            layout: { title: `Probability that the row beats the column${every.length ? `, ${range(every)}` : ""}`, xaxis: { type: "category" }, yaxis: { type: "category", autorange: "reversed" }, margin: { l: 60, r: 10, t: 30, b: 60 } } };
        }, "tall");
      }
    });
  }

  // -- levels
  if (Object.keys(D.levels).length) {
    const part = section("levels", "Levels", "Training levels by their first frames, coloured by the mean return on it. A cross marks levels on which no method earned anything. Choose one to see it.");
    const games = D.games.filter((g) => D.levels[g.id]);
    const game = select("level-game", "game", games.map((g) => [g.id, g.title]), games[0].id, () => refresh(true));
    const holder = el("span");
    const look = segments("level-look", [["frames", "first frames"], ["colours", "colours"]], "frames", () => refresh());
    const order = segments("level-order", [["number", "by number"], ["return", "hardest first"]], "number", () => refresh());
    const map = el("div", { class: "map", "data-control": "map" });
    const side = el("div");
    const below = el("div");
    const scale = el("span", { class: "scale" }, el("span", { id: "low" }), el("i"), el("span", { id: "high" }));
    let which = null, level = null;
    part.append(el("div", { class: "controls" }, game.node, holder, look.node, order.node, scale), el("div", { class: "two" }, map, side), below);
    const stops = [[59, 28, 110], [39, 103, 142], [31, 158, 136], [122, 209, 81], [253, 231, 37]];
    const shade = (t) => {
      const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
      return `rgb(${stops[i].map((v, k) => Math.round(v + (stops[i + 1][k] - v) * (at - i))).join(",")})`;
    };
    function picture(node, sheet, of, size) {
      const i = sheet.of.indexOf(of), rows = Math.ceil(sheet.of.length / sheet.columns);
      if (i < 0) {
        node.title = "There are too many levels to draw them all.";
        return node;
      }
      const x = i % sheet.columns, y = Math.floor(i / sheet.columns);
      node.style.backgroundImage = `url(${sheet.image})`;
      node.style.backgroundSize = `${sheet.columns * 100}% ${rows * 100}%`;
      node.style.backgroundPosition = `${sheet.columns > 1 ? (100 * x) / (sheet.columns - 1) : 0}% ${rows > 1 ? (100 * y) / (rows - 1) : 0}%`;
      if (size) node.style.width = size;
      return node;
    }
    function refresh(other = false) {
      const found = D.levels[game.value];
      const labels = Object.keys(found.returns);
      if (other || !which) {
        level = null;
        which = select("level-method", "method", labels.map((m) => [m, methods.get(m).title]), found.analysed[0] || labels[labels.length - 1], () => refresh());
        holder.replaceChildren(which.node);
      }
      const returns = found.returns[which.value];
      const known = Object.values(found.returns).flat().filter((v) => v !== null);
      const low = Math.min(...known), high = Math.max(...known);
      part.querySelector("#low").textContent = format(low, 1);
      part.querySelector("#high").textContent = format(high, 1);
      const places = found.levels.map((_, i) => i);
      if (order.value === "return") places.sort((a, b) => (returns[a] ?? Infinity) - (returns[b] ?? Infinity));
      map.replaceChildren(...places.map((i) => {
        const v = returns[i], name = found.levels[i];
        const tile = el("button", { type: "button", class: `tile ${look.value === "colours" ? "plain" : ""} ${found.nobody.includes(name) ? "nobody" : ""}`, "data-level": name, "aria-pressed": String(name === level),
          title: `level ${name}: ${v === null ? "not played" : format(v)}`, "aria-label": `level ${name}, return ${v === null ? "not played" : format(v)}`,
          onclick: () => { level = name; show(found); map.querySelectorAll(".tile").forEach((t) => t.setAttribute("aria-pressed", String(Number(t.dataset.level) === level))); } });
        if (v !== null) tile.style.setProperty("--c", shade(high > low ? (v - low) / (high - low) : 1));
        return look.value === "frames" ? picture(tile, found.sheet, name) : tile;
      }));
      show(found);
      const ends = found.unseen[which.value] || [];
      below.replaceChildren(...(ends.length ? [el("h3", {}, "Unseen levels: the hardest and the easiest"), el("div", { class: "row" }, ...ends.map((e) => el("div", { class: "small" }, picture(el("div", { class: "frame" }), found.sheet, e.level), `${e.level}`, el("br"), format(e.return, 1))))] : []));
    }
    function show(found) {
      const i = level === null ? -1 : found.levels.indexOf(level);
      if (i < 0) {
        const count = found.nobody.length;
        side.replaceChildren(el("p", {}, `${found.more ? `The first ${found.levels.length} of ${thousands(found.levels.length + found.more)} levels that were played` : `${found.levels.length} levels`}. ${count ? `On ${count} of them no method earned anything in these episodes${count <= 20 ? `: ${found.nobody.join(", ")}` : ""}.` : "Each was solved by some method."}`),
          el("p", { class: "note" }, found.analysed.length ? `Every level was played for: ${found.analysed.map((m) => methods.get(m).title).join(", ")}.` : "From the episodes of the newest evaluations; `dcpg analyse levels` plays every level."));
        return;
      }
      side.replaceChildren(picture(el("div", { class: "frame" }), found.sheet, level), el("h3", {}, `Level ${level}`),
        table(["method", "return"], Object.entries(found.returns).map(([m, r]) => [methods.get(m).title, format(r[i])])));
    }
    refresh();
  }

  // -- video
  const seen = section("video", "Video", D.videos.length ? "The agent on levels that it has never seen: its value, its choices and its return beside the game." : "There is none yet; see what is missing.");
  if (D.videos.length) {
    const film = el("video", { controls: "", loop: "", muted: "", playsinline: "", preload: "auto", onloadedmetadata: () => { film.currentTime = Math.min(2, film.duration / 4); } });
    const caption = el("p", { class: "note" });
    const pick = select("video", "game", D.videos.map((v, i) => [String(i), v.game]), "0", () => play());
    const play = () => { const v = D.videos[Number(pick.value)]; film.src = v.source; caption.textContent = v.name; };
    seen.append(el("div", { class: "controls" }, pick.node), film, caption);
    play();
  }

  // -- yardstick
  if (D.yardstick.length) {
    const part = section("yardstick", "Yardstick", "PPO runs of the paper's sizes against PPO's returns as OpenAI published them (easy mode, 200 levels, mean of three runs), at the same number of steps.");
    part.append(table(["game", "seed", "steps", "training", "published", "unseen", "published", "unlike the paper's"], D.yardstick.flatMap((r) => r.points.map((p) => [r.game, r.seed, thousands(p.steps), format(p.own.train), format(p.published.train), format(p.own.test), format(p.published.test), r.unlike || "-"]))));
  }

  // -- the difference from PPO, game by game
  if (D.leads) {
    const part = section("leads", "Leads over PPO", D.leads.note);
    part.append(table(D.leads.head, D.leads.rows, 3), files("leads"));
  }

  // -- the paper's claims
  if (D.claims.length) {
    const part = section("claims", "Claims", D.claims_note);
    if (D.caption) part.append(el("p", { class: "note" }, D.caption));
    const count = (v) => D.claims.filter((c) => c.verdict === v).length;
    part.append(el("div", { class: "pills" }, pill("good", count("holds"), "hold"), pill("warn", count("does not hold"), "do not hold"), pill("", count("cannot be told"), "cannot be told from these runs")));
    const which = segments("claims", [["told", "answered"], ["all", "all"]], count("cannot be told") === D.claims.length ? "all" : "told", () => fill());
    const holder = el("div");
    part.append(el("div", { class: "controls" }, which.node), holder);
    const fill = () => {
      const list = D.claims.filter((c) => which.value === "all" || c.verdict !== "cannot be told");
      holder.replaceChildren(table(["claim", "where", "the paper", "these runs (95% interval)", "seeds", "verdict", "games, or what is needed"], list.map((c) => [c.says, c.where, c.paper, c.here, c.seeds || "-", c.verdict, c.note]), 7, "wrap"));
    };
    fill();
  }

  // -- the values of settings
  if (D.grid) {
    const part = section("grid", "Grid", `Returns by the values of settings. ${D.grid.about}`);
    const pick = select("grid", "shown", D.grid.blocks.map((b, i) => [String(i), b.title]), "0", () => fill());
    const holder = el("div");
    part.append(el("div", { class: "controls" }, pick.node), holder, ...D.grid.notes.map((n) => el("p", { class: "note" }, n)), files(D.grid.name));
    const fill = () => holder.replaceChildren(table(D.grid.head, D.grid.blocks[Number(pick.value)].rows, D.grid.head.length - 2));
    fill();
  }

  // -- tables and figures
  const papers = section("tables", "Tables", "The paper's tables from these runs: mean ± standard deviation over seeds (number of seeds), the paper's figure below. Each is also a file, as CSV, Markdown and LaTeX.");
  if (!D.tables.length) papers.append(el("p", {}, D.runs.finished ? "No table of the paper compares these methods." : "No run has finished yet."));
  D.tables.forEach((t, i) => papers.append(el("details", i ? {} : { open: "" }, el("summary", {}, t.title),
    table([t.corner, ...t.columns], t.rows.map((r, k) => [r, ...t.cells[k]])), ...t.notes.map((n) => el("p", { class: "note" }, n)),
    files(t.name))));
  if (D.figures.length) {
    papers.append(el("p", { class: "note" }, "Figures of the paper, as PDF: ", ...D.figures.flatMap((f) => [el("a", { href: `figures/${f}.pdf` }, f), "  "])));
    for (const [name, other] of Object.entries(D.same)) papers.append(el("p", { class: "note" }, `${name} is left out: with these runs it is the same picture as ${other}.`));
  }

  // -- algorithm, configuration, runs
  const algorithm = section("algorithm", "Algorithm", "The paper's Algorithm 1 as each method completes it, with the numbers of these runs.");
  if (D.methods.length) {
    const text = el("pre");
    const pick = select("algorithm", "method", D.methods.map((m) => [m.label, m.title]), methods.has("dcpg") ? "dcpg" : D.methods[0].label, () => fill());
    const fill = () => { text.textContent = D.algorithms[pick.value]; };
    algorithm.append(el("div", { class: "controls" }, pick.node), text);
    fill();
  }
  const configuration = section("configuration", "Configuration");
  configuration.append(el("p", {}, Object.entries(D.versions).map(([n, v]) => `${n} ${v.join(", ")}`).join(" · ")),
    el("details", {}, el("summary", {}, "Every setting"), table(["setting", "value"], D.configuration.map((r) => [r.name, r.value ?? Object.entries(r.values).map(([m, v]) => `${methods.get(m).title}: ${v}`).join("; ")]), 2)),
    el("details", {}, el("summary", {}, `Every run (${D.list.length})`), table(["method", "game", "seed", "steps", "training", "unseen", "where"], D.list.map((r) => [r.method, r.game, r.seed, r.finished ? thousands(r.steps) : `${thousands(r.steps)} of ${thousands(r.of)}`, format(r.train), format(r.test), r.path]))));

  // -- what is missing, and what was wrong
  const missing = section("missing", "Missing", D.missing.length ? "What these runs do not show, and the commands that would make it." : "Nothing is missing.");
  for (const entry of D.missing) {
    const some = entry.commands.slice(0, 12);
    missing.append(el("details", {}, el("summary", {}, `${entry.what} (${entry.commands.length + entry.more})`),
      ...some.map((c) => el("div", { class: "command" }, el("pre", {}, c), el("button", { type: "button", onclick: async (e) => {
        try { await navigator.clipboard.writeText(c); e.target.textContent = "copied"; } catch { const r = document.createRange(); r.selectNodeContents(e.target.previousSibling); getSelection().removeAllRanges(); getSelection().addRange(r); e.target.textContent = "selected"; }
      } }, "copy"))),
      entry.commands.length > some.length ? el("p", { class: "note" }, `and ${entry.commands.length + entry.more - some.length} more; report.json has ${entry.more ? `the first ${entry.commands.length}` : "them all"}.`) : null));
  }
  if (D.problems.length) {
    const odd = section("problems", "Problems", "Runs and files that were left out or passed over, and why.");
    odd.append(table(["where", "what"], D.problems.map((p) => [p.where, p.what]), 2));
  }
  main.append(el("footer", {}, `dcpg, made ${MADE.made}. This page needs no network.`));

  // -- where the reader is
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.getAttribute("href").slice(1), a]));
  const where = new IntersectionObserver((entries) => {
    for (const e of entries) if (e.isIntersecting) links.forEach((a, id) => a.classList.toggle("here", id === e.target.id));
  }, { rootMargin: "-20% 0px -70% 0px" });
  document.querySelectorAll("section").forEach((s) => where.observe(s));

  // -- light, dark, or as the system has it
  const themes = ["auto", "light", "dark"];
  let theme = recall("theme", themes, "auto");
  const button = document.getElementById("theme");
  function wear() {
    if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    button.setAttribute("aria-label", `Colours: ${theme}`);
    redraw();
  }
  button.addEventListener("click", () => { theme = themes[(themes.indexOf(theme) + 1) % 3]; remember("theme", theme); wear(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  wear();

  // -- served by `dcpg report --watch`: check for a newer page
  if (location.protocol === "http:") {
    const look = async () => {
      try {
        const answer = await fetch("version", { cache: "no-store" });
        if (!answer.ok) { clearInterval(looking); return; } // some other server: the page stays as it is
        const now = (await answer.text()).trim();
        if (/^[0-9a-f]{16}$/.test(now) && now !== MADE.version) { remember("scroll", scrollY); location.reload(); }
      } catch { /* the server has stopped; the page stays as it is */ }
    };
    if (typeof chosen.scroll === "number") { scrollTo({ top: chosen.scroll, behavior: "instant" }); remember("scroll", null); }
    const looking = setInterval(look, 3000);
  }
  window.dcpgReport = { data: D, drawAll: async () => { await library; drawings.forEach((_, node) => draw(node)); } };
})();
