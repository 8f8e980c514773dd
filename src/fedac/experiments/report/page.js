"use strict";

// Text of the store reaches the page through textContent only, never as markup.
const $ = (id) => document.getElementById(id);

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The library and the data are packed, so that the file stays small enough to be mailed.
async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// A table comes as columns, which pack better than rows.
function rows(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, i) =>
    Object.fromEntries(names.map((name) => [name, columns[name][i]])),
  );
}

const distinct = (values) => [...new Set(values)];
const increasing = (values) => distinct(values).sort((a, b) => a - b);
const scientific = (value) => (value === null ? "" : value.toExponential(2).replace("e+0", ""));
const threeDigits = (value) => (value === null ? "" : String(Number(value.toPrecision(3))));

// Let a select offer some values, or [value, text]; the choice stays if it is still on offer.
function offer(select, choices, preferred) {
  const before = select.value;
  const options = choices.map((choice) => [].concat(choice));
  select.replaceChildren(
    ...options.map(([value, text = value]) => element("option", text, { value })),
  );
  const values = options.map(([value]) => String(value));
  const wanted = [before, String(preferred), values[0]];
  select.value = wanted.find((value) => values.includes(value)) ?? "";
}

const GUIDE = "linear speedup";
// What a figure is about; the other controls choose what of it is drawn.
const QUESTION = ["layout", "dataset", "l2", "T", "M", "K", "unit"];

const show = (control, shown) => {
  control.closest("label").hidden = !shown;
};

function main(data, Plotly) {
  const problems = rows(data.problems);
  const algorithms = rows(data.algorithms);
  const cells = rows(data.cells);
  const traces = rows(data.traces);
  traces.sort((a, b) => cells[a.cell].algorithm - cells[b.cell].algorithm);
  for (const cell of cells) cell.rounds = problems[cell.problem].T / cell.K;
  const several = distinct(problems.map((problem) => problem.T)).length > 1;
  const describe = ({ dataset, l2, T }) =>
    `${dataset}, l2 = ${l2}` + (several ? `, T = ${T}` : "");
  const everyProblem = problems.map((problem, i) => [i, describe(problem)]);

  // First comes the problem that the paper's text speaks of.
  const isOf = (claim, { dataset, l2 }) => claim.dataset === dataset && claim.l2 === l2;
  const spokenOf = problems.findIndex((problem) =>
    data.claims.some((claim) => isOf(claim, problem)),
  );
  const favourite = Math.max(spokenOf, 0);

  drawHeadline();
  drawFigures();
  drawComparison();
  drawMade();

  // ---- how few rounds

  function drawHeadline() {
    $("slack").textContent = `${Math.round(100 * (data.slack - 1))} %`;
    offer($("target"), data.targets, problems[favourite].target);
    offer($("headline-problem"), everyProblem, favourite);
    show($("headline-problem"), problems.length > 1);

    const fewest = (candidates, value, target) =>
      candidates
        .filter((cell) => cell[value] !== null && cell[value] <= data.slack * target)
        .reduce((best, cell) => (best && best.rounds <= cell.rounds ? best : cell), null);

    function update() {
      const problem = Number($("headline-problem").value);
      const here = cells.filter((cell) => cell.problem === problem);
      const workers = increasing(here.map((cell) => cell.M));
      offer($("headline-M"), workers, workers.at(-1));
      const target = Number($("target").value);
      const M = Number($("headline-M").value);
      const claim = data.claims.find(
        (claim) => isOf(claim, problems[problem]) && claim.M === M && claim.target === target,
      );
      const body = $("headline").tBodies[0];
      body.replaceChildren();
      algorithms.forEach(({ name, label }, algorithm) => {
        const mine = here.filter((cell) => cell.algorithm === algorithm && cell.M === M);
        if (!mine.length) return;
        const ours = fewest(mine, "value", target);
        const known = mine.some((cell) => cell.published !== null);
        const theirs = fewest(mine, "published", target);
        const row = element("tr", "");
        row.append(
          element("th", label, { scope: "row" }),
          element("td", ours ? ours.rounds : "not reached"),
          element("td", theirs ? theirs.rounds : known ? "not reached" : ""),
          element("td", claim?.rounds[name] ?? ""),
          element("td", ours ? threeDigits(ours.megabytes) : ""),
          element("td", ours ? ours.K : ""),
          element("td", ours ? scientific(ours.value) : ""),
        );
        body.append(row);
      });
      hideEmptyColumns($("headline"));
    }

    // Each problem starts with its own target.
    $("headline-problem").addEventListener("change", ({ target: select }) => {
      $("target").value = problems[Number(select.value)].target;
    });
    for (const id of ["target", "headline-problem", "headline-M"]) {
      $(id).addEventListener("change", update);
    }
    update();
  }

  // Columns of published numbers, where none are known.
  function hideEmptyColumns(table) {
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      const column = [...table.tBodies[0].rows].map((row) => row.cells[i]);
      const empty = column.every((cell) => !cell.textContent);
      for (const cell of [head, ...column]) cell.hidden = empty;
    });
  }

  // ---- figures

  function drawFigures() {
    const plot = $("plot");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const boxes = algorithms.map(addBox);

    function addBox({ name, label, colour, symbol }) {
      const box = element("input", "", { type: "checkbox", value: name, checked: "" });
      const line = element("label", "");
      line.append(box, swatch(visible(colour), symbol), label);
      $("algorithms").append(line);
      box.addEventListener("change", update);
      return box;
    }

    // Black lines would be lost on a dark page.
    function visible(colour) {
      return colour === "#000000" ? "var(--ink)" : colour;
    }

    function problemIndex() {
      const chosen = ["dataset", "l2", "T"].map((name) => $(name).value);
      return problems.findIndex(
        ({ dataset, l2, T }) => [dataset, l2, T].map(String).join("\n") === chosen.join("\n"),
      );
    }

    // The choices depend on each other from left to right.
    function offerChoices() {
      const layout = $("layout").value;
      const unique = (name, from) => distinct(from.map((problem) => problem[name]));
      offer($("dataset"), unique("dataset", problems), problems[favourite].dataset);
      const ofData = problems.filter((problem) => problem.dataset === $("dataset").value);
      offer($("l2"), unique("l2", ofData), problems[favourite].l2);
      const ofL2 = ofData.filter((problem) => String(problem.l2) === $("l2").value);
      offer($("T"), unique("T", ofL2));
      show($("T"), unique("T", ofL2).length > 1);

      const here = cells.filter((cell) => cell.problem === problemIndex());
      const workers = increasing(here.map((cell) => cell.M));
      const steps = increasing(here.map((cell) => cell.K));
      offer($("M"), workers, workers.at(-1));
      offer($("K"), steps, steps.filter((K) => K <= 64).at(-1));
      show($("M"), layout !== "M");
      show($("K"), layout === "M" || layout === "traces");

      const inCell = new Set(here.filter(inPanel).map((cell) => cells.indexOf(cell)));
      const etas = increasing(traces.filter((t) => inCell.has(t.cell)).map((t) => t.eta));
      offer($("eta"), [["best", "best of each"], ...etas]);
      show($("eta"), layout === "traces");
      const units = [
        ["rounds", "rounds"],
        ["megabytes", "megabytes sent per worker"],
      ];
      offer($("unit"), layout === "traces" ? [["steps", "steps"], ...units] : units);
      show($("unit"), layout === "rounds" || layout === "traces");

      $("published-label").hidden = layout === "traces" || !here.some((c) => c.published !== null);
      $("guide-label").hidden = layout !== "M";
      boxes.forEach((box, i) => {
        box.parentElement.hidden = !here.some((cell) => cell.algorithm === i);
      });
    }

    function inPanel(cell) {
      const layout = $("layout").value;
      if (layout !== "M" && String(cell.M) !== $("M").value) return false;
      if (layout === "M" || layout === "traces") return String(cell.K) === $("K").value;
      return true;
    }

    function update() {
      offerChoices();
      const problem = problemIndex();
      const shown = cells.filter(
        (cell) => cell.problem === problem && inPanel(cell) && boxes[cell.algorithm].checked,
      );
      const layout = $("layout").value;
      const curves = layout === "traces" ? progress(shown) : tuned(shown, layout);
      Plotly.react(plot, curves, dress(curves, layout), {
        displaylogo: false,
        responsive: true,
        displayModeBar: isNarrow() ? false : "hover",
        modeBarButtons: [["toImage", "resetScale2d"]],
        toImageButtonOptions: { filename: "fedac", scale: 2 },
      });
      $("caption").textContent = caption(problems[problem], layout, curves.length > 0);
    }

    // Best suboptimality of each cell, a curve per algorithm.
    function tuned(shown, layout) {
      const megabytes = $("unit").value === "megabytes";
      const x = {
        M: (cell) => cell.M,
        K: (cell) => cell.K,
        rounds: (cell) => (megabytes ? cell.megabytes : cell.rounds),
      }[layout];
      const curves = [];
      for (const [i, { label, symbol }] of algorithms.entries()) {
        const colour = inkOf(i);
        // A logarithmic axis has no place for what is not above zero.
        const mine = shown
          .filter((cell) => cell.algorithm === i && cell.value > 0)
          .sort((a, b) => x(a) - x(b));
        const spread = mine.filter((cell) => cell.low > 0);
        if (spread.some((cell) => cell.low < cell.high)) curves.push(band(spread, x, colour));
        if (mine.length) {
          curves.push({
            name: label,
            x: mine.map(x),
            y: mine.map((cell) => cell.value),
            text: mine.map((cell) => details(cell, "value")),
            mode: "lines+markers",
            line: { color: colour, width: 2 },
            marker: { color: colour, symbol, size: isNarrow() ? 6 : 8 },
            hovertemplate: "%{text}<extra></extra>",
          });
        }
        const theirs = shown
          .filter((cell) => cell.algorithm === i && cell.published > 0)
          .sort((a, b) => x(a) - x(b));
        if (theirs.length && $("published").checked) {
          curves.push({
            name: `${label}, published`,
            x: theirs.map(x),
            y: theirs.map((cell) => cell.published),
            text: theirs.map((cell) => details(cell, "published")),
            mode: "markers",
            marker: {
              color: colour,
              symbol: `${symbol}-open`,
              size: isNarrow() ? 10 : 13,
              line: { width: 1.5 },
            },
            hovertemplate: "%{text}<extra></extra>",
          });
        }
      }
      if (layout === "M" && $("guide").checked && curves.length) curves.push(guide(shown));
      return curves;
    }

    function details(cell, value) {
      const { label } = algorithms[cell.algorithm];
      const seeds = cell.seeds > 1 ? `, median of ${cell.seeds} seeds` : "";
      return [
        `<b>${label}</b>${value === "published" ? ", published" : seeds}`,
        `suboptimality ${scientific(cell[value])}`,
        `M = ${cell.M}, K = ${cell.K}, R = ${threeDigits(cell.rounds)}`,
        `step size ${value === "published" ? cell.published_eta : cell.eta}`,
        `${threeDigits(cell.megabytes)} MB sent per worker`,
      ].join("<br>");
    }

    // From the smallest to the largest of the seeds.
    function band(mine, x, colour) {
      const back = [...mine].reverse();
      return {
        name: "seeds",
        x: [...mine, ...back].map(x),
        y: [...mine.map((cell) => cell.high), ...back.map((cell) => cell.low)],
        fill: "toself",
        fillcolor: `${colour}30`,
        mode: "none",
        hoverinfo: "skip",
      };
    }

    // M times the workers, one M-th of the suboptimality: from the best of the fewest workers.
    function guide(shown) {
      const workers = increasing(shown.map((cell) => cell.M));
      const first = shown.filter((cell) => cell.M === workers[0] && cell.value > 0);
      const start = Math.min(...first.map((cell) => cell.value));
      return {
        name: GUIDE,
        x: workers,
        y: workers.map((M) => (start * workers[0]) / M),
        mode: "lines",
        line: { color: colourOf("--quiet"), width: 1.5, dash: "dot" },
        hoverinfo: "skip",
      };
    }

    // The recorded losses of single runs; each seed is a line.
    function progress(shown) {
      const unit = $("unit").value;
      const chosen = $("eta").value;
      const curves = [];
      for (const trace of traces) {
        const cell = cells[trace.cell];
        if (!shown.includes(cell)) continue;
        if (chosen === "best" ? !trace.best : String(trace.eta) !== chosen) continue;
        const { label, symbol } = algorithms[cell.algorithm];
        const { T } = problems[cell.problem];
        const perStep = { steps: 1, rounds: 1 / cell.K, megabytes: cell.megabytes / T }[unit];
        const points = data.steps[trace.steps]
          .map((step, i) => [step, trace.values[i]])
          .filter(([, value]) => value > 0);
        const colour = inkOf(cell.algorithm);
        curves.push({
          name: label,
          x: points.map(([step]) => step * perStep),
          y: points.map(([, value]) => value),
          text: points.map(([step, value]) =>
            [
              `<b>${label}</b>, step size ${trace.eta}, seed ${trace.seed}`,
              `F \u2212 F* = ${scientific(value)}`,
              `step ${step}, round ${threeDigits(step / cell.K)}`,
            ].join("<br>"),
          ),
          mode: "lines+markers",
          line: { color: colour, width: 2 },
          marker: { color: colour, symbol, size: isNarrow() ? 6 : 8 },
          hovertemplate: "%{text}<extra></extra>",
        });
      }
      return curves;
    }

    function colourOf(name) {
      return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    }

    function inkOf(algorithm) {
      const colour = visible(algorithms[algorithm].colour);
      return colour.startsWith("var(") ? colourOf("--ink") : colour;
    }

    function dress(curves, layout) {
      const narrow = isNarrow();
      const unit = layout === "rounds" || layout === "traces" ? $("unit").value : layout;
      const axis = {
        gridcolor: colourOf("--line"),
        linecolor: colourOf("--line"),
        zeroline: false,
        exponentformat: "power",
        automargin: true,
      };
      const titles = {
        M: "workers M",
        K: "local steps K",
        steps: "steps of each worker",
        rounds: "communication rounds R",
        megabytes: "megabytes sent per worker",
      };
      const x = { ...axis, title: { text: titles[unit], standoff: 8 } };
      if (layout !== "traces") {
        x.type = "log";
        const ticks = increasing(curves.flatMap((curve) => curve.x));
        // Powers of two are read as they are; every other one where there is little room.
        if (unit === "megabytes") {
          Object.assign(x, { dtick: 1, exponentformat: "none" });
        } else if (ticks.length <= 16) {
          const every = narrow && ticks.length > 7 ? 2 : 1;
          x.tickmode = "array";
          x.tickvals = ticks.filter((_, i) => (ticks.length - 1 - i) % every === 0);
          x.ticktext = x.tickvals.map(String);
        }
      }
      // The guide may leave the figure; the measurements may not.
      const heights = curves.filter((curve) => curve.name !== GUIDE).flatMap((curve) => curve.y);
      const [low, high] = [Math.min(...heights), Math.max(...heights)];
      const y = { ...axis, type: "log" };
      if (heights.length) y.range = [Math.log10(low / 1.5), Math.log10(high * 1.5)];
      // Whole powers of ten, unless there are too few of them.
      if (high > 30 * low) y.dtick = 1;
      const what = layout === "traces" ? "F \u2212 F*" : "suboptimality, best step size";
      return {
        // Keeps the reader's zoom while only the look changes, not when the question does.
        uirevision: QUESTION.map((id) => $(id).value).join(),
        xaxis: x,
        yaxis: { ...y, title: { text: what, standoff: 6 } },
        font: { family: "system-ui, sans-serif", size: narrow ? 12 : 14, color: colourOf("--ink") },
        hoverlabel: {
          bgcolor: colourOf("--panel"),
          bordercolor: colourOf("--line"),
          font: { color: colourOf("--ink") },
          align: "left",
        },
        modebar: {
          bgcolor: "rgba(0,0,0,0)",
          color: colourOf("--quiet"),
          activecolor: colourOf("--ink"),
        },
        hovermode: "closest",
        showlegend: false,
        // A finger that drags wants to scroll the page.
        dragmode: narrow ? false : "zoom",
        margin: { l: narrow ? 48 : 64, r: 12, t: narrow ? 12 : 28, b: 48 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        annotations: curves.length ? [] : [emptiness()],
      };
    }

    function isNarrow() {
      return plot.clientWidth < 560;
    }

    function emptiness() {
      return {
        text: "Nothing to draw: tick an algorithm, or choose other values.",
        xref: "paper",
        yref: "paper",
        x: 0.5,
        y: 0.5,
        showarrow: false,
      };
    }

    function caption(problem, layout, something) {
      const where = [
        `${problem.dataset}: ${problem.n_samples.toLocaleString("en")} samples,` +
          ` ${problem.n_features.toLocaleString("en")} features`,
        `l2 = ${problem.l2}`,
        `T = ${problem.T}`,
      ];
      if (layout !== "M") where.push(`M = ${$("M").value}`);
      if (layout === "M" || layout === "traces") where.push(`K = ${$("K").value}`);
      const seeds = problem.seeds > 1 && layout !== "traces";
      const note = seeds ? ` Lines: median of ${problem.seeds} seeds; bands: all of them.` : "";
      return `${where.join(", ")}. F* = ${problem.f_star}.${something ? note : ""}`;
    }

    // Each layout starts with its own first unit.
    $("layout").addEventListener("change", () => $("unit").replaceChildren());
    for (const id of [...QUESTION, "eta", "published", "guide"]) {
      $(id).addEventListener("change", update);
    }
    dark.addEventListener("change", update);
    update();

    // Plotly follows the width by itself, but not with the ticks and the font.
    let before = isNarrow();
    new ResizeObserver(() => {
      if (before === isNarrow()) return;
      before = isNarrow();
      update();
    }).observe(plot);
  }

  // A line with its marker, as in the figure.
  function swatch(colour, symbol) {
    const shapes = {
      circle: "M14 2.5a4.5 4.5 0 1 0 .01 0z",
      square: "M10 3h8v8h-8z",
      diamond: "M14 1.5 19.5 7 14 12.5 8.5 7z",
      cross: "M12.5 2h3v3.5H19v3h-3.5V12h-3V8.5H9v-3h3.5z",
      x: "M10 2l4 4 4-4 1.5 1.5-4 3.5 4 3.5L18 12l-4-4-4 4-1.5-1.5 4-3.5-4-3.5z",
      star: "M14 1 15.6 5.2 20 5.4 16.6 8.2 17.8 12.5 14 10 10.2 12.5 11.4 8.2 8 5.4 12.4 5.2z",
      "triangle-up": "M14 2 19 11H9z",
      "triangle-down": "M14 12 19 3H9z",
    };
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("class", "swatch");
    svg.setAttribute("viewBox", "0 0 28 14");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(space, "path");
    line.setAttribute("d", "M0 7H28");
    line.style.stroke = colour;
    line.style.strokeWidth = 2;
    const marker = document.createElementNS(space, "path");
    marker.setAttribute("d", shapes[symbol] ?? shapes.circle);
    marker.style.fill = colour;
    svg.append(line, marker);
    return svg;
  }

  // ---- beside the published numbers

  function drawComparison() {
    const compared = cells
      .filter((cell) => cell.value > 0 && cell.published > 0)
      .map((cell) => ({
        ...cell,
        data: describe(problems[cell.problem]),
        name: algorithms[cell.algorithm].label,
        log2: Math.log2(cell.value / cell.published),
        off: Math.abs(Math.log2(cell.value / cell.published)),
      }));
    if (!compared.length) {
      $("comparison-section").hidden = true;
      return;
    }
    const columns = [
      { key: "name", text: "algorithm", words: true },
      { key: "M", text: "M" },
      { key: "K", text: "K" },
      { key: "value", text: "suboptimality", format: scientific },
      { key: "published", text: "published", format: scientific },
      { key: "log2", text: "log2 ratio", format: (value) => value.toFixed(2) },
      { key: "off", text: "|log2|", format: (value) => value.toFixed(2) },
      { key: "eta", text: "step size" },
      { key: "published_eta", text: "published step size" },
      { key: "data", text: "problem", words: true },
    ];
    const shownProblems = distinct(compared.map((cell) => cell.problem));
    if (shownProblems.length === 1) columns.pop();

    const present = distinct(compared.map((cell) => cell.algorithm)).sort((a, b) => a - b);
    offer($("filter-algorithm"), [
      ["", "all"],
      ...present.map((i) => [i, algorithms[i].label]),
    ]);
    offer($("filter-problem"), [
      ["", "all"],
      ...everyProblem.filter(([i]) => shownProblems.includes(i)),
    ]);
    show($("filter-problem"), shownProblems.length > 1);

    let order = { key: "off", sign: -1 };
    const head = $("comparison").tHead.rows[0];
    for (const { key, text, words } of columns) {
      const button = element("button", text, { type: "button" });
      const cell = element("th", "", { scope: "col", "data-key": key });
      if (words) cell.className = "text";
      cell.append(button);
      head.append(cell);
      button.addEventListener("click", () => {
        order = { key, sign: order.key === key ? -order.sign : 1 };
        update();
      });
    }

    function compare(a, b) {
      const [left, right] = [a[order.key], b[order.key]];
      const difference = typeof left === "string" ? left.localeCompare(right) : left - right;
      return order.sign * difference;
    }

    function update() {
      const algorithm = $("filter-algorithm").value;
      const problem = $("filter-problem").value;
      const chosen = compared
        .filter((cell) => !algorithm || String(cell.algorithm) === algorithm)
        .filter((cell) => !problem || String(cell.problem) === problem)
        .filter((cell) => !$("filter-many").checked || cell.M >= data.many_workers)
        .sort(compare);
      for (const cell of head.cells) {
        if (cell.dataset.key !== order.key) cell.removeAttribute("aria-sort");
        else cell.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
      }
      $("comparison").tBodies[0].replaceChildren(
        ...chosen.map((cell) => {
          const row = element("tr", "");
          for (const { key, words, format = String } of columns) {
            row.append(element("td", format(cell[key]), words ? { class: "text" } : {}));
          }
          return row;
        }),
      );
      $("comparison-summary").textContent = summary(chosen.map((cell) => cell.off));
    }

    function summary(off) {
      const sorted = off.sort((a, b) => a - b);
      const quantile = (q) => {
        const place = q * (sorted.length - 1);
        const below = Math.floor(place);
        const above = Math.ceil(place);
        return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
      };
      if (!sorted.length) return "No cell of this choice was published.";
      return (
        `${sorted.length} cells compared; |log2(ours/published)|: ` +
        `median ${quantile(0.5).toFixed(2)}, 95th percentile ${quantile(0.95).toFixed(2)}.`
      );
    }

    $("many-workers").textContent = data.many_workers;
    const many = compared.some((cell) => cell.M >= data.many_workers);
    $("filter-many").checked = many;
    show($("filter-many"), many);
    for (const id of ["filter-algorithm", "filter-problem", "filter-many"]) {
      $(id).addEventListener("change", update);
    }
    update();
  }

  // ---- how it was made

  function drawMade() {
    for (const [term, text] of data.made) {
      $("made").append(element("dt", term), element("dd", text));
    }
  }
}

async function start() {
  if (!("DecompressionStream" in window)) {
    $("notice").textContent = "This report needs a browser of 2023 or later to unpack its figures.";
    return;
  }
  const [library, data] = await Promise.all(["plotly-packed", "data-packed"].map(unpack));
  document.head.append(element("script", library));
  document.querySelector("main").hidden = false;
  main(JSON.parse(data), window.Plotly);
  $("notice").hidden = true;
  document.body.dataset.drawn = "yes";
}

start().catch((error) => {
  $("notice").textContent = `The report could not be drawn: ${error.message}`;
  throw error;
});
