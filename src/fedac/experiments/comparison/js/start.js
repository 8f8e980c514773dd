// Draw the page from top to bottom.

start((report, Plotly) => {
  for (const table of ["lines", "rows"]) report[table] = rows(report[table]);
  const [first, ...others] = report.sentences;
  $("verdict").textContent = first;
  $("details").append(...others.map((sentence) => element("li", {}, sentence)));
  $("link").textContent = report.link;
  drawFigure(report, Plotly);
  drawRows(report);
  fillTerms($("notes"), report.notes);
});
