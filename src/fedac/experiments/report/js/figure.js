// The interactive figure: its controls, its drawing, its caption, its table and its picture.

function drawFigure(report, Plotly) {
  const plot = $("plot");

  function update() {
    const view = chooseView(report);
    const curves = curvesOf(view, report);
    Plotly.react(plot, curves, plotLayout(view, curves), {
      displaylogo: false,
      responsive: true,
      displayModeBar: isNarrow() ? false : "hover",
      modeBarButtons: [["resetScale2d"]],
    });
    $("caption").textContent = caption(view, curves);
    fillValues(view, curves);
  }

  function save() {
    const view = chooseView(report);
    const curves = curvesOf(view, report);
    Plotly.downloadImage(
      { data: curves, layout: pictureLayout(view, curves) },
      { format: "png", filename: "fedac", width: 1000, height: 640, scale: 2 },
    );
  }

  $("layout").value = report.problems[report.first_problem].view;
  addAlgorithmBoxes(report, update);
  // Each layout starts with its own first unit.
  $("layout").addEventListener("change", () => $("unit").replaceChildren());
  onChange([...VIEW_CONTROLS, "eta", "published", "guide"], update);
  $("save").addEventListener("click", save);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  update();
  redrawWhenWidthChanges(plot, update);
}

// Plotly adapts the width, but not the ticks and the font.
function redrawWhenWidthChanges(plot, update) {
  let before = isNarrow();
  new ResizeObserver(() => {
    if (before === isNarrow()) return;
    before = isNarrow();
    update();
  }).observe(plot);
}

function caption({ layout, problem, cells, M, K }, curves) {
  const shape = [problem.n_samples, problem.n_features].map((n) => n.toLocaleString("en"));
  const parts = [
    `${problem.dataset}: ${shape[0]} samples, ${shape[1]} features`,
    `l2 = ${problem.l2}`,
    `T = ${problem.T}`,
    ...(layout === "M" ? [] : [`M = ${M}`]),
    ...(layout === "M" || layout === "traces" ? [`K = ${K}`] : []),
  ];
  const sentences = [`${parts.join(", ")}.`, `F* = ${problem.f_star}.`];
  if (curves.length && layout !== "traces") {
    if (problem.seeds > 1) {
      sentences.push(`Lines: median of ${problem.seeds} seeds; bands: their range.`);
    }
    const atEdge = cells.filter((cell) => cell.edge).length;
    if (atEdge) {
      const where = `${atEdge} of ${cells.length} cells`;
      sentences.push(`Best step size at an edge of those tried in ${where}.`);
    }
    const diverged = cells.filter((cell) => cell.value === null).length;
    if (diverged) sentences.push(`Not drawn: ${diverged} cells in which runs diverged.`);
  }
  return sentences.join(" ");
}

// A saved picture stands alone: it needs a legend, a title and a background.
function pictureLayout(view, curves) {
  const text = caption(view, curves).replaceAll("<", "&lt;").replaceAll(". ", ".<br>");
  return {
    ...plotLayout(view, curves, false),
    title: { text, font: { size: 13 }, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top" },
    showlegend: true,
    legend: { orientation: "h", y: -0.16, yanchor: "top" },
    margin: { l: 70, r: 20, t: 90, b: 50 },
    paper_bgcolor: themeColour("--paper"),
    plot_bgcolor: themeColour("--paper"),
  };
}
