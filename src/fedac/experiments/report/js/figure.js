// The interactive figure: its controls, its drawing, its caption, its table and its picture.

function drawFigure(report, Plotly) {
  function update() {
    const view = chooseView(report);
    const curves = curvesOf(view, report);
    Plotly.react($("plot"), curves, plotLayout(view, curves), plotOptions());
    $("caption").textContent = caption(view, curves, report);
    fillValues(view, curves, report);
  }

  function save() {
    const view = chooseView(report);
    const curves = curvesOf(view, report);
    Plotly.downloadImage(
      { data: curves, layout: pictureLayout(view, curves, report) },
      { format: "png", filename: "fedac", width: 1000, height: 640, scale: 2 },
    );
  }

  $("layout").value = report.problems[0].view;
  offerSeveral("problem", namesOf(report.problems));
  addBoxes("algorithms", report.algorithms);
  // Each layout starts with its own first unit.
  $("layout").addEventListener("change", () => $("unit").replaceChildren());
  $("plot").closest("section").addEventListener("change", update);
  $("save").addEventListener("click", save);
  for (const media of [DARK, NARROW]) media.addEventListener("change", update);
  update();
}

function caption({ layout, axis, problem, cells, M, K }, curves, { seeds, link, stragglers }) {
  const shape = [problem.n_samples, problem.n_features].map((n) => n.toLocaleString("en"));
  const width = problem.network ? "parameters" : "features";
  const parts = [
    `${problem.dataset}: ${shape[0]} samples, ${shape[1]} ${width}`,
    `l2 = ${problem.l2}`,
    `T = ${problem.T}`,
  ];
  if (problem.federation) parts.push(problem.federation);
  if (FIXED[layout].includes("M")) parts.push(`M = ${M}`);
  if (FIXED[layout].includes("K")) parts.push(`K = ${K}`);
  const sentences = [`${parts.join(", ")}.`];
  if (problem.f_star !== null) sentences.push(`F* = ${problem.f_star}.`);
  if (curves.length && layout !== "traces") {
    if (problem.seeds > 1) {
      sentences.push(`Lines: ${seeds.middle} of ${problem.seeds} seeds; bands: ${seeds.band}.`);
    }
    const atEdge = cells.filter((cell) => cell.edge).length;
    if (atEdge) {
      const where = `${atEdge} of ${cells.length} cells`;
      sentences.push(`Best step size at an edge of those tried in ${where}.`);
    }
    const diverged = cells.filter((cell) => cell.middle === null).length;
    if (diverged) sentences.push(`Not drawn: ${diverged} cells in which runs diverged.`);
  }
  if (axis === "seconds") {
    sentences.push(`Seconds on the link ${link}.`);
    if (stragglers && layout === "traces") sentences.push("Rounds of a run: their mean seconds.");
  }
  return sentences.join(" ");
}

// The figure as a table, for readers who cannot see it or want the numbers.
function fillValues(view, curves, { seeds }) {
  const columns = [
    ["name", "curve"],
    ["x", AXIS_TITLES[view.axis], threeDigits],
    ["y", view.metric.title, view.metric.format],
    ["range", `${seeds.band} over seeds`],
    ["seed", "seed"],
    ["eta", "step size"],
  ];
  const points = curves.flatMap(({ name, customdata = [] }) =>
    customdata.map((point) => ({ ...point, name })),
  );
  fillTable($("values"), columns, points);
}
