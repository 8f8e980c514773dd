// The controls of the figure, and the view that the reader has chosen with them.

const VIEW_CONTROLS = ["layout", "dataset", "l2", "T", "M", "K", "unit"];
const FIXED = { M: ["K"], K: ["M"], rounds: ["M"], traces: ["M", "K"] };

// Offer what there is, from left to right: each choice depends on those before it.
function chooseView(report) {
  const { problems, cells, traces } = report;
  const first = problems[report.first_problem];
  const layout = $("layout").value;

  const offerOf = (name, from, preferred) => {
    const values = distinct(from.map((problem) => problem[name]));
    offer($(name), values, preferred);
    return from.filter((problem) => String(problem[name]) === $(name).value);
  };
  const sameData = offerOf("dataset", problems, first.dataset);
  const sameL2 = offerOf("l2", sameData, first.l2);
  const [problem] = offerOf("T", sameL2);
  setVisible($("T"), sameL2.length > 1);

  const here = cells.filter((cell) => cell.problem === problem.index);
  const workers = increasing(here.map((cell) => cell.M));
  const steps = increasing(here.map((cell) => cell.K));
  offer($("M"), workers, workers.at(-1));
  offer($("K"), steps, steps.filter((K) => K <= 64).at(-1));
  for (const axis of ["M", "K"]) setVisible($(axis), FIXED[layout].includes(axis));
  const shown = here.filter((cell) =>
    FIXED[layout].every((axis) => String(cell[axis]) === $(axis).value),
  );

  offer($("eta"), [["best", "best of each"], ...etasOf(shown, traces)]);
  setVisible($("eta"), layout === "traces");
  const units = [
    ["rounds", "rounds"],
    ["megabytes", "megabytes sent per worker"],
  ];
  offer($("unit"), layout === "traces" ? [["steps", "steps"], ...units] : units);
  setVisible($("unit"), layout === "rounds" || layout === "traces");
  const published = layout !== "traces" && here.some((cell) => cell.published !== null);
  setVisible($("published"), published);
  setVisible($("guide"), layout === "M");

  const hidden = new Set();
  for (const box of $("algorithms").querySelectorAll("input")) {
    const algorithm = Number(box.dataset.index);
    setVisible(box, here.some((cell) => cell.algorithm === algorithm));
    if (!box.checked) hidden.add(algorithm);
  }
  return {
    layout,
    problem,
    // What is on the horizontal axis.
    axis: layout === "rounds" || layout === "traces" ? $("unit").value : layout,
    M: $("M").value,
    K: $("K").value,
    eta: $("eta").value,
    published: $("published").checked,
    guide: $("guide").checked,
    cells: shown.filter((cell) => !hidden.has(cell.algorithm)),
  };
}

function etasOf(shown, traces) {
  const indices = new Set(shown.map((cell) => cell.index));
  return increasing(traces.filter((run) => indices.has(run.cell)).map((run) => run.eta));
}

// A checkbox per algorithm, with its line and marker as in the figure.
function addAlgorithmBoxes(report, update) {
  for (const { index, name, label, colour, symbol } of report.algorithms) {
    const attributes = { type: "checkbox", value: name, checked: "", "data-index": index };
    const box = element("input", "", attributes);
    const line = element("label", "");
    line.append(box, swatch(visible(colour), symbol), label);
    $("algorithms").append(line);
    box.addEventListener("change", update);
  }
}

const SHAPES = {
  circle: "M14 2.5a4.5 4.5 0 1 0 .01 0z",
  square: "M10 3h8v8h-8z",
  diamond: "M14 1.5 19.5 7 14 12.5 8.5 7z",
  cross: "M12.5 2h3v3.5H19v3h-3.5V12h-3V8.5H9v-3h3.5z",
  x: "M10 2l4 4 4-4 1.5 1.5-4 3.5 4 3.5L18 12l-4-4-4 4-1.5-1.5 4-3.5-4-3.5z",
  star: "M14 1 15.6 5.2 20 5.4 16.6 8.2 17.8 12.5 14 10 10.2 12.5 11.4 8.2 8 5.4 12.4 5.2z",
  pentagon: "M14 2 19 5.7 17 12H11L9 5.7z",
  hexagon: "M11.5 2.5h5L19 7l-2.5 4.5h-5L9 7z",
  "triangle-up": "M14 2 19 11H9z",
  "triangle-down": "M14 12 19 3H9z",
  "triangle-left": "M9 7 18 2v10z",
  "triangle-right": "M19 7 10 2v10z",
};

function swatch(colour, symbol) {
  const draw = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const svg = draw("svg", { class: "swatch", viewBox: "0 0 28 14", "aria-hidden": "true" });
  svg.append(
    draw("path", { d: "M0 7H28", stroke: colour, "stroke-width": 2 }),
    draw("path", { d: SHAPES[symbol] ?? SHAPES.circle, fill: colour }),
  );
  return svg;
}
