// Unpack the data and the library, then draw the page from top to bottom.

// They are compressed so that the file is small enough to be mailed.
async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function start() {
  const [library, data] = await Promise.all(["plotly-packed", "data-packed"].map(unpack));
  document.head.append(element("script", {}, library));
  document.querySelector("main").hidden = false;
  const report = JSON.parse(data);
  for (const table of ["problems", "algorithms", "cells", "headlines", "traces"]) {
    report[table] = rows(report[table]);
  }
  drawHeadline(report);
  drawFigure(report, window.Plotly);
  drawComparison(report);
  for (const [term, text] of report.made) {
    $("made").append(element("dt", {}, term), element("dd", {}, text));
  }
  document.querySelectorAll(".scroll").forEach(hintAtScrolling);
  $("notice").hidden = true;
  document.body.dataset.drawn = "yes";
}

start().catch((error) => {
  $("notice").textContent =
    `The report could not be drawn: ${error.message}. It needs a browser from 2023 or later.`;
  throw error;
});
