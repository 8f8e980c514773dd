// The lines of a figure, and the boxes with which a reader chooses among them.

const STROKES = { dash: "\u254d", dot: "\u2509", dashdot: "\u254c" };

function curve({ label, colour, symbol, dash }, points, hovertemplate) {
  const color = inkOf(colour);
  return {
    name: label,
    x: points.map(({ x }) => x),
    y: points.map(({ y }) => y),
    customdata: points,
    hovertemplate,
    mode: "lines+markers",
    line: { color, width: 2, dash },
    marker: { color, symbol, size: NARROW.matches ? 6 : 8 },
  };
}

// Over the seeds: what it is from and to, the caption says.
function band(cells, { colour }) {
  const back = [...cells].reverse();
  return {
    name: "seeds",
    x: [...cells, ...back].map(({ x }) => x),
    y: [...cells.map((cell) => cell.high), ...back.map((cell) => cell.low)],
    fill: "toself",
    fillcolor: `${inkOf(colour)}30`,
    mode: "none",
    hoverinfo: "skip",
    showlegend: false,
  };
}

// A checkbox per algorithm, with its line and marker as in the figure.
function addBoxes(id, algorithms) {
  for (const { label, colour, glyph, dash, ticked = true } of algorithms) {
    const box = element("input", { type: "checkbox", value: label });
    box.checked = ticked;
    const stroke = STROKES[dash] ?? "\u2501";
    const line = element("span", { "aria-hidden": "true" }, stroke + glyph + stroke);
    line.style.color = visible(colour);
    $(id).append(element("label", { class: "tick" }, box, line, label));
  }
}
