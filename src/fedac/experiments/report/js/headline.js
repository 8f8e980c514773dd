// "How few rounds?": rows that Python computed for every target, problem and number of workers.

function drawHeadline(report) {
  const { problems, algorithms, headlines } = report;
  offer($("target"), report.targets, problems[report.first_problem].target);
  offerProblems($("headline-problem"), report, problems);

  const columns = [
    { key: "algorithm", words: true, format: (i) => algorithms[i].label },
    { key: "rounds" },
    { key: "published" },
    { key: "paper" },
    { key: "megabytes", format: threeDigits },
    { key: "K" },
    { key: "step_size" },
    { key: "value", format: scientific },
  ];

  function update() {
    const problem = Number($("headline-problem").value);
    const here = headlines.filter((row) => row.problem === problem);
    const workers = increasing(here.map((row) => row.M));
    offer($("headline-M"), workers, workers.at(-1));
    const [target, M] = [Number($("target").value), Number($("headline-M").value)];
    const chosen = here.filter((row) => row.M === M && row.target === target);
    chosen.sort((a, b) => a.algorithm - b.algorithm);
    fillBody($("headline"), columns, chosen);
    hideEmptyColumns($("headline"));
  }

  // Each problem starts with its own target.
  $("headline-problem").addEventListener("change", ({ target: select }) => {
    $("target").value = problems[Number(select.value)].target;
  });
  onChange(["target", "headline-problem", "headline-M"], update);
  update();
}

// Nothing was published for most problems.
function hideEmptyColumns(table) {
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    const column = [...table.tBodies[0].rows].map((row) => row.cells[i]);
    const empty = column.every((cell) => !cell.textContent);
    for (const cell of [head, ...column]) cell.hidden = empty;
  });
}
