// The controls of the figure, and the view that the reader has chosen with them.

const VIEW_CONTROLS = ["layout", "problem", "M", "K", "metric", "unit"];
// What is on the vertical axis: its title, where a cell and a run have it, how it is written.
const METRICS = {
  suboptimality: {
    title: "suboptimality",
    tuned: ["middle", "low", "high"],
    along: "values",
    format: scientific,
    scale: "log",
  },
  "training loss": {
    title: "training loss",
    tuned: ["middle", "low", "high"],
    along: "values",
    format: scientific,
    scale: "log",
  },
  "test accuracy": onTest("test accuracy", "accuracy", "accuracies"),
  "test AUC": onTest("test AUC", "auc"),
  "test log loss": onTest("test log loss", "log_loss"),
  "test R2": onTest("test R2", "r2"),
  "test MAE": onTest("test MAE", "mae"),
  "test top-5": onTest("test top-5", "top_5"),
  "test perplexity": onTest("test perplexity", "perplexity"),
  "client loss spread": onTest("client loss spread", "client_loss_spread", "client_loss_spread"),
  "worst-client loss": onTest("worst-client loss", "client_loss_worst", "client_loss_worst"),
};

function onTest(title, name, along = `test_${name}`) {
  const tuned = [name, `${name}_low`, `${name}_high`];
  return { title, tuned, along, format: (value) => value.toFixed(4), scale: "linear" };
}

const FIXED = { M: ["K"], K: ["M"], rounds: ["M"], traces: ["M", "K"] };

const namesOf = (problems) => problems.map(({ problem }) => problem);

// Offer what there is, from left to right: each choice depends on those before it.
function chooseView({ problems, cells, traces }) {
  const layout = $("layout").value;
  const problem = problems.find((each) => each.problem === $("problem").value);
  const here = cells.filter((cell) => cell.problem === problem.problem);
  const workers = increasing(here.map((cell) => cell.M));
  const steps = increasing(here.map((cell) => cell.K));
  offer("M", workers, workers.at(-1));
  offer("K", steps, steps.filter((K) => K <= 64).at(-1));
  for (const axis of ["M", "K"]) setVisible($(axis), FIXED[layout].includes(axis));
  const shown = here.filter((cell) =>
    FIXED[layout].every((axis) => String(cell[axis]) === $(axis).value),
  );

  const indices = new Set(shown.map((cell) => cell.index));
  const etas = traces.filter((run) => indices.has(run.cell)).map((run) => run.eta);
  offer("eta", ["best", ...increasing(etas)]);
  setVisible($("eta"), layout === "traces");
  offer("unit", [...(layout === "traces" ? ["steps"] : []), "rounds", "megabytes", "seconds"]);
  const hasUnit = layout === "rounds" || layout === "traces";
  setVisible($("unit"), hasUnit);
  const runs = traces.filter((run) => indices.has(run.cell));
  const other = problem.network ? "suboptimality" : "training loss";
  const metrics = Object.keys(METRICS).filter(
    (name) => name !== other && runs.some((run) => run[METRICS[name].along]),
  );
  offer("metric", metrics);
  setVisible($("metric"), metrics.length > 1);
  const metric = METRICS[$("metric").value];
  const losses = metric === METRICS.suboptimality;
  const published = layout !== "traces" && here.some((cell) => cell.published !== null);
  setVisible($("published"), published && losses);
  setVisible($("guide"), layout === "M" && losses);

  const boxes = [...$("algorithms").querySelectorAll("input")];
  for (const box of boxes) setVisible(box, here.some((cell) => cell.algorithm === box.value));
  const ticked = boxes.filter((box) => box.checked).map((box) => box.value);
  return {
    layout,
    problem,
    // What is on the horizontal axis.
    axis: hasUnit ? $("unit").value : layout,
    M: $("M").value,
    K: $("K").value,
    eta: $("eta").value,
    metric,
    published: losses && $("published").checked,
    guide: losses && $("guide").checked,
    cells: shown
      .filter((cell) => ticked.includes(cell.algorithm))
      .map((cell) => measured(cell, metric)),
  };
}

// The cell with the middle and the band of what is drawn.
function measured(cell, { tuned }) {
  const [middle, low, high] = tuned.map((name) => cell[name] ?? null);
  return { ...cell, middle, low, high };
}
