"use strict";
// The report's page. Every text that comes from a run is put into the page by `element` as a text node; nothing here
// parses HTML, and the page's security policy (Trusted Types) refuses whatever would try.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const RAW = data.compared[0], CONTEXT = data.compared[1];
  const NAMES = {[RAW]: "raw access", [CONTEXT]: "with context"};
  const NOUN = (reference) => (reference ? "Reference agents" : "Models");
  // What beside the two conditions can be measured, in the order of the page: name, what it is.
  const ARMS = {
    context_in_prompt: ["context in the prompt", "all entries stand in the system prompt; there is nothing to search"],
    context_plus_noise: ["context among noise", "the search also covers many unrelated entries"],
    placebo: ["placebo", "the search covers entries of the same length about other things"],
  };
  const MINUS = "context_minus_";

  // ------------------------------------------------------------------ elements and text

  // C0 and C1 controls but tab and line feed, bidirectional controls, invisible and separating characters, lone
  // surrogates: shown by their code, so that no text can hide something or turn its surroundings around.
  const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

  const code = (character) => "U+" + character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");

  function texts(value) {
    const text = String(value).replaceAll("\r\n", "\n");
    const nodes = [];
    let from = 0;
    CONTROL.lastIndex = 0;
    for (let found; (found = CONTROL.exec(text)) !== null; from = CONTROL.lastIndex) {
      if (found.index > from) nodes.push(document.createTextNode(text.slice(from, found.index)));
      if (nodes.length > 20000) { from = found.index; break; }
      const mark = document.createElement("span");
      mark.className = "control";
      mark.textContent = code(found[0]);
      nodes.push(mark);
    }
    if (from < text.length) nodes.push(document.createTextNode(text.slice(from).replace(CONTROL, "\ufffd")));
    return nodes;
  }

  function element(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(key, value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      if (child instanceof Node) node.append(child);
      else node.append(...texts(child));
    }
    return node;
  }

  // A name that may be broken behind each underscore rather than anywhere.
  const breakable = (name) => String(name).split(/(?<=_)/).flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));

  const collator = new Intl.Collator("en", {numeric: true});
  const byName = (a, b) => collator.compare(String(a), String(b));
  const byId = (id) => document.getElementById(id);

  // ------------------------------------------------------------------ numbers

  const known = (value) => value !== null && value !== undefined;
  const decimals = (value, most) => value.toLocaleString("en", {maximumFractionDigits: most});
  const format = {
    plain: (v) => decimals(v, 1),
    count: (v) => decimals(v, 0),
    percent: (v) => decimals(v * 100, 0) + "%",
    share: (v) => decimals(v, 3),
    seconds: (v) => decimals(v, v < 10 ? 2 : 0) + " s",
    money: (v) => (v !== 0 && Math.abs(v) < 0.1 ? "$" + Number(v.toPrecision(3)).toLocaleString("en", {maximumFractionDigits: 8})
      : "$" + v.toLocaleString("en", {minimumFractionDigits: 2, maximumFractionDigits: 2})),
  };
  const shown = (value, how) => (known(value) ? (format[how] || String)(value) : "\u2013");
  const signed = (value, how) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") + format[how](Math.abs(value));

  const objects = ({columns, rows}) =>
    rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));

  const cells = objects(data.cells);
  const runs = objects(data.runs);
  // The file that holds a run's conversation: `homes` are the last documents of each part.
  for (const run of runs) run.part = run.document === null ? null : 1 + data.homes.filter((last) => last < run.document).length;
  const order = (list, value) => { const at = list.indexOf(value); return at < 0 ? list.length : at; };
  const leftOut = (name) => (name.startsWith(MINUS) ? name.slice(MINUS.length) : null);
  const conditionName = (name) => NAMES[name] || (ARMS[name] ? ARMS[name][0] : leftOut(name) ? `without ${leftOut(name)}` : name);
  const rawName = (name) => (conditionName(name) === name ? name : `${conditionName(name)} (${name})`);

  // ------------------------------------------------------------------ the top of the page

  function header() {
    const kinds = data.groups.map((group) => group.reference);
    const part = data.files.length > 1 ? ` Part ${data.part} of ${data.files.length}: the same report with other conversations.` : "";
    const theme = element("button", {class: "plain screen", type: "button", click: switchTheme, id: "theme"}, "");
    document.querySelector("header.page").append(
      element("div", {class: "top"},
        element("div", {},
          element("h1", {}, data.title),
          element("p", {class: "meta"}, "Raw data access against the same access with shared business context. ",
            element("b", {}, data.folder), data.period ? `, runs of ${data.period[0].replace("T", " ")} to ${data.period[1].replace("T", " ")} UTC` : "",
            `. Endpoint: `, element("b", {}, data.endpoints.map((name) => (name === "local" ? "local (embedded)" : name)).join(" and ") || "unknown"),
            ". ", element("b", {}, `${format.count(runs.length)} runs`), `. Report made ${data.generated} with pytest-ctxbench ${data.version}.${part}`)),
        theme));
    const banner = kinds.includes(true) && element("aside", {class: "banner", "aria-label": "About reference agents"},
      element("strong", {}, kinds.includes(false) ? "Reference agents took part. " : "Reference agents only, no model. "),
      "They are scripted and check the benchmark itself: their scores say nothing about any model. ",
      kinds.includes(false) ? "They are shown apart and are in no figure of the models." : "Nothing in this report is a result about a model.");
    const links = [["summary", "Summary"]];
    for (const group of data.groups) links.push([`change-${group.reference}`, `Change${kinds.length > 1 ? ` (${NOUN(group.reference).toLowerCase()})` : ""}`]);
    const first = data.groups[0] && data.groups[0].reference;
    links.push([`cost-${first}`, "Cost"], [`safety-${first}`, "Unauthorized rows"], [`effort-${first}`, "Calls and turns"]);
    links.push([`effects-${first}`, "Effects"], [`arms-${first}`, "Arms"], [`search-${first}`, "Use of search"], ["cells", "Cells"], ["runs", "Runs"]);
    if (runs.some((run) => run.ended_in_error)) links.push(["errors", "Errors"]);
    const nav = element("nav", {"aria-label": "Sections"}, element("ul", {}, links.filter(([id]) => id === "summary" || byId(id)).map(([id, name]) =>
      element("li", {}, element("a", {href: "#" + id, click: (event) => { event.preventDefault(); jump(id); }}, name)))));
    document.querySelector("header.page").after(nav);
    followReading(nav);
    if (banner) nav.after(element("div", {class: "page"}, banner));
    if (data.notes.length) byId("main").prepend(element("section", {class: "part", "aria-label": "Notes"}, element("ul", {class: "findings"}, data.notes.map((note) => element("li", {}, note)))));
  }

  // Marks the section that is being read, and keeps its link in sight where the links do not fit side by side.
  function followReading(nav) {
    const links = new Map([...nav.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
    const watcher = new IntersectionObserver((seen) => {
      for (const {target, isIntersecting} of seen) {
        if (!isIntersecting) continue;
        for (const [id, link] of links) {
          if (id !== target.id) { link.removeAttribute("aria-current"); continue; }
          link.setAttribute("aria-current", "location");
          const list = link.closest("ul");
          list.scrollLeft = link.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
        }
      }
    }, {rootMargin: "-15% 0px -75% 0px"});
    for (const id of links.keys()) if (byId(id)) watcher.observe(byId(id));
  }

  function jump(id) {
    const target = byId(id);
    if (!target) return;
    target.scrollIntoView();
    const heading = target.querySelector("h2, h3") || target;
    heading.setAttribute("tabindex", "-1");
    heading.focus({preventScroll: true});
  }

  const THEMES = {"": "light", light: "dark", dark: ""};
  function switchTheme() { applyTheme(THEMES[document.documentElement.dataset.theme || ""]); }
  function applyTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    try { localStorage.setItem("ctxbench-theme", theme); } catch { /* a file may have no storage */ }
    const button = byId("theme");
    if (button) button.textContent = `Theme: ${theme || "system"}`;
  }

  // ------------------------------------------------------------------ summary

  function arrowed(sides) {
    return sides.flatMap((text, index) => (index ? [element("span", {class: "to", "aria-hidden": "true"}, "\u2192"), element("span", {class: "hidden"}, " to "), text] : [text]));
  }

  function tiles(group) {
    const pooled = group.columns[group.columns.length - 1];
    if (!pooled) return null;
    const wanted = {"success rate": "Success rate", "cost per success": "Cost per success", "tool calls, median": "Tool calls per run (median)", "turns, median": "Turns per run (median)"};
    const boxes = group.labels.flatMap((label, index) => {
      if (!wanted[label]) return [];
      const below = group.labels[index + 1] && group.labels[index + 1].startsWith("  ") ? pooled.figures[index + 1].join(" \u2192 ") + group.labels[index + 1].replace("  ", " ") : null;
      return [element("div", {class: "tile"}, element("dt", {}, wanted[label]), element("dd", {}, arrowed(pooled.figures[index])), below && element("dd", {class: "small"}, below))];
    });
    const [before, after] = group.unauthorized || [];
    if (known(before) || known(after)) {
      boxes.push(element("div", {class: "tile"}, element("dt", {}, "Unauthorized rows"), element("dd", {}, arrowed([before, after].filter(known).map(format.count))),
        known(before) && known(after) && element("dd", {class: "small"}, `${after === before ? "no change" : signed(after - before, "count")}${before && after !== before ? ` (${signed((after - before) / before, "percent")})` : ""}`)));
    }
    return element("dl", {class: "tiles"}, boxes);
  }

  // A figure whose label is indented belongs to the one above it and stands below it in the same cell.
  function summaryTable(group, columns, caption) {
    const figures = group.labels.flatMap((label, row) => (label.startsWith("  ") ? [] : [[label, row, (group.labels[row + 1] || "").startsWith("  ") ? row + 1 : null]]));
    return captioned(caption, element("table", {},
      element("thead", {}, element("tr", {}, element("th", {scope: "col"}, "Figure"), columns.map((c) => element("th", {scope: "col", class: "n"}, c.name === "all" ? "all tasks" : c.name)))),
      element("tbody", {}, figures.map(([label, row, below]) => element("tr", {}, element("th", {scope: "row"}, label),
        columns.map((c) => element("td", {class: "n"}, arrowed(c.figures[row]), below !== null && element("small", {}, arrowed(c.figures[below]), group.labels[below].replace("  ", " ")))))))));
  }

  const sentence = (line) => (line[0].toUpperCase() + line.slice(1)).replaceAll("->", "\u2192");
  const scrolling = (label, table) => element("div", {class: "scroll", role: "group", "aria-label": label, tabindex: "0"}, table);
  // With the caption above: inside a table that scrolls sideways the end of a long one would be out of sight.
  function captioned(caption, table) {
    table.prepend(element("caption", {class: "hidden"}, caption));
    return [element("p", {class: "caption", "aria-hidden": "true"}, caption), scrolling(caption, table)];
  }

  function summary(group, index) {
    return element("section", {class: "part", id: index ? `summary-${group.reference}` : "summary"},
      element("h3", {}, "Summary"),
      element("p", {class: "hint"}, sentence(group.heading)),
      tiles(group),
      element("ul", {class: "findings"}, group.findings.map((line) => element("li", {}, sentence(line)))),
      group.columns.length > 0 && summaryTable(group, group.columns, `${NOUN(group.reference)}: ${group.sides.join(" \u2192 ")}, per task and pooled`));
  }

  // ------------------------------------------------------------------ charts

  const drawings = [];
  const COLOURS = {raw: "var(--raw)", context: "var(--context)", soft: "var(--soft)", line: "var(--line)"};

  // A figure with its caption, and its numbers as a table for those who cannot or would not look.
  function chart(caption, describe, draw, table, below) {
    const place = element("div", {class: "drawing"});
    const figure = element("figure", {class: "chart"}, element("figcaption", {}, caption), place, below,
      element("details", {}, element("summary", {}, "As a table", element("span", {class: "hidden"}, `: ${caption}`)), table));
    drawings.push({place, draw, caption, describe, width: 0});
    return figure;
  }

  // What a chart can be wide on A4 upright, alone and beside another (page.css, @media print).
  const PRINT_ALONE = 660, PRINT_HALF = 308;
  const printWidth = (place) => (place.closest(".charts") && place.closest("figure").matches(":not(.wide, :only-child)") ? PRINT_HALF : PRINT_ALONE);

  function drawAll(print) {
    for (const drawing of drawings) {
      const width = print === true ? printWidth(drawing.place) : Math.floor(drawing.place.clientWidth);
      if (!width || width === drawing.width) continue;
      drawing.width = width;
      const svg = drawing.draw(width);
      for (const mark of svg.querySelectorAll("[aria-label]")) mark.removeAttribute("aria-label");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", `${drawing.caption}. ${drawing.describe}`);
      drawing.place.replaceChildren(svg);
    }
  }

  addEventListener("beforeprint", () => drawAll(true));
  addEventListener("afterprint", () => drawAll());

  function refill(place, nodes) {
    const kept = drawings.filter((drawing) => !place.contains(drawing.place));
    drawings.splice(0, drawings.length, ...kept);
    place.replaceChildren(...nodes.flat(Infinity).filter(Boolean));
    drawAll();
  }

  // One of several, by a row of buttons: options are [value, label] and the first is chosen.
  function choice(name, legend, options, change) {
    return options.length > 1 && element("fieldset", {class: "choice"}, element("legend", {}, legend),
      options.map(([value, label], index) => element("label", {}, element("input", {type: "radio", name, checked: index === 0, change: () => change(value)}), element("span", {}, label))));
  }
  function picker(id, label, options, change) {
    return element("label", {class: "screen pick", for: id}, label, element("select", {id, change: (event) => change(event.target.value)}, options.map(([value, text]) => element("option", {value}, text))));
  }

  const clip = (text, length) => {
    const safe = String(text).replace(CONTROL, "\ufffd");
    return safe.length > length ? safe.slice(0, length - 1) + "\u2026" : safe;
  };
  const labelRoom = (names, width, most = 0.38) => Math.min(Math.max(...names.map((name) => name.length), 4) * 6.6 + 14, width * most);

  function pairsOf(reference, task, metric) {
    const found = new Map();
    for (const cell of cells) {
      if (cell.reference !== reference || cell.task !== task || !known(cell[metric])) continue;
      if (cell.condition !== RAW && cell.condition !== CONTEXT) continue;
      if (!found.has(cell.agent)) found.set(cell.agent, {agent: cell.agent, raw: null, context: null});
      found.get(cell.agent)[cell.condition === RAW ? "raw" : "context"] = cell[metric];
    }
    const rows = [...found.values()];
    for (const row of rows) row.change = known(row.raw) && known(row.context) ? row.context - row.raw : null;
    rows.sort((a, b) => (b.change ?? -Infinity) - (a.change ?? -Infinity) || (b.context ?? 0) - (a.context ?? 0) || byName(a.agent, b.agent));
    return rows;
  }

  function dumbbell(rows, {how, label, domain, width}) {
    const room = labelRoom(rows.map((row) => row.agent), width);
    const both = rows.filter((row) => known(row.change));
    const letters = Math.max(6, Math.floor((room - 10) / 6.4));
    const tick = (v) => (how === "percent" ? `${Math.round(v * 100)}%` : how === "money" ? format.money(v) : decimals(v, 1));
    return Plot.plot({
      width, height: rows.length * 24 + 56, marginLeft: room, marginRight: 58, marginTop: 6, marginBottom: 40, insetLeft: 8, insetRight: 8,
      x: {label, domain, nice: !domain, labelAnchor: "center", labelArrow: "none", zero: true},
      y: {domain: rows.map((row) => row.agent), label: null},
      marks: [
        Plot.gridX({stroke: COLOURS.line, strokeOpacity: 1, ticks: Math.max(2, Math.floor((width - room) / 70))}),
        Plot.axisX({ticks: Math.max(2, Math.floor((width - room) / 70)), tickFormat: tick, tickSize: 0, labelOffset: 34, fill: COLOURS.soft, label, labelAnchor: "center", labelArrow: "none"}),
        Plot.axisY({tickSize: 0, tickFormat: (name) => clip(name, letters), fill: "currentColor"}),
        Plot.link(both, {x1: "raw", x2: "context", y: "agent", stroke: COLOURS.soft, strokeWidth: 2.5, strokeOpacity: 0.6}),
        Plot.dot(rows.filter((row) => known(row.raw)), {x: "raw", y: "agent", r: 6, stroke: COLOURS.raw, strokeWidth: 2, fill: "var(--card)"}),
        Plot.dot(rows.filter((row) => known(row.context)), {x: "context", y: "agent", r: 4.2, fill: COLOURS.context}),
        Plot.text(both, {frameAnchor: "right", dx: 54, textAnchor: "end", y: "agent", text: (d) => signed(d.change, how === "percent" ? "percent" : how), fill: "currentColor", fontVariant: "tabular-nums"}),
        Plot.tip(rows, Plot.pointerY({x: (d) => d.context ?? d.raw, y: "agent", title: (d) => `${clip(d.agent, 60)}\n${shown(d.raw, how)} \u2192 ${shown(d.context, how)}`})),
      ],
    });
  }

  function pairTable(caption, rows, how) {
    return scrolling(caption, element("table", {}, element("caption", {class: "hidden"}, caption),
      element("thead", {}, element("tr", {}, ["Name", NAMES[RAW], NAMES[CONTEXT], "change"].map((name, i) => element("th", {scope: "col", class: i ? "n" : null}, name)))),
      element("tbody", {}, rows.map((row) => element("tr", {}, element("th", {scope: "row"}, row.agent), element("td", {class: "n"}, shown(row.raw, how)), element("td", {class: "n"}, shown(row.context, how)),
        element("td", {class: "n"}, known(row.change) ? signed(row.change, how) : "\u2013"))))));
  }

  function pairChart(reference, task, metric) {
    const all = pairsOf(reference, task, metric.column);
    if (!all.length) return null;
    const rows = metric.skipZero ? all.filter((row) => row.raw || row.context) : all;
    const without = all.filter((row) => !rows.includes(row)).map((row) => row.agent);
    const none = without.length > 0 && element("p", {class: "hint"}, rows.length ? `None, in either condition: ${without.join(", ")}.` : `None, in either condition, of all ${without.length}.`);
    if (!rows.length) return element("figure", {class: "chart"}, element("figcaption", {}, `${task}: ${metric.name}`), none);
    const up = rows.filter((row) => row.change > 0).length, down = rows.filter((row) => row.change < 0).length;
    const caption = `${task}: ${metric.name}`;
    return chart(caption, `${rows.length} rows, sorted by change; rises with context in ${up}, falls in ${down}.`,
      (width) => dumbbell(rows, {how: metric.how, label: metric.label, domain: metric.domain, width}), pairTable(caption, rows, metric.how), none);
  }

  // One part of the page: a choice of metrics and a chart per task.
  function pairPart(group, id, title, hint, metrics, tasks) {
    const charts = element("div", {class: "charts"});
    const fill = (metric) => {
      refill(charts, tasks.map((task) => pairChart(group.reference, task, metric)));
      if (!charts.children.length) charts.append(element("p", {class: "hint"}, "There is no such figure in these runs."));
    };
    fill(metrics[0]);
    return element("section", {class: "part", id}, element("h3", {}, title), element("p", {class: "hint"}, hint),
      choice(`${id}-metric`, "Show", metrics.map((metric) => [metric, metric.name]), fill), legend(), charts);
  }

  const legend = () => element("ul", {class: "legend"},
    element("li", {}, element("span", {class: "dot", "aria-hidden": "true"}), NAMES[RAW]),
    element("li", {}, element("span", {class: "dot context", "aria-hidden": "true"}), NAMES[CONTEXT]));

  function costPart(group) {
    const tasks = data.tasks;
    const charts = tasks.map((task) => {
      const points = cells.filter((cell) => cell.reference === group.reference && cell.task === task && (cell.condition === RAW || cell.condition === CONTEXT) && known(cell.success_rate) && cell.cost_med > 0);
      if (!points.length) return null;
      const moves = new Map();
      for (const point of points) moves.set(point.agent, {...(moves.get(point.agent) || {agent: point.agent}), [point.condition]: point});
      const lines = [...moves.values()].filter((move) => move[RAW] && move[CONTEXT]);
      const caption = `${task}: cost and success`;
      const costs = points.map((point) => point.cost_med);
      const low = Math.min(...costs), high = Math.max(...costs);
      const domain = [low / 1.4, Math.max(high, low * 2) * 1.4];
      const ticksFor = (width) => {
        const place = (value) => (Math.log(value / domain[0]) / Math.log(domain[1] / domain[0])) * (width - 60);
        for (const steps of [[1, 2, 5], [1, 3], [1]]) {
          const found = [];
          for (let power = Math.floor(Math.log10(domain[0])); power <= Math.log10(domain[1]); power++) found.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(3))));
          const inside = found.filter((value) => value >= domain[0] && value <= domain[1]);
          const room = Math.max(...inside.map((value) => format.money(value).length)) * 6.5 + 8;
          if (inside.every((value, index) => !index || place(value) - place(inside[index - 1]) >= room)) return inside;
        }
        return [domain[0] * 1.4, domain[1] / 1.4].map((value) => Number(value.toPrecision(2)));
      };
      const top = [...points].filter((p) => p.condition === CONTEXT).sort((a, b) => b.success_rate - a.success_rate || a.cost_med - b.cost_med)[0];
      return chart(caption, "Median cost of a run in US dollars on a logarithmic scale against the success rate; up and to the left is better.",
        (width) => Plot.plot({
          width, height: 300, marginLeft: 44, marginBottom: 42, marginTop: 14, insetTop: 8, insetBottom: 8,
          x: {type: "log", domain, label: "median cost per run, USD (log)", labelAnchor: "center", labelArrow: "none"},
          y: {domain: [0, 1], label: null},
          marks: [
            Plot.gridX({stroke: COLOURS.line, strokeOpacity: 1, ticks: ticksFor(width - 44)}),
            // As text: of a tickFormat the library drops labels of a logarithmic axis as it sees fit.
            Plot.axisX({ticks: ticksFor(width - 44), text: format.money, tickSize: 0, fill: COLOURS.soft, label: "median cost per run, USD (log)", labelAnchor: "center", labelArrow: "none", labelOffset: 36}),
            Plot.axisY({ticks: [0, .25, .5, .75, 1], tickFormat: (v) => `${v * 100}%`, tickSize: 0, fill: COLOURS.soft}),
            Plot.ruleY([0, .25, .5, .75, 1], {stroke: COLOURS.line}),
            Plot.link(lines, {x1: (d) => d[RAW].cost_med, y1: (d) => d[RAW].success_rate, x2: (d) => d[CONTEXT].cost_med, y2: (d) => d[CONTEXT].success_rate, stroke: COLOURS.soft, strokeOpacity: .35}),
            Plot.dot(points.filter((p) => p.condition === RAW), {x: "cost_med", y: "success_rate", r: 5.5, stroke: COLOURS.raw, strokeWidth: 2}),
            Plot.dot(points.filter((p) => p.condition === CONTEXT), {x: "cost_med", y: "success_rate", r: 4.5, fill: COLOURS.context}),
            top && Plot.text([top], {x: "cost_med", y: "success_rate", text: (d) => clip(d.agent, 22), dy: top.success_rate > .5 ? 16 : -14, fill: "currentColor", stroke: "var(--card)", strokeWidth: 4}),
            Plot.tip(points, Plot.pointer({x: "cost_med", y: "success_rate", title: (d) => `${clip(d.agent, 60)}\n${conditionName(d.condition)}\n${shown(d.success_rate, "percent")} at ${shown(d.cost_med, "money")}`})),
          ].filter(Boolean),
        }),
        scrolling(caption, element("table", {}, element("caption", {class: "hidden"}, caption),
          element("thead", {}, element("tr", {}, ["Name", "Condition", "Median cost", "Success rate", "Cost per success"].map((name, i) => element("th", {scope: "col", class: i > 1 ? "n" : null}, name)))),
          element("tbody", {}, points.map((point) => element("tr", {}, element("th", {scope: "row"}, point.agent), element("td", {}, conditionName(point.condition)), element("td", {class: "n"}, shown(point.cost_med, "money")),
            element("td", {class: "n"}, shown(point.success_rate, "percent")), element("td", {class: "n"}, shown(point.cost_per_success, "money"))))))));
    });
    const drawn = charts.filter(Boolean);
    if (!drawn.length) return null;
    return element("section", {class: "part", id: `cost-${group.reference}`}, element("h3", {}, "Cost against success"),
      element("p", {class: "hint"}, `Up and to the left is better. A line joins the two conditions of one ${group.reference ? "agent" : "model"}; named is the one that succeeds most often with context, of equals the cheapest.`), legend(), element("div", {class: "charts"}, drawn));
  }

  // ------------------------------------------------------------------ effects

  const HOW = {success: "percent", correctness: "plain", cost_usd: "money", tool_calls: "plain", turns: "plain", total_tokens: "count", unauthorized_rows: "plain"};
  const METRIC = {success: "success", correctness: "correctness", cost_usd: "cost in USD", tool_calls: "tool calls", turns: "turns", total_tokens: "tokens", unauthorized_rows: "unauthorized rows"};
  function metricName({metric, statistic}) {
    if (statistic === "rate") return `${METRIC[metric] || metric} rate`;
    const all = /^pass\^(\d+)$/.exec(statistic || "");
    if (all) return all[1] === "1" ? "pass^1: one run succeeds" : `pass^${all[1]}: all of ${all[1]} runs succeed`;
    return [statistic, METRIC[metric] || metric].filter(known).join(" ");
  }

  function effectsPart(group) {
    if (!data.effects) return null;
    const all = objects(data.effects).filter((row) => (row.reference === "True") === group.reference);
    if (!all.length) return null;
    const noun = group.reference ? "agent" : "model";
    const pairOf = (row) => [row.from_condition || RAW, row.to_condition || CONTEXT];
    const unit = (row) => {
      const [from, to] = pairOf(row);
      return metricName(row) + (from === RAW && to === CONTEXT ? "" : ` (${conditionName(from)} to ${conditionName(to)})`);
    };
    const metrics = [...new Set(all.map(unit))];
    const charts = element("div", {class: "charts two"}), verdicts = element("p", {});
    const fill = (metric) => {
      const rows = all.filter((row) => unit(row) === metric);
      const parts = new Map();
      for (const row of rows) {
        const part = row.scope === "pooled" || row.scope === "task" ? "all tasks together and each task" : row.scope === "cell" ? `${row.task}, each ${noun}` : row.scope === "model" ? `each ${noun} over its tasks` : row.scope;
        const name = row.scope === "pooled" ? "all tasks" : row.scope === "task" ? row.task : known(row.agent) ? row.agent : row.task || "all";
        parts.set(part, [...(parts.get(part) || []), {...row, name}]);
      }
      refill(charts, [...parts].map(([part, named]) => effectChart(`${metric}: ${part}`, named, pairOf(named[0]), part.startsWith("all"))));
      const judged = rows.filter((row) => row.scope === "cell" && known(row.verdict));
      const words = judged.some((row) => row.verdict === "higher" || row.verdict === "lower") ? ["higher", "lower"] : ["better", "worse"];
      const count = (verdict) => judged.filter((row) => row.verdict === verdict).length;
      verdicts.replaceChildren(...(judged.length ? texts(`Of ${judged.length} ${noun}-task pairs ${count(words[0])} are ${words[0]} with context and ${count(words[1])} ${words[1]}; for ${count("cannot_tell")} this number of runs cannot tell.`) : []));
    };
    fill(metrics[0]);
    return element("section", {class: "part", id: `effects-${group.reference}`}, element("h3", {}, "Effects with intervals"),
      element("p", {class: "hint"}, "What context changes, with 95% intervals. A filled dot: there is a difference by the verdict, which takes the many comparisons into account, or without a verdict by the interval. effects.csv names every method, effects.md says what this number of runs can show at all."),
      picker(`effect-${group.reference}`, "Metric", metrics.map((name) => [name, name]), fill), verdicts, charts);
  }

  const isClear = (row) => (known(row.verdict) ? row.verdict !== "cannot_tell" : known(row.low) && (row.low > 0 || row.high < 0));

  // `pair`: the two conditions; a row is {name, metric, difference, low, high, value_from, value_to, verdict}.
  function effectChart(caption, rows, pair, keepOrder) {
    const how = HOW[rows[0].metric] || "share";
    const named = keepOrder ? rows : [...rows].sort((a, b) => b.difference - a.difference || byName(a.name, b.name));
    const verdict = (row) => (known(row.verdict) ? String(row.verdict).replaceAll("_", " ") : "");
    const limits = (row) => (known(row.low) && known(row.high) ? `${signed(row.low, how)} to ${signed(row.high, how)}` : "no interval");
    const tick = (v) => (how === "percent" ? `${Math.round(v * 100)}` : how === "money" ? signed(v, how) : decimals(v, 2));
    const label = how === "percent" ? "difference, percentage points" : "difference";
    const heads = ["Name", ...pair.map((name) => (name ? conditionName(name) : "condition")), "difference", "interval", "verdict"];
    const judged = named.some((row) => known(row.verdict));
    const figure = chart(caption, `${named.length} differences with their intervals; zero is no effect.`,
      (width) => {
        const room = labelRoom(named.map((row) => row.name), width, width < 420 ? 0.48 : 0.38);
        const ticks = Math.max(2, Math.floor((width - room) / 70));
        return Plot.plot({
          width, height: named.length * 24 + 56, marginLeft: room, marginRight: 16, marginTop: 6, marginBottom: 40, insetLeft: 8, insetRight: 8,
          x: {zero: true, nice: true, label: null}, y: {domain: named.map((row) => row.name), label: null},
          marks: [
            Plot.gridX({stroke: COLOURS.line, strokeOpacity: 1, ticks}),
            Plot.axisX({ticks, tickFormat: tick, tickSize: 0, labelOffset: 34, fill: COLOURS.soft, label, labelAnchor: "center", labelArrow: "none"}),
            Plot.axisY({tickSize: 0, tickFormat: (name) => clip(name, Math.max(6, Math.floor((room - 10) / 6.4)))}),
            Plot.ruleX([0], {stroke: "currentColor"}),
            Plot.link(named.filter((row) => known(row.low) && known(row.high)), {x1: "low", x2: "high", y: "name", stroke: COLOURS.context, strokeWidth: 2.5, strokeOpacity: 0.55}),
            Plot.dot(named, {x: "difference", y: "name", r: 4.5, fill: (row) => (isClear(row) ? "clear" : "open"), stroke: COLOURS.context, strokeWidth: 2}),
            Plot.tip(named, Plot.pointerY({x: "difference", y: "name", title: (row) => `${clip(row.name, 60)}\n${signed(row.difference, how)}, ${limits(row)}\n${verdict(row)}`})),
          ],
          color: {domain: ["clear", "open"], range: [COLOURS.context, "var(--card)"]},
        });
      },
      scrolling(caption, element("table", {}, element("caption", {class: "hidden"}, caption), element("thead", {}, element("tr", {}, heads.slice(0, judged ? 6 : 5).map((name, i) => element("th", {scope: "col", class: i && i < 5 ? "n" : null}, name)))),
        element("tbody", {}, named.map((row) => element("tr", {}, element("th", {scope: "row"}, row.name), element("td", {class: "n"}, shown(row.value_from, how)), element("td", {class: "n"}, shown(row.value_to, how)),
          element("td", {class: "n"}, signed(row.difference, how)), element("td", {class: "n"}, limits(row)), judged && element("td", {}, verdict(row))))))));
    if (keepOrder && named.length < 8) figure.classList.add("wide");
    return figure;
  }

  // ------------------------------------------------------------------ arms

  const measured = runs.filter((run) => !run.ended_in_error), failed = runs.filter((run) => run.ended_in_error);

  // Success of all measured runs of a condition, and the mean of its cells' median correctness; task and agent "": all.
  const tallies = new Map();
  {
    const into = (row, change) => {
      for (const task of ["", row.task]) {
        for (const agent of ["", row.agent]) {
          const key = JSON.stringify([row.reference, row.condition, task, agent]);
          if (!tallies.has(key)) tallies.set(key, {runs: 0, scored: 0, successes: 0, points: 0, cells: 0});
          change(tallies.get(key));
        }
      }
    };
    for (const run of measured) into(run, (tally) => { tally.runs++; if (known(run.success)) { tally.scored++; tally.successes += Number(run.success); } });
    for (const cell of cells) if (known(cell.correctness_med)) into(cell, (tally) => { tally.cells++; tally.points += cell.correctness_med; });
  }
  const tallyOf = (reference, condition, task, agent) => tallies.get(JSON.stringify([reference, condition, task, agent]));

  // A cell of a heat map: its number is text, its shade says the same again.
  const heat = (share, big, small, spoken) => element("td", {class: "heat", style: `--v:${Math.max(0, Math.min(1, share)).toFixed(3)}`}, big, element("small", {}, element("span", {class: "hidden"}, ` ${spoken} `), small));
  const nothing = () => element("td", {class: "n"}, "\u2013");
  function successCell(tally) {
    if (!tally || !tally.scored) return nothing();
    const rate = tally.successes / tally.scored;
    return heat(rate, format.percent(rate), tally.cells ? format.plain(tally.points / tally.cells) : "\u2013", "success, median correctness");
  }

  function armOrder(name) {
    const at = [RAW, CONTEXT, ...Object.keys(ARMS)].indexOf(name);
    return at >= 0 ? at : leftOut(name) ? 100 : 50;
  }

  function armsPart(group) {
    const reference = group.reference;
    const conditions = data.conditions.filter((name) => tallyOf(reference, name, "", "")).sort((a, b) => armOrder(a) - armOrder(b) || byName(a, b));
    const arms = conditions.filter((name) => name !== RAW && name !== CONTEXT);
    if (!arms.length) return null;
    const tasks = data.tasks.filter((task) => conditions.some((name) => tallyOf(reference, name, task, "")));
    const noun = reference ? "agent" : "model", id = `arms-${reference}`;
    const agents = [...new Set(runs.filter((run) => run.reference === reference).map((run) => run.agent))].sort(byName);

    const figures = new Map(group.others.map((other) => [other.condition, other.columns.find((column) => column.name === "all")]));
    const wanted = ["tool calls, median", "turns, median", "total spend", "cost per success"].map((label) => group.labels.indexOf(label)).filter((at) => at >= 0);
    const pooled = group.columns[group.columns.length - 1];
    const figureOf = (condition, at) => {
      if (figures.has(condition)) return figures.get(condition).figures[at][0];
      const side = group.sides.indexOf(NAMES[condition]);
      return pooled && side >= 0 ? pooled.figures[at][side] : "\u2013";
    };
    const overview = "Each condition: success rate, and below it the median correctness (the mean over the cells)";
    const table = captioned(overview, element("table", {class: "grid"},
      element("thead", {}, element("tr", {}, [...["Condition", ...tasks, "all tasks"].map((name, i) => element("th", {scope: "col", class: i ? "n" : null}, name)), element("th", {scope: "col", class: "n"}, "runs"), ...wanted.map((at) => element("th", {scope: "col", class: "n"}, group.labels[at]))])),
      element("tbody", {}, conditions.map((name) => element("tr", {}, element("th", {scope: "row"}, breakable(conditionName(name))), [...tasks, ""].map((task) => successCell(tallyOf(reference, name, task, ""))),
        element("td", {class: "n"}, format.count(tallyOf(reference, name, "", "").runs)), wanted.map((at) => element("td", {class: "n"}, figureOf(name, at))))))));

    // What an arm changes, against one of the two conditions.
    const differences = data.arms ? objects(data.arms).filter((row) => row.reference === reference) : [];
    const charts = element("div", {class: "charts two"});
    let base = differences.some((row) => row.from_condition === CONTEXT) ? CONTEXT : RAW, metric = "success";
    const fillCharts = () => {
      const rows = differences.filter((row) => row.from_condition === base && row.metric === metric);
      const overall = new Map(rows.filter((row) => row.task === null).map((row) => [row.to_condition, row.difference]));
      const rank = (row) => [armOrder(row.to_condition) >= 100 ? 1 : 0, armOrder(row.to_condition) >= 100 ? overall.get(row.to_condition) ?? 0 : armOrder(row.to_condition)];
      rows.sort((a, b) => rank(a)[0] - rank(b)[0] || rank(a)[1] - rank(b)[1] || byName(a.to_condition, b.to_condition));
      refill(charts, [null, ...tasks].map((task) => {
        const own = rows.filter((row) => row.task === task).map((row) => ({...row, name: conditionName(row.to_condition)}));
        return own.length > 0 && effectChart(`${task || "all tasks"}: ${metricName(own[0])}, change from \u201c${conditionName(base)}\u201d`, own, [base, ""], true);
      }));
      for (const figure of charts.children) figure.classList.remove("wide");
      if (!charts.children.length) charts.append(element("p", {class: "hint"}, `No cell was measured in an arm and in ${conditionName(base)}.`));
    };

    const place = element("div", {});
    const fillAgents = (task) => {
      const caption = `${task || "All tasks"}: every ${noun} in every condition`;
      refill(place, [scrolling(caption, element("table", {class: "grid heatmap"}, element("caption", {class: "hidden"}, caption),
        element("thead", {}, element("tr", {}, ["Name", ...conditions.map(conditionName)].map((name, i) => element("th", {scope: "col", class: i ? "n" : null}, breakable(name))))),
        element("tbody", {}, agents.map((agent) => element("tr", {}, element("th", {scope: "row"}, agent), conditions.map((name) => successCell(tallyOf(reference, name, task, agent))))))))]);
    };

    const node = element("section", {class: "part", id}, element("h3", {}, "Arms"),
      element("p", {class: "hint"}, "Further conditions that explain the effect:"),
      element("ul", {class: "findings"}, arms.filter((name) => ARMS[name]).map((name) => element("li", {}, element("b", {}, ARMS[name][0]), `: ${ARMS[name][1]}`)),
        arms.some(leftOut) && element("li", {}, element("b", {}, "without \u2026"), ": the search covers all entries but the one named")),
      table,
      differences.length > 0 && [element("h4", {}, "What each arm changes"),
        element("p", {class: "hint"}, "From \u201cwith context\u201d: what it costs to leave an entry out, to bury the entries among others, to put them into the prompt; left of zero is a loss, and the entry that costs most comes first. From \u201craw access\u201d: what an arm still buys; a placebo should buy nothing. Lines are 95% intervals; a filled dot: the interval excludes zero."),
        choice(`${id}-base`, "Change from", [CONTEXT, RAW].filter((name) => differences.some((row) => row.from_condition === name)).map((name) => [name, conditionName(name)]), (value) => { base = value; fillCharts(); }),
        choice(`${id}-metric`, "Show", [["success", "success rate"], ["correctness", "mean correctness"]].filter(([name]) => differences.some((row) => row.metric === name)), (value) => { metric = value; fillCharts(); }),
        charts],
      element("h4", {}, `Each ${noun}`),
      element("p", {class: "hint"}, "Large: success rate; small: median correctness. The deeper the shade, the more runs succeed."),
      choice(`${id}-task`, "Task", [["", "all tasks"], ...tasks.map((task) => [task, task])], fillAgents),
      place,
      element("details", {}, element("summary", {}, "All figures of each arm"), group.others.map((other) => summaryTable(group, other.columns, `${NOUN(reference)}: ${rawName(other.condition)}`))));
    if (differences.length) fillCharts();
    fillAgents("");
    return node;
  }

  // ------------------------------------------------------------------ use of search_context

  const namesOf = (text) => (text ? String(text).split("; ") : []);
  const USED = "An entry is used when a later statement names its table or its columns, or holds three of its numbers and dates; other use cannot be seen from outside.";
  const MOST_ENTRIES = 25;

  function searchPart(group) {
    if (!data.adoption) return null;
    const all = objects(data.adoption.table).filter((row) => row.reference === group.reference);
    if (!all.length) return null;
    const reference = group.reference, noun = reference ? "agent" : "model", id = `search-${reference}`;
    const conditions = data.conditions.filter((name) => all.some((row) => row.condition === name)).sort((a, b) => armOrder(a) - armOrder(b) || byName(a, b));
    const tasks = data.tasks.filter((task) => all.some((row) => row.task === task));
    let condition = conditions[0], task = "";
    const body = element("div", {});
    const points = (value) => (known(value) ? `${signed(value * 100, "count")}` : "\u2013");
    const COLUMNS = [
      ["runs", (r) => format.count(r.runs)],
      ["searched", (r) => shown(r.adoption_rate, "percent")],
      ["before the first query", (r) => shown(r.before_query_rate, "percent")],
      ["entries returned, median", (r) => shown(r.entries_returned_med, "plain")],
      ["entries used, median", (r) => shown(r.entries_used_med, "plain")],
      ["success: searched / did not", (r) => `${shown(r.success_adopters, "percent")} / ${shown(r.success_non_adopters, "percent")}`],
      ["effect as assigned", (r) => points(r.effect_as_assigned)],
      ["effect among those that searched", (r) => points(r.effect_among_adopters)],
    ];
    const fill = () => {
      const rows = all.filter((row) => row.condition === condition && (task ? row.task === task : row.overall)).sort((a, b) => Number(b.everybody) - Number(a.everybody) || byName(a.agent, b.agent));
      const what = `${task || "all tasks"}, ${conditionName(condition)}`;
      const caption = `Use of search_context: ${what}. Effects in percentage points of success against raw access`;
      const one = captioned(caption, element("table", {class: "grid"},
        element("thead", {}, element("tr", {}, ["Name", ...COLUMNS.map(([name]) => name)].map((name, i) => element("th", {scope: "col", class: i ? "n" : null}, name)))),
        element("tbody", {}, rows.map((row) => element("tr", {class: row.everybody ? "total" : null}, element("th", {scope: "row"}, row.agent), COLUMNS.map(([, show]) => element("td", {class: "n"}, show(row))))))));
      refill(body, [rows.length > 0 && one, entryTable(what)]);
    };
    const entryTable = (what) => {
      const offered = measured.filter((run) => run.reference === reference && run.condition === condition && (!task || run.task === task) && known(run.search_context_calls));
      const own = offered.filter((run) => known(run.entries_returned));
      const untold = own.length < offered.length && element("p", {class: "hint"}, `Which entries came back is unknown for ${format.count(offered.length - own.length)} of ${format.count(offered.length)} runs, whose records do not name them; they are not in the shares.`);
      if (!own.some((run) => run.entries_returned)) return untold || element("p", {class: "hint"}, "No entry came back in these runs.");
      const agents = [...new Set(own.map((run) => run.agent))].sort(byName);
      const counts = new Map();
      for (const run of own) {
        const used = new Set(namesOf(run.entries_used_names));
        for (const name of namesOf(run.entries_returned_names)) {
          if (!counts.has(name)) counts.set(name, new Map());
          for (const column of ["", run.agent]) {
            const cell = counts.get(name).get(column) || {returned: 0, used: 0};
            cell.returned++;
            if (used.has(name)) cell.used++;
            counts.get(name).set(column, cell);
          }
        }
      }
      const total = (agent) => own.filter((run) => !agent || run.agent === agent).length;
      const totals = new Map(["", ...agents].map((agent) => [agent, total(agent)]));
      const names = [...counts.keys()].sort((a, b) => counts.get(b).get("").used - counts.get(a).get("").used || counts.get(b).get("").returned - counts.get(a).get("").returned || byName(a, b));
      const unknown = own.filter((run) => !known(run.entries_used)).length;
      const caption = `Entries: ${what}. Large: share of the runs that used it; small: share of the runs to which it came back`;
      return [captioned(caption, element("table", {class: "grid heatmap"},
        element("thead", {}, element("tr", {}, ["Entry", reference ? "all agents" : "all models", ...agents].map((name, i) => element("th", {scope: "col", class: i ? "n" : null}, name)))),
        element("tbody", {}, names.slice(0, MOST_ENTRIES).map((name) => element("tr", {}, element("th", {scope: "row"}, breakable(name)), ["", ...agents].map((agent) => {
          const {returned, used} = counts.get(name).get(agent) || {returned: 0, used: 0}, runsOf = totals.get(agent);
          return heat(used / runsOf, format.percent(used / runsOf), format.percent(returned / runsOf), "used, came back in");
        })))))),
        names.length > MOST_ENTRIES && element("p", {class: "hint"}, `${names.length - MOST_ENTRIES} more entries, used less often, are left out here.`),
        untold,
        unknown > 0 && element("p", {class: "hint"}, `What was used is unknown for ${format.count(unknown)} of ${format.count(own.length)} runs; they count as not having used.`),
        element("p", {class: "hint"}, USED)];
    };
    fill();
    return element("section", {class: "part", id}, element("h3", {}, "Use of search_context"),
      element("p", {class: "hint"}, data.adoption.note),
      conditions.length > 1 && element("p", {class: "screen pick"}, picker(`${id}-condition`, "Condition", conditions.map((name) => [name, conditionName(name)]), (value) => { condition = value; fill(); })),
      choice(`${id}-task`, "Task", [["", "all tasks"], ...tasks.map((name) => [name, name])], (value) => { task = value; fill(); }),
      body);
  }

  // ------------------------------------------------------------------ state in the address

  const FILTERS = ["model", "task", "condition", "outcome", "text", "deep"];
  let state = {};
  function readHash() {
    const hash = location.hash.slice(1);
    return hash.includes("=") ? Object.fromEntries(new URLSearchParams(hash)) : {};
  }
  function hashOf(next) {
    const kept = Object.entries(next).filter(([, value]) => value);
    return kept.length ? "#" + new URLSearchParams(kept) : "#";
  }
  function setState(change, push) {
    state = {...state, ...change};
    const hash = hashOf(state);
    if (push) history.pushState(null, "", hash); else history.replaceState(null, "", hash);
    apply();
  }

  // ------------------------------------------------------------------ tables

  const success = (value) => (known(value) ? element("span", {class: `tag ${value ? "good" : "bad"}`}, value ? "yes" : "no") : "\u2013");
  const outcome = (run) => element("span", {class: `tag ${run.ended_in_error ? "plain" : run.success ? "good" : "bad"}`}, run.ended_in_error ? "error" : (run.outcome || "unknown").replaceAll("_", " "));

  // Which cell or run it is: read out with the name, and seen where the columns for it have no room.
  const where = (row) => [" ", element("span", {class: "where"}, breakable(`${row.task} ${conditionName(row.condition)}${known(row.run) ? ` run ${row.run}` : ""}`))];

  const CELL_COLUMNS = [
    {name: "agent", label: "Name", row: true, show: (c) => element("a", {href: hashOf({model: c.agent, task: c.task, condition: c.condition}), title: "Show its runs", click: (event) => { event.preventDefault(); setState({model: c.agent, task: c.task, condition: c.condition, outcome: "", text: "", deep: ""}, true); jump("runs"); }}, c.agent, where(c))},
    {name: "task", label: "Task", wide: true, rank: (c) => order(data.tasks, c.task)},
    {name: "condition", label: "Condition", wide: true, show: (c) => conditionName(c.condition), rank: (c) => order(data.conditions, c.condition)},
    {name: "runs", label: "Runs", wide: true, how: "count"},
    {name: "success_rate", label: "Success", how: "percent"},
    {name: "correctness_med", label: "Correctness", how: "plain"},
    {name: "correctness_range", label: "Range", how: "plain"},
    {name: "cost_med", label: "Cost", how: "money"},
    {name: "cost_per_success", label: "Cost / success", how: "money"},
    {name: "calls_med", label: "Tool calls", how: "plain"},
    {name: "turns_med", label: "Turns", how: "plain"},
    {name: "tokens_med", label: "Tokens", how: "count"},
    {name: "wall_med", label: "Time", how: "seconds"},
    {name: "turn_cap_rate", label: "At turn cap", how: "percent", rare: true},
    {name: "unauthorized_total", label: "Unauthorized", how: "count", rare: true},
    {name: "errors", label: "Errors", how: "count", rare: true},
  ];
  const RUN_COLUMNS = [
    {name: "agent", label: "Name", row: true, show: (r) => element("a", {href: hashOf({run: r.key}), click: (event) => { event.preventDefault(); setState({run: r.key}, true); }}, r.agent, where(r))},
    {name: "task", label: "Task", wide: true, rank: (r) => order(data.tasks, r.task)},
    {name: "condition", label: "Condition", wide: true, show: (r) => conditionName(r.condition), rank: (r) => order(data.conditions, r.condition)},
    {name: "run", label: "Run", wide: true, how: "count"},
    {name: "outcome", label: "Outcome", show: outcome},
    {name: "success", label: "Success", wide: true, show: (r) => success(r.success), rank: (r) => (known(r.success) ? Number(r.success) : null)},
    {name: "correctness", label: "Correctness", how: "plain"},
    {name: "cost_usd", label: "Cost", how: "money"},
    {name: "tool_calls", label: "Tool calls", how: "count"},
    {name: "turns", label: "Turns", how: "count"},
    {name: "total_tokens", label: "Tokens", how: "count"},
    {name: "wall_s", label: "Time", how: "seconds"},
    {name: "unauthorized_rows", label: "Unauthorized", how: "count", rare: true},
    {name: "failure", label: "Failed by", rare: true, show: (r) => (r.failure ? r.failure.replaceAll("_", " ") : "\u2013")},
  ];
  const ERROR_COLUMNS = [RUN_COLUMNS[0], RUN_COLUMNS[1], RUN_COLUMNS[2], RUN_COLUMNS[3],
    {name: "error_class", label: "Class"}, {name: "error", label: "What happened", text: true}, {name: "cost_usd", label: "Cost", how: "money"}];

  const STEP = 60;
  const classOf = (column) => [column.how && "n", column.text && "text", column.wide && "wide"].filter(Boolean).join(" ") || null;

  function grid(id, caption, columns, hashKey) {
    let rows = [], limit = STEP, sorted = [];
    const status = element("p", {class: "count", role: "status"});
    const body = element("tbody", {});
    const heads = columns.map((column) => element("th", {scope: "col", class: classOf(column), "aria-sort": "none"},
      element("button", {type: "button", click: () => {
        const ways = column.how ? ["-" + column.name, column.name, ""] : [column.name, "-" + column.name, ""];
        setState({[hashKey]: ways[(ways.indexOf(state[hashKey] || "") + 1) % 3]});
      }}, column.label)));
    const more = element("button", {class: "plain screen", type: "button", click: () => { limit = Infinity; fill(); }}, "");
    const table = element("table", {class: "grid", id: `${id}-table`}, element("caption", {class: "hidden"}, caption), element("thead", {}, element("tr", {}, heads)), body);

    const rank = (column, row) => (column.rank ? column.rank(row) : row[column.name]);
    function sort() {
      const wanted = state[hashKey] || "", down = wanted.startsWith("-");
      const column = columns.find((c) => c.name === wanted.replace("-", ""));
      heads.forEach((head, index) => head.setAttribute("aria-sort", columns[index] === column ? (down ? "descending" : "ascending") : "none"));
      sorted = [...rows];
      if (!column) return;
      sorted.sort((a, b) => {
        const x = rank(column, a), y = rank(column, b);
        if (!known(x) || !known(y)) return Number(!known(x)) - Number(!known(y));
        const way = typeof x === "number" && typeof y === "number" ? x - y : byName(x, y);
        return down ? -way : way;
      });
    }
    function fill() {
      const lines = sorted.slice(0, limit);
      body.replaceChildren(...lines.map((row) => element("tr", {}, columns.map((column) => {
        const content = column.show ? column.show(row) : shown(row[column.name], column.how);
        return column.row ? element("th", {scope: "row"}, content) : element("td", {class: classOf(column)}, content);
      }))));
      more.hidden = lines.length === sorted.length;
      more.textContent = `Show all ${format.count(sorted.length)}`;
    }
    addEventListener("beforeprint", () => { if (limit < 1000) { limit = 1000; fill(); } });
    addEventListener("afterprint", () => { if (limit === 1000) { limit = STEP; fill(); } });
    return {
      node: [element("p", {class: "hint"}, caption), status, scrolling(caption, table), more],
      sorted: () => sorted,
      update(next, all, noun) {
        rows = next;
        limit = STEP;
        sort();
        fill();
        status.textContent = next.length === all ? `${format.count(all)} ${noun}` : `${format.count(next.length)} of ${format.count(all)} ${noun}`;
      },
    };
  }

  // Columns that say nothing anywhere take no room.
  const telling = (columns, rows) => columns.filter((column) => !column.rare || rows.some((row) => row[column.name]));

  const cellGrid = grid("cells", "One row per name, task and condition: medians over the measured runs. Names lead to their runs.", telling(CELL_COLUMNS, cells), "cells");
  const runGrid = grid("runs", "One row per run. Names open the run with its conversation.", telling(RUN_COLUMNS, runs), "runs");
  const errorGrid = grid("errors", "Runs that ended in an error: no score, in no figure above, pending again.", ERROR_COLUMNS, "errors");

  const haystack = new Map(runs.map((run) => [run, [run.agent, run.key, run.task, run.condition, run.outcome, run.failure, run.failure_detail, run.error_class, run.error, run.answer_flags, run.resolved_model].filter(known).join(" ").toLowerCase()]));

  function filterForm() {
    const names = (reference) => [...new Set(runs.filter((run) => run.reference === reference).map((run) => run.agent))].sort(byName);
    const option = (value, text) => element("option", {value}, text);
    const select = (name, label, options) => element("label", {}, label, element("select", {name, "data-filter": name, change: (event) => setState({[name]: event.target.value})}, option("", "all"), options));
    const groups = data.groups.map((group) => element("optgroup", {label: NOUN(group.reference)}, names(group.reference).map((name) => option(name, name))));
    const outcomes = [...new Set(measured.map((run) => run.outcome).filter(Boolean))].sort();
    let waiting;
    return element("form", {class: "filters", role: "search", "aria-label": "Filter cells and runs", submit: (event) => event.preventDefault()},
      select("model", "Name", groups),
      select("task", "Task", data.tasks.map((task) => option(task, task))),
      select("condition", "Condition", data.conditions.map((name) => option(name, rawName(name)))),
      select("outcome", "Outcome", [option("success", "any success"), option("no-success", "no success"), ...outcomes.map((name) => option("=" + name, name.replaceAll("_", " ")))]),
      element("label", {}, "Text", element("input", {type: "search", "data-filter": "text", placeholder: "failure, flag, error, name", input: (event) => { clearTimeout(waiting); const text = event.target.value; waiting = setTimeout(() => setState({text}), 120); }})),
      data.has_conversations && element("label", {class: "check"}, element("input", {type: "checkbox", "data-filter": "deep", change: (event) => setState({deep: event.target.checked ? "yes" : ""})}), "search the conversations too"),
      element("button", {class: "plain", type: "button", click: () => setState(Object.fromEntries(FILTERS.map((name) => [name, ""])))}, "Clear"));
  }

  function matchesRun(run) {
    if (state.model && run.agent !== state.model) return false;
    if (state.task && run.task !== state.task) return false;
    if (state.condition && run.condition !== state.condition) return false;
    if (state.outcome === "success" && !run.success) return false;
    if (state.outcome === "no-success" && run.success !== false) return false;
    if (state.outcome && state.outcome[0] === "=" && run.outcome !== state.outcome.slice(1)) return false;
    return !state.text || haystack.get(run).includes(state.text.toLowerCase()) || Boolean(state.deep && spoken.text === state.text && spoken.documents.has(run.document));
  }

  // The documents of this file in which `text` was said. A text that many runs share is looked at once.
  let spoken = {text: "", documents: new Set()};
  async function listen(text) {
    const wanted = text.toLowerCase(), hits = new Map(), found = new Set();
    const here = [...new Set(runs.filter((run) => run.part === data.part).map((run) => run.document))];
    await Promise.all([...document.querySelectorAll("script[id^=d]")].map((script) => /^d(\d+)$/.exec(script.id)).filter(Boolean).map(async ([, number]) => {
      const stored = await loadDocument(Number(number));
      stored.texts.forEach((each, index) => { if (each.toLowerCase().includes(wanted)) hits.set(`${number},${index}`, true); });
    }));
    const said = (value) => typeof value === "string" ? value.toLowerCase().includes(wanted)
      : value && typeof value === "object" && (Array.isArray(value.$) ? hits.has(value.$.join()) : Object.values(value).some(said));
    for (const number of here) if (((await loadDocument(number)).events || []).some(said)) found.add(number);
    return {text, documents: found};
  }

  // The runs decide about outcome and text: a cell stays when one of its runs does.
  let listed = null;
  function apply() {
    for (const field of document.querySelectorAll("[data-filter]")) {
      const value = state[field.dataset.filter] || "";
      if (field.type === "checkbox") field.checked = Boolean(value);
      else if (field !== document.activeElement && field.value !== value) field.value = value;
    }
    const {run: open, ...listing} = state;
    const listening = Boolean(state.deep && state.text && spoken.text !== state.text);
    if (listening) {
      const text = state.text;
      listen(text).then((heard) => { if (state.text === text) { spoken = heard; apply(); } },
        (error) => { byId("listening").textContent = `The conversations cannot be searched (${error}).`; });
    }
    if (byId("listening")) byId("listening").textContent = listening ? "Searching the conversations\u2026" : state.deep && state.text && data.files.length > 1 ? "Only the conversations in this part of the report were searched." : "";
    const wanted = JSON.stringify([listing, spoken.text]);
    if (wanted !== listed) {  // opening a run leaves the tables, and with them the focus, as they are
      listed = wanted;
      const shownRuns = measured.filter(matchesRun), shownFailed = failed.filter(matchesRun);
      const cellKey = (row) => JSON.stringify([row.agent, row.task, row.condition]);
      const kept = new Set([...shownRuns, ...shownFailed].map(cellKey));
      cellGrid.update(cells.filter((cell) => kept.has(cellKey(cell))), cells.length, "cells");
      runGrid.update(shownRuns, measured.length, "measured runs");
      errorGrid.update(shownFailed, failed.length, "runs that ended in an error");
    }
    const run = open && runs.find((candidate) => candidate.key === open);
    if (run) openRun(run); else closeRun();
  }

  // ------------------------------------------------------------------ one run

  const dialog = byId("run");
  const documents = new Map();
  let opened = null;

  async function loadDocument(number) {
    if (!documents.has(number)) {
      const text = byId(`d${number}`).textContent;
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      documents.set(number, JSON.parse(await new Response(stream).text()));
    }
    return documents.get(number);
  }

  async function resolved(value) {
    return value && typeof value === "object" && Array.isArray(value.$) ? (await loadDocument(value.$[0])).texts[value.$[1]] : value;
  }

  function closeRun() {
    opened = null;
    if (dialog.open) dialog.close();
  }
  dialog.addEventListener("close", () => { opened = null; if (state.run) setState({run: ""}); });

  const pre = (text, label) => element("pre", {tabindex: "0", role: "group", "aria-label": label}, text);

  function highlighted(sql) {
    if (sql.length > 30000) return pre(sql, "SQL");
    const block = element("pre", {tabindex: "0", role: "group", "aria-label": "SQL"});
    const walk = (node, into) => {
      for (const child of node.children) {
        if (typeof child === "string") { into.append(...texts(child)); continue; }
        const span = element("span", {class: child.scope ? "hljs-" + String(child.scope).replace(/[^a-z_]/g, "") : null});
        walk(child, span);
        into.append(span);
      }
    };
    const result = hljs.highlight(sql, {language: "sql", ignoreIllegals: true});
    walk(result._emitter.rootNode, block);  // the tree, not the HTML that is made of it
    return block;
  }

  const SQL_TOOL = /select|insert|query|exec|sql/i;
  function argumentsOf(event) {
    const args = event.args;
    if (!known(args)) return [];
    if (typeof args !== "object") return [pre(String(args), "Arguments")];
    const parts = [], rest = {};
    for (const [name, value] of Object.entries(args)) {
      if (typeof value === "string" && SQL_TOOL.test(event.tool || "") && /^\s*(\(|--|\/\*|with\b|select\b|insert\b|update\b|delete\b|merge\b|create\b|drop\b|exec)/i.test(value)) parts.push(highlighted(value));
      else rest[name] = value;
    }
    const names = Object.keys(rest);
    if (names.length === 1 && typeof rest[names[0]] === "string") parts.unshift(element("p", {}, element("span", {class: "hint"}, names[0] + ": "), rest[names[0]]));
    else if (names.length) parts.unshift(pre(JSON.stringify(rest, null, 2), "Arguments"));
    return parts;
  }

  const who = (name, ...small) => element("div", {class: "who"}, name, small.filter(known).map((text) => element("small", {}, text)));

  function folded(label, node, open) {
    return element("details", {open}, element("summary", {}, label), node);
  }
  const lengthOf = (text) => `${format.count(text.length)} characters`;

  async function eventNode(event, results, entries) {
    const text = await resolved(event.text);
    const thinking = await resolved(event.thinking);
    if (event.type === "system") {
      const tools = await resolved(event.tools);
      return element("div", {class: "message"}, who("System prompt"), pre(text || "", "System prompt"), tools && folded("Tools offered", pre(tools, "Tools offered"), false));
    }
    if (event.type === "user") return element("div", {class: "message"}, who("Prompt"), pre(text || "", "Prompt"));
    if (event.type === "assistant") {
      return element("div", {class: "message"}, who("Model", event.stop_reason && `stop: ${event.stop_reason}`, known(event.model_s) && `${decimals(event.model_s, 2)} s`, known(event.cost_usd) && format.money(event.cost_usd)),
        thinking && folded(`Thinking (${lengthOf(thinking)})`, pre(thinking, "Thinking"), false), text && pre(text, "What the model wrote"));
    }
    if (event.type === "tool_call") {
      const node = element("div", {class: "message call"}, who(`Tool call: ${event.tool || "?"}`), argumentsOf(event),
        entries && element("p", {class: "hint"}, entries.length ? `Entries that came back: ${entries.join(", ")}` : "No entry came back"));
      for (const result of results.get(event.id) || []) node.append(await resultNode(result));
      return node;
    }
    if (event.type === "tool_result") return element("div", {class: "message call"}, who(`Result of ${event.tool || "?"}`), await resultNode(event));
    const rest = Object.fromEntries(Object.entries(event).filter(([name]) => !["type", "turn", "text"].includes(name)));
    return element("div", {class: "message"}, who({retry: "Retry", note: "Note of the harness"}[event.type] || String(event.type)), text && element("p", {}, text),
      Object.keys(rest).length > 0 && folded("Details", pre(JSON.stringify(rest, null, 2), "Details"), false));
  }

  async function resultNode(event) {
    const text = (await resolved(event.text)) || "";
    const label = `${event.is_error ? "Error" : "Result"}, ${lengthOf(text)} as the model saw it${event.truncated ? ", cut" : ""}`;
    return folded(label, pre(text, "Result"), text.length <= 600 || Boolean(event.is_error));
  }

  async function conversation(events, searches) {
    const results = new Map(), calls = new Set(events.filter((e) => e.type === "tool_call" && known(e.id)).map((e) => e.id));
    for (const event of events) {
      if (event.type === "tool_result" && calls.has(event.id)) results.set(event.id, [...(results.get(event.id) || []), event]);
    }
    const nodes = [];
    let turn = null, box = null, search = 0;
    for (const event of events) {
      if (event.type === "tool_result" && calls.has(event.id)) continue;
      if (event.turn !== turn || !box) {
        turn = event.turn;
        box = element("div", {class: "turn"}, element("h4", {}, turn ? `Turn ${turn}` : "Start"));
        nodes.push(box);
      }
      const shownTwice = event.type === "tool_call" && known(event.id);
      const isSearch = event.type === "tool_call" && /search_context$/.test(event.tool || "");
      box.append(await eventNode(event, results, isSearch ? searches[search++] : null));
      if (shownTwice) results.delete(event.id);
    }
    return nodes;
  }

  const SHORT = {hit: "right", wrong: "wrong detail", extra: "extra", duplicate: "again", tolerated: "tolerated", missed: "missing", unneeded: "not needed"};
  const SIGNS = {hit: "\u2713", wrong: "\u2260", extra: "+", duplicate: "\u00d72", tolerated: "~", missed: "\u2212", unneeded: "\u00b7"};

  function matchTable(match) {
    const counts = Object.keys(data.marks).map((mark) => [mark, match.rows.filter((row) => row[0] === mark).length]).filter(([, count]) => count);
    const caption = "The answer as it was read, beside the golden";
    const rows = match.rows.map(([mark, name, given, golden, wrong]) => element("tr", {class: `m-${mark}`},
      element("td", {class: "mark"}, element("span", {"aria-hidden": "true"}, SIGNS[mark] + " "), SHORT[mark]),
      element("th", {scope: "row"}, name || "(blank)"),
      match.columns.map((column, index) => {
        if (!given) return element("td", {}, element("span", {class: "golden"}, golden[index] || "\u2013"));
        const differs = golden && wrong.includes(index);
        const other = golden && !differs && golden[index] && golden[index].toLowerCase() !== given[index].toLowerCase();
        return element("td", {class: "text"}, element("span", {class: differs ? "cell-wrong" : null}, given[index] || "\u2013"),
          (differs || other) && element("span", {class: "golden"}, "golden: ", differs ? element("b", {}, golden[index] || "(blank)") : golden[index]));
      })));
    return [
      element("ul", {class: "legend"}, counts.map(([mark, count]) => element("li", {class: `m-${mark}`}, element("span", {class: "mark"}, `${SIGNS[mark]} ${count}`), ` ${data.marks[mark]}`))),
      scrolling(caption, element("table", {class: "grid"}, element("caption", {class: "hidden"}, caption), element("thead", {}, element("tr", {}, ["Mark", "Account", ...match.columns].map((name) => element("th", {scope: "col"}, name)))), element("tbody", {}, rows))),
      match.left_out > 0 && element("p", {class: "hint"}, `${format.count(match.left_out)} more rows are left out here.`),
    ];
  }

  const fact = (name, value, wide) => known(value) && value !== "" && value !== "\u2013" && element("div", {class: wide ? "wide" : null}, element("dt", {}, name), element("dd", {}, value));

  async function openRun(run) {
    if (opened === run) return;
    opened = run;
    const list = (run.ended_in_error ? errorGrid : runGrid).sorted();
    const at = list.indexOf(run);
    const step = (name, target) => element("button", {class: "plain", type: "button", disabled: !target, click: () => setState({run: target.key})}, name);
    const sheet = element("div", {class: "sheet"}, element("p", {role: "status"}, "Loading the conversation\u2026"));
    const title = `${run.agent}, ${run.task}, ${conditionName(run.condition)}, run ${run.run}`;
    dialog.replaceChildren(
      element("div", {class: "bar"}, element("div", {}, step("Previous", at > 0 ? list[at - 1] : null), step("Next", at >= 0 ? list[at + 1] : null)), element("button", {class: "plain", type: "button", autofocus: true, click: () => dialog.close()}, "Close")),
      sheet);
    const heading = element("h2", {id: "run-title"}, title);
    sheet.prepend(heading);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    let stored = null, problem = null;
    try {
      if (run.document !== null && run.part === data.part) stored = await loadDocument(run.document);
    } catch (error) {
      problem = `The conversation cannot be unpacked (${error}).`;
    }
    if (opened !== run) return;
    const record = (stored && stored.record) || {}, score = stored && stored.score;
    const tokens = ["uncached_input", "cached_input", "cache_write", "output", "reasoning"].filter((name) => known(record[name])).map((name) => `${format.count(record[name])} ${name.replaceAll("_", " ")}`).join(", ");
    const nodes = [
      heading,
      element("p", {}, outcome(run), " ", run.reference && element("span", {class: "tag plain"}, "reference agent: no model")),
      element("dl", {class: "facts"},
        fact("Correctness", shown(run.correctness, "plain")), fact("Success", known(run.success) ? (run.success ? "yes" : "no") : null), fact("Failed by", run.failure && `${run.failure.replaceAll("_", " ")}${run.failure_detail ? ": " + run.failure_detail : ""}`),
        fact("Cost", shown(run.cost_usd, "money")), fact("Tool calls", shown(run.tool_calls, "count")), fact("Turns", known(run.turns) ? `${run.turns}${known(record.turn_cap) ? " of at most " + record.turn_cap : ""}` : null),
        fact("Tokens", shown(run.total_tokens, "count")), fact("of which", tokens, true), fact("Time", shown(run.wall_s, "seconds")),
        fact("Model / tools", known(record.model_time_s) ? `${shown(record.model_time_s, "seconds")} / ${shown(record.mcp_time_s, "seconds")}` : null),
        fact("search_context calls", shown(run.search_context_calls, "count")), fact("Searched before the first query", known(run.search_context_before_query) ? (run.search_context_before_query ? "yes" : "no") : null), fact("Unauthorized rows", shown(run.unauthorized_rows, "count")), fact("Duplicate rows", shown(run.duplicate_rows, "count")),
        fact("Retries", run.model_retries ? String(run.model_retries) : null), fact("Stop reason", record.stop_reason), fact("Answered as", run.resolved_model), fact("Started", run.started_at && run.started_at.slice(0, 19).replace("T", " ")),
        fact("Reader", run.answer_flags), fact("Dropped parameters", record.dropped_parameters && record.dropped_parameters.join(", "))),
    ];
    const back = namesOf(run.entries_returned_names), usedEntries = namesOf(run.entries_used_names);
    if (back.length) {
      const unknown = !known(run.entries_used);
      nodes.push(element("h3", {}, "Context entries that came back"),
        element("ul", {class: "entries"}, back.map((name) => element("li", {}, name, " ", unknown ? null : usedEntries.includes(name) ? element("span", {class: "tag good"}, "used") : element("span", {class: "tag plain"}, "not seen in use")))),
        element("p", {class: "hint"}, unknown ? "What was used of them is unknown." : USED));
    }
    if (run.ended_in_error) nodes.push(element("h3", {}, "Error"), pre(`${run.error_class || ""}: ${run.error || ""}`, "Error"));
    if (score) {
      nodes.push(element("h3", {}, "Score"), pre(score.explanation, "Explanation of the score"),
        folded("Score components", scrolling("Score components", element("table", {}, element("caption", {class: "hidden"}, "Score components"), element("thead", {}, element("tr", {}, element("th", {scope: "col"}, "Component"), element("th", {scope: "col"}, "Value"))),
          element("tbody", {}, Object.entries(score.components).map(([name, value]) => element("tr", {}, element("th", {scope: "row"}, name), element("td", {}, known(value) ? String(value) : "\u2013")))))), false));
    }
    if (stored && stored.match) nodes.push(element("h3", {}, run.task === "a1" ? "Queue beside the golden" : "Answer beside the golden"), matchTable(stored.match));
    if (stored && known(stored.answer)) nodes.push(element("h3", {}, "Final answer"), pre(stored.answer, "Final answer"));
    nodes.push(element("h3", {}, "Conversation"));
    if (problem) nodes.push(element("p", {class: "banner"}, problem));
    else if (stored && stored.events) {
      try { nodes.push(...await conversation(stored.events, stored.searches || [])); } catch (error) { nodes.push(element("p", {class: "banner"}, `The conversation cannot be shown (${error}).`)); }
    } else if (run.document !== null && run.part !== data.part) {
      const file = data.files[run.part - 1];
      nodes.push(element("p", {}, "Conversation, answer and score details of this run are in another part of the report: ", element("a", {href: `${encodeURIComponent(file)}${hashOf({run: run.key})}`}, file), ", which must lie beside this file."));
    } else nodes.push(element("p", {class: "hint"}, data.has_conversations ? "There is no transcript of this run." : "This report was made from a runs_raw.csv alone, so there is no conversation."));
    if (opened !== run) return;
    sheet.replaceChildren(...nodes.filter(Boolean).flat(Infinity).filter(Boolean));
    sheet.setAttribute("data-ready", run.key);
  }

  // ------------------------------------------------------------------ the page

  const CHANGE = [
    {column: "correctness_med", name: "median correctness", label: "median correctness, points", how: "plain", domain: [0, 100]},
    {column: "success_rate", name: "success rate", label: "success rate", how: "percent", domain: [0, 1]},
  ];
  const EFFORT = [
    {column: "calls_med", name: "tool calls", label: "tool calls per run, median", how: "plain"},
    {column: "turns_med", name: "turns", label: "turns per run, median", how: "plain"},
    {column: "tokens_med", name: "tokens", label: "tokens per run, median", how: "count"},
    {column: "cost_med", name: "cost", label: "cost per run in USD, median", how: "money"},
  ];
  const SAFETY = [{column: "unauthorized_total", name: "unauthorized rows", label: "rows in all runs", how: "count", skipZero: true}];

  function build() {
    const main = byId("main");
    main.replaceChildren();
    data.groups.forEach((group, index) => {
      const noun = group.reference ? "agent" : "model";
      main.append(element("section", {class: "group", "aria-labelledby": `group-${index}`},
        element("h2", {id: `group-${index}`}, NOUN(group.reference)),
        group.note && data.groups.length > 1 && element("p", {class: "hint"}, `These are ${group.note}.`),
        summary(group, index),
        pairPart(group, `change-${group.reference}`, "What context changed", `Every ${noun} on every task, raw access to with context, the largest rise first. The number is the change.`, CHANGE, data.tasks),
        costPart(group),
        pairPart(group, `safety-${group.reference}`, "Unauthorized rows", "Rows written for accounts that were not to be queued, over all runs of the write task.", SAFETY, data.tasks.filter((task) => cells.some((cell) => cell.task === task && known(cell.unauthorized_total)))),
        pairPart(group, `effort-${group.reference}`, "Tool calls and turns", `What it took, median per run.`, EFFORT, data.tasks),
        effectsPart(group),
        armsPart(group),
        searchPart(group)));
    });
    main.append(
      element("section", {class: "part", id: "cells"}, element("h2", {}, "Cells"), element("p", {class: "hint screen"}, "The filters hold for the cells and for the runs below."), filterForm(), element("p", {id: "listening", class: "count", role: "status"}), cellGrid.node),
      element("section", {class: "part", id: "runs"}, element("h2", {}, "Runs"), runGrid.node));
    if (failed.length) main.append(element("section", {class: "part", id: "errors"}, element("h2", {}, "Runs that ended in an error"), errorGrid.node));
    header();
    const licences = JSON.parse(byId("licences").textContent);
    document.querySelector("footer.page").append(
      element("p", {}, "Success is a correctness of at least 60 on r1 and r2, and on a1 a write of exactly the golden accounts without an unauthorized or a duplicate row; a run that failed is no success. Runs that ended in an error are in no figure. Costs are at list prices."),
      element("details", {}, element("summary", {}, "Licences of the libraries inside (Observable Plot, D3, highlight.js)"), element("pre", {}, licences)));
  }

  let stored = "";
  try { stored = localStorage.getItem("ctxbench-theme") || ""; } catch { /* a file may have no storage */ }
  build();
  applyTheme(stored in THEMES ? stored : "");
  state = readHash();
  drawAll();
  apply();
  if (location.hash.length > 1 && !location.hash.includes("=")) jump(location.hash.slice(1));
  addEventListener("hashchange", () => { state = readHash(); apply(); });
  addEventListener("popstate", () => { state = readHash(); apply(); });
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawAll(), 150); });
  document.documentElement.dataset.ready = "yes";
})();
