// How the figure looks: axes, fonts, and the colours of a light or dark page.

const AXIS_TITLES = {
  M: "workers M",
  K: "local steps K",
  steps: "steps of each worker",
  rounds: "communication rounds R",
  megabytes: "megabytes sent per worker",
};

function plotLayout(view, curves, narrow = isNarrow()) {
  return {
    // Keeps the reader's zoom unless another view is chosen.
    uirevision: VIEW_CONTROLS.map((id) => $(id).value).join(),
    xaxis: xAxis(view, curves, narrow),
    yaxis: yAxis(view, curves),
    font: { family: "system-ui, sans-serif", size: narrow ? 12 : 14, color: themeColour("--ink") },
    hoverlabel: {
      bgcolor: themeColour("--panel"),
      bordercolor: themeColour("--line"),
      font: { color: themeColour("--ink") },
      align: "left",
    },
    modebar: {
      bgcolor: "rgba(0,0,0,0)",
      color: themeColour("--quiet"),
      activecolor: themeColour("--ink"),
    },
    hovermode: "closest",
    showlegend: false,
    // On a phone, dragging scrolls the page.
    dragmode: narrow ? false : "zoom",
    margin: { l: narrow ? 48 : 64, r: 12, t: narrow ? 12 : 28, b: 48 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    annotations: curves.length ? [] : [nothingToDraw()],
  };
}

function xAxis(view, curves, narrow) {
  const axis = { ...plainAxis(), title: { text: AXIS_TITLES[view.axis], standoff: 8 } };
  if (view.layout === "traces") return axis;
  const ticks = increasing(curves.flatMap((curve) => curve.x));
  if (view.axis === "megabytes") return { ...axis, type: "log", dtick: 1, exponentformat: "none" };
  if (ticks.length > 16) return { ...axis, type: "log" };
  // Label the powers of two themselves, every other one where there is little room.
  const every = narrow && ticks.length > 7 ? 2 : 1;
  const tickvals = ticks.filter((_, i) => (ticks.length - 1 - i) % every === 0);
  return { ...axis, type: "log", tickmode: "array", tickvals, ticktext: tickvals.map(String) };
}

function yAxis(view, curves) {
  const what = view.layout === "traces" ? "F \u2212 F*" : "suboptimality, best step size";
  const axis = { ...plainAxis(), type: "log", title: { text: what, standoff: 6 } };
  // The guide may leave the figure; the measurements may not.
  const heights = curves.filter((curve) => curve.name !== GUIDE).flatMap((curve) => curve.y);
  if (!heights.length) return axis;
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  axis.range = [Math.log10(low / 1.5), Math.log10(high * 1.5)];
  // Whole powers of ten, unless there are too few of them.
  if (high > 30 * low) axis.dtick = 1;
  return axis;
}

function plainAxis() {
  return {
    gridcolor: themeColour("--line"),
    linecolor: themeColour("--line"),
    zeroline: false,
    exponentformat: "power",
    automargin: true,
  };
}

function nothingToDraw() {
  const text = "Nothing to draw: tick an algorithm, or choose other values.";
  return { text, xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false };
}

const isNarrow = () => $("plot").clientWidth < 560;

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Black lines would be invisible on a dark page.
const visible = (colour) => (colour === "#000000" ? "var(--ink)" : colour);
const inkOf = (colour) => (colour === "#000000" ? themeColour("--ink") : colour);
