// Unpack the data and the library, then let a report draw itself.

// They are compressed so that the file is small enough to be mailed.
async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// `draw` is called with the data and plotly.
async function unpackAndDraw(draw) {
  const [library, data] = await Promise.all(["plotly-packed", "data-packed"].map(unpack));
  document.head.append(element("script", {}, library));
  document.querySelector("main").hidden = false;
  draw(JSON.parse(data), window.Plotly);
  document.querySelectorAll(".scroll").forEach(hintAtScrolling);
  $("notice").hidden = true;
  document.body.dataset.drawn = "yes";
}

function start(draw) {
  unpackAndDraw(draw).catch((error) => {
    $("notice").textContent =
      `The report could not be drawn: ${error.message}. It needs a browser from 2023 or later.`;
    throw error;
  });
}

// Terms and their descriptions.
function fillTerms(list, pairs) {
  for (const [term, text] of pairs) list.append(element("dt", {}, term), element("dd", {}, text));
}
