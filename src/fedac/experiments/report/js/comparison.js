// Our runs and the published ones, in a table that can be sorted and filtered.

const COMPARISON_COLUMNS = [
  ["algorithm", "algorithm"],
  ["M", "M"],
  ["K", "K"],
  ["middle", "suboptimality", scientific],
  ["published", "published", scientific],
  ["log2_ratio", "log2 ratio", (value) => value.toFixed(2)],
  ["deviation", "|log2|", (value) => value.toFixed(2)],
  ["step_size", "step size"],
  ["published_eta", "published step size"],
  ["problem", "problem"],
];

function drawComparison(report) {
  const compared = report.cells.filter((cell) => cell.published !== null);
  $("comparison-section").hidden = !compared.length;
  const present = (key, value) => compared.some((cell) => cell[key] === value);
  const problems = report.problems.filter(({ problem }) => present("problem", problem));
  const columns = COMPARISON_COLUMNS.filter(([key]) => key !== "problem" || problems.length > 1);
  const show = sortable($("comparison"), columns, { key: "deviation", sign: -1 });
  const many = (cell) => cell.M >= report.many_workers;

  function update() {
    const isChosen = (key) => (cell) => ["all", cell[key]].includes($(`filter-${key}`).value);
    const chosen = compared
      .filter(isChosen("algorithm"))
      .filter(isChosen("problem"))
      .filter((cell) => !$("filter-many").checked || many(cell));
    show(chosen);
    $("comparison-summary").textContent = summary(chosen.map((cell) => cell.deviation));
  }

  const algorithms = report.algorithms.map(({ label }) => label);
  offer("filter-algorithm", ["all", ...algorithms.filter((label) => present("algorithm", label))]);
  offerSeveral("filter-problem", namesOf(problems), "all");
  $("many-workers").textContent = report.many_workers;
  $("filter-many").checked = compared.some(many);
  setVisible($("filter-many"), compared.some(many));
  $("comparison-section").addEventListener("change", update);
  update();
}

function summary(deviations) {
  if (!deviations.length) return "None of these cells was published.";
  const sorted = deviations.sort((a, b) => a - b);
  const quantile = (q) => {
    const place = q * (sorted.length - 1);
    const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
    return below + (place % 1) * (above - below);
  };
  return (
    `${sorted.length} cells compared; |log2(ours/published)|: ` +
    `median ${quantile(0.5).toFixed(2)}, 95th percentile ${quantile(0.95).toFixed(2)}.`
  );
}
