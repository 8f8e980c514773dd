// What the figure draws, as plotly's traces. The points of a curve are its `customdata`, which
// the labels at the pointer and the table of values show.

const GUIDE = "linear speedup";
const TUNED_HOVER =
  "<b>%{fullData.name}</b>%{customdata.note}<br>%{customdata.height}<br>" +
  "M = %{customdata.M}, K = %{customdata.K}, R = %{customdata.rounds:.3~f}<br>" +
  "step size %{customdata.eta}<br>%{customdata.megabytes:.3~g} MB per client, %{customdata.seconds:.3~g} seconds<extra></extra>";
const PROGRESS_HOVER =
  "<b>%{fullData.name}</b>, step size %{customdata.eta}, seed %{customdata.seed}<br>" +
  "%{customdata.height}<br>" +
  "step %{customdata.step}, round %{customdata.round:.3~f}<extra></extra>";

function curvesOf(view, report) {
  return view.layout === "traces" ? progressCurves(view, report) : tunedCurves(view, report);
}

// Each cell at its best step size, a curve per algorithm.
function tunedCurves(view, report) {
  const curves = [];
  // A confidence interval may reach below zero; its band then ends at the lowest point drawn.
  const floor = Math.min(
    ...view.cells.flatMap(({ middle, low }) => [middle, low]).filter((value) => value > 0),
  );
  for (const algorithm of report.algorithms) {
    const mine = view.cells
      .filter((cell) => cell.algorithm === algorithm.label)
      .map((cell) => ({ ...cell, x: cell[view.axis], note: "" }))
      // Along the rounds, also where fewer of them took more seconds.
      .sort((a, b) => (view.layout === "rounds" ? a.rounds - b.rounds : a.x - b.x));
    // A logarithmic axis has no place for zero.
    const ours = mine.filter((cell) => cell.middle > 0);
    const spread = ours
      .filter((cell) => cell.high !== null)
      .map((cell) => ({ ...cell, low: Math.max(cell.low, floor) }));
    const theirs = mine.filter((cell) => cell.published > 0 && view.published);
    if (spread.some((cell) => cell.low < cell.high)) curves.push(band(spread, algorithm));
    const points = ours.map((cell) => ourPoint(cell, view.metric, report.seeds));
    if (ours.length) curves.push(curve(algorithm, points, TUNED_HOVER));
    if (theirs.length) curves.push(publishedCurve(algorithm, theirs, view.metric));
  }
  if (view.layout === "M" && view.guide && curves.length) curves.push(guide(view.cells));
  return curves;
}

function ourPoint(cell, { title, format }, seeds) {
  const height = `${title} ${format(cell.middle)}`;
  const point = { ...cell, height, y: cell.middle, eta: cell.step_size };
  if (cell.seeds === 1) return point;
  const high = cell.high === null ? "diverged" : format(cell.high);
  const range = `${format(cell.low)} to ${high}`;
  return { ...point, range, note: `, ${seeds.middle} of ${cell.seeds} seeds` };
}

function publishedCurve(algorithm, cells, { title, format }) {
  const points = cells.map((cell) => ({
    ...cell,
    height: `${title} ${format(cell.published)}`,
    y: cell.published,
    eta: cell.published_eta,
  }));
  const drawn = curve(algorithm, points, TUNED_HOVER);
  const marker = { symbol: `${algorithm.symbol}-open`, size: NARROW.matches ? 10 : 13 };
  return {
    ...drawn,
    name: `${algorithm.label}, published`,
    mode: "markers",
    marker: { ...drawn.marker, ...marker, line: { width: 1.5 } },
  };
}

// With m times the workers, one m-th of the suboptimality: from the best of the fewest workers.
function guide(cells) {
  const workers = increasing(cells.map((cell) => cell.M));
  const first = cells.filter((cell) => cell.M === workers[0] && cell.middle > 0);
  const start = Math.min(...first.map((cell) => cell.middle));
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
  const { along, title, format } = view.metric;
  const isChosen = (run) => (view.eta === "best" ? run.best : String(run.eta) === view.eta);
  const curves = report.traces
    .filter((run) => shown.has(run.cell) && isChosen(run) && run[along])
    .map(({ cell: index, steps, eta, seed, seconds, [along]: values }) => {
      const cell = report.cells[index];
      const algorithm = report.algorithms.find(({ label }) => label === cell.algorithm);
      // All rounds of a run cost the same; where stragglers differ, this is their mean.
      const ends = { steps: view.problem.T, rounds: cell.rounds, megabytes: cell.megabytes, seconds };
      const perStep = ends[view.axis] / view.problem.T;
      const points = report.steps[steps].map((step, i) => {
        const x = step * perStep;
        const height = `${title} ${format(values[i] ?? 0)}`;
        return { x, y: values[i], height, step, round: step / cell.K, eta, seed };
      });
      return curve(algorithm, points.filter(({ y }) => y > 0), PROGRESS_HOVER);
    });
  // The legend of a saved picture lists an algorithm once.
  curves.forEach((line, i) => {
    line.showlegend = line.name !== curves[i - 1]?.name;
  });
  return curves;
}
