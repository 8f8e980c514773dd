// Unpack the data and the library, then draw the page from top to bottom.

// They are compressed so that the file is small enough to be mailed.
async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function asReport(data) {
  const tables = ["problems", "algorithms", "cells", "headlines", "traces"];
  const report = { ...data, ...Object.fromEntries(tables.map((name) => [name, rows(data[name])])) };
  for (const cell of report.cells) cell.rounds = report.problems[cell.problem].T / cell.K;
  const algorithmOf = (run) => report.cells[run.cell].algorithm;
  report.traces.sort((a, b) => algorithmOf(a) - algorithmOf(b));
  return report;
}

async function start() {
  if (!("DecompressionStream" in window)) {
    $("notice").textContent = "This report needs a browser from 2023 or later.";
    return;
  }
  const [library, data] = await Promise.all(["plotly-packed", "data-packed"].map(unpack));
  document.head.append(element("script", library));
  document.querySelector("main").hidden = false;
  const report = asReport(JSON.parse(data));
  drawHeadline(report);
  drawFigure(report, window.Plotly);
  drawComparison(report);
  for (const [term, text] of report.made) {
    $("made").append(element("dt", term), element("dd", text));
  }
  hintAtScrolling();
  $("notice").hidden = true;
  document.body.dataset.drawn = "yes";
}

start().catch((error) => {
  $("notice").textContent = `The report could not be drawn: ${error.message}`;
  throw error;
});
