// Figures that look like the page: its fonts, and its colours, light or dark.

const NARROW = matchMedia("(max-width: 600px)");
const DARK = matchMedia("(prefers-color-scheme: dark)");

function plotOptions() {
  return {
    displaylogo: false,
    responsive: true,
    displayModeBar: NARROW.matches ? false : "hover",
    modeBarButtons: [["resetScale2d"]],
  };
}

function plainLayout(curves, narrow = NARROW.matches) {
  return {
    font: { family: "system-ui, sans-serif", size: narrow ? 12 : 14, color: themeColour("--ink") },
    hoverlabel: { align: "left" },
    hovermode: "closest",
    showlegend: false,
    // On a phone, dragging scrolls the page.
    dragmode: narrow ? false : "zoom",
    margin: { l: narrow ? 48 : 64, r: 12, t: narrow ? 12 : 28, b: 48 },
    paper_bgcolor: themeColour("--paper"),
    plot_bgcolor: themeColour("--paper"),
    annotations: curves.length ? [] : [nothingToDraw()],
  };
}

function plainAxis(text) {
  return {
    title: { text, standoff: 8 },
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

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Black lines would be invisible on a dark page.
const visible = (colour) => (colour === "#000000" ? "var(--ink)" : colour);
const inkOf = (colour) => (colour === "#000000" ? themeColour("--ink") : colour);
