// Our runs beside the published ones, in a table that can be sorted and filtered.

const COMPARISON_COLUMNS = [
  { key: "name", text: "algorithm", words: true },
  { key: "M", text: "M" },
  { key: "K", text: "K" },
  { key: "value", text: "suboptimality", format: scientific },
  { key: "published", text: "published", format: scientific },
  { key: "log2", text: "log2 ratio", format: (value) => value.toFixed(2) },
  { key: "off", text: "|log2|", format: (value) => value.toFixed(2) },
  { key: "step_size", text: "step size" },
  { key: "published_eta", text: "published step size" },
  { key: "data", text: "problem", words: true },
];

function drawComparison(report) {
  const compared = comparedCells(report);
  $("comparison-section").hidden = !compared.length;
  if (!compared.length) return;
  const problems = report.problems.filter(({ index }) =>
    compared.some((cell) => cell.problem === index),
  );
  const columns = COMPARISON_COLUMNS.filter(({ key }) => key !== "data" || problems.length > 1);
  const order = { key: "off", sign: -1 };
  const many = (cell) => cell.M >= report.many_workers;

  function update() {
    const algorithm = $("filter-algorithm").value;
    const problem = $("filter-problem").value;
    const chosen = compared
      .filter((cell) => !algorithm || String(cell.algorithm) === algorithm)
      .filter((cell) => !problem || String(cell.problem) === problem)
      .filter((cell) => !$("filter-many").checked || many(cell))
      .sort((a, b) => order.sign * inOrder(a[order.key], b[order.key]));
    markOrder($("comparison"), order);
    fillBody($("comparison"), columns, chosen);
    $("comparison-summary").textContent = summary(chosen.map((cell) => cell.off));
  }

  addSortButtons($("comparison"), columns, order, update);
  const present = increasing(compared.map((cell) => cell.algorithm));
  offer($("filter-algorithm"), [
    ["", "all"],
    ...present.map((i) => [i, report.algorithms[i].label]),
  ]);
  offerProblems($("filter-problem"), report, problems, ["", "all"]);
  $("filter-problem").value = "";
  $("many-workers").textContent = report.many_workers;
  $("filter-many").checked = compared.some(many);
  setVisible($("filter-many"), compared.some(many));
  onChange(["filter-algorithm", "filter-problem", "filter-many"], update);
  update();
}

function comparedCells(report) {
  return report.cells
    .filter((cell) => cell.value > 0 && cell.published > 0)
    .map((cell) => {
      const log2 = Math.log2(cell.value / cell.published);
      return {
        ...cell,
        log2,
        off: Math.abs(log2),
        name: report.algorithms[cell.algorithm].label,
        data: problemText(report, report.problems[cell.problem]),
      };
    });
}

// "0.05 (smallest tried)" sorts by its number.
function inOrder(left, right) {
  const numbers = [left, right].map(parseFloat);
  if (numbers.some(Number.isNaN)) return left.localeCompare(right);
  return numbers[0] - numbers[1];
}

function addSortButtons(table, columns, order, update) {
  for (const { key, text, words } of columns) {
    const button = element("button", text, { type: "button" });
    const head = element("th", "", { scope: "col", "data-key": key });
    if (words) head.className = "text";
    head.append(button);
    table.tHead.rows[0].append(head);
    button.addEventListener("click", () => {
      Object.assign(order, { key, sign: order.key === key ? -order.sign : 1 });
      update();
    });
  }
}

function markOrder(table, order) {
  for (const head of table.tHead.rows[0].cells) {
    if (head.dataset.key !== order.key) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
  }
}

function summary(deviations) {
  if (!deviations.length) return "No cell of this choice was published.";
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
