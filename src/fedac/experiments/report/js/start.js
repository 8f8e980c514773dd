// Draw the page from top to bottom.

start((report, Plotly) => {
  for (const table of ["problems", "algorithms", "cells", "headlines", "traces"]) {
    report[table] = rows(report[table]);
  }
  drawHeadline(report);
  drawFigure(report, Plotly);
  drawComparison(report);
  fillTerms($("made"), report.made);
});
