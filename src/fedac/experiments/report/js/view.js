// The controls of the figure, and the view that the reader has chosen with them.

const VIEW_CONTROLS = ["layout", "problem", "M", "K", "unit"];
const FIXED = { M: ["K"], K: ["M"], rounds: ["M"], traces: ["M", "K"] };

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
  offer("unit", [...(layout === "traces" ? ["steps"] : []), "rounds", "megabytes"]);
  const hasUnit = layout === "rounds" || layout === "traces";
  setVisible($("unit"), hasUnit);
  const published = layout !== "traces" && here.some((cell) => cell.published !== null);
  setVisible($("published"), published);
  setVisible($("guide"), layout === "M");

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
    published: $("published").checked,
    guide: $("guide").checked,
    cells: shown.filter((cell) => ticked.includes(cell.algorithm)),
  };
}

// A checkbox per algorithm, with its line and marker as in the figure.
function addAlgorithmBoxes(algorithms) {
  for (const { label, colour, glyph } of algorithms) {
    const box = element("input", { type: "checkbox", value: label, checked: "" });
    const line = element("span", { "aria-hidden": "true" }, `\u2501${glyph}\u2501`);
    line.style.color = visible(colour);
    $("algorithms").append(element("label", { class: "tick" }, box, line, label));
  }
}
