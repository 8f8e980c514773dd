// What the figure draws, as plotly's traces. Points that the table of values lists have
// `customdata`.

const GUIDE = "linear speedup";

function curvesOf(view, report) {
  return view.layout === "traces" ? progressCurves(view, report) : tunedCurves(view, report);
}

// Each cell at its best step size, a curve per algorithm.
function tunedCurves(view, report) {
  const x = (cell) => cell[view.axis];
  const curves = [];
  for (const algorithm of report.algorithms) {
    const mine = view.cells
      .filter((cell) => cell.algorithm === algorithm.index)
      .sort((a, b) => x(a) - x(b));
    // A logarithmic axis has no place for zero.
    const drawn = mine.filter((cell) => cell.value > 0);
    const spread = drawn.filter((cell) => cell.low > 0 && cell.high !== null);
    if (spread.some((cell) => cell.low < cell.high)) curves.push(band(spread, x, algorithm));
    if (drawn.length) curves.push(ourCurve(drawn, x, algorithm));
    const theirs = mine.filter((cell) => cell.published > 0);
    if (theirs.length && view.published) curves.push(publishedCurve(theirs, x, algorithm));
  }
  if (view.layout === "M" && view.guide && curves.length) curves.push(guide(view.cells));
  return curves;
}

function ourCurve(cells, x, algorithm) {
  const seeds = ({ seeds }) => (seeds > 1 ? `, median of ${seeds} seeds` : "");
  return {
    ...lineOf(algorithm),
    name: algorithm.label,
    x: cells.map(x),
    y: cells.map((cell) => cell.value),
    text: cells.map((cell) =>
      hover(`<b>${algorithm.label}</b>${seeds(cell)}`, cell.value, cell, cell.step_size),
    ),
    customdata: cells.map((cell) => ({
      eta: cell.step_size,
      range: cell.seeds > 1 ? `${scientific(cell.low)} to ${scientific(cell.high)}` : "",
    })),
  };
}

function publishedCurve(cells, x, algorithm) {
  const name = `${algorithm.label}, published`;
  return {
    name,
    x: cells.map(x),
    y: cells.map((cell) => cell.published),
    text: cells.map((cell) =>
      hover(`<b>${algorithm.label}</b>, published`, cell.published, cell, cell.published_eta),
    ),
    customdata: cells.map((cell) => ({ eta: cell.published_eta, range: "" })),
    mode: "markers",
    marker: {
      color: inkOf(algorithm.colour),
      symbol: `${algorithm.symbol}-open`,
      size: isNarrow() ? 10 : 13,
      line: { width: 1.5 },
    },
    hovertemplate: "%{text}<extra></extra>",
  };
}

function hover(heading, value, cell, eta) {
  return [
    heading,
    `suboptimality ${scientific(value)}`,
    `M = ${cell.M}, K = ${cell.K}, R = ${threeDigits(cell.rounds)}`,
    `step size ${eta}`,
    `${threeDigits(cell.megabytes)} MB sent per worker`,
  ].join("<br>");
}

// From the smallest to the largest of the seeds.
function band(cells, x, algorithm) {
  const back = [...cells].reverse();
  return {
    name: "seeds",
    x: [...cells, ...back].map(x),
    y: [...cells.map((cell) => cell.high), ...back.map((cell) => cell.low)],
    fill: "toself",
    fillcolor: `${inkOf(algorithm.colour)}30`,
    mode: "none",
    hoverinfo: "skip",
    showlegend: false,
  };
}

// With m times the workers, one m-th of the suboptimality: from the best of the fewest workers.
function guide(cells) {
  const workers = increasing(cells.map((cell) => cell.M));
  const first = cells.filter((cell) => cell.M === workers[0] && cell.value > 0);
  const start = Math.min(...first.map((cell) => cell.value));
  return {
    name: GUIDE,
    x: workers,
    y: workers.map((M) => (start * workers[0]) / M),
    mode: "lines",
    line: { color: themeColour("--quiet"), width: 1.5, dash: "dot" },
    hoverinfo: "skip",
  };
}

// The recorded losses of single runs; each seed is a line.
function progressCurves(view, report) {
  const shown = new Set(view.cells.map((cell) => cell.index));
  const isChosen = (run) => (view.eta === "best" ? run.best : String(run.eta) === view.eta);
  const named = new Set();
  return report.traces
    .filter((run) => shown.has(run.cell) && isChosen(run))
    .map((run) => {
      const cell = report.cells[run.cell];
      const algorithm = report.algorithms[cell.algorithm];
      const perStep = { steps: 1, rounds: 1 / cell.K, megabytes: cell.megabytes / view.problem.T };
      const points = report.steps[run.steps]
        .map((step, i) => ({ step, value: run.values[i] }))
        .filter(({ value }) => value > 0);
      const showlegend = !named.has(algorithm.label);
      named.add(algorithm.label);
      return {
        ...lineOf(algorithm),
        name: algorithm.label,
        showlegend,
        x: points.map(({ step }) => step * perStep[view.axis]),
        y: points.map(({ value }) => value),
        text: points.map(({ step, value }) =>
          [
            `<b>${algorithm.label}</b>, step size ${run.eta}, seed ${run.seed}`,
            `F \u2212 F* = ${scientific(value)}`,
            `step ${step}, round ${threeDigits(step / cell.K)}`,
          ].join("<br>"),
        ),
        customdata: points.map(() => ({ eta: run.eta, seed: run.seed })),
      };
    });
}

function lineOf({ colour, symbol }) {
  const color = inkOf(colour);
  return {
    mode: "lines+markers",
    line: { color, width: 2 },
    marker: { color, symbol, size: isNarrow() ? 6 : 8 },
    hovertemplate: "%{text}<extra></extra>",
  };
}
