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

// On a dark page black becomes the ink, and other dark colours lighter, until text in them is readable.
const visible = (colour) =>
  colour === "#000000" ? "var(--ink)" : `light-dark(${colour}, ${lightened(colour)})`;

function inkOf(colour) {
  if (colour === "#000000") return themeColour("--ink");
  return DARK.matches ? lightened(colour) : colour;
}

function lightened(colour) {
  let rgb = colour.match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16));
  while (luminance(rgb) < 0.23) rgb = rgb.map((channel) => channel + (255 - channel) / 10);
  return `#${rgb.map((channel) => Math.round(channel).toString(16).padStart(2, "0")).join("")}`;
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((channel) => (channel / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
