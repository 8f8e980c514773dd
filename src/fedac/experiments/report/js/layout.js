// Layout of the figure: its axes, and the legend and title of a saved picture.

const AXIS_TITLES = {
  M: "workers M",
  K: "local steps K",
  steps: "steps of each worker",
  rounds: "communication rounds R",
  megabytes: "megabytes per client, up and down",
  seconds: "seconds",
};

function plotLayout(view, curves, narrow = NARROW.matches) {
  return {
    // Keeps the reader's zoom unless another view is chosen.
    uirevision: VIEW_CONTROLS.map((id) => $(id).value).join(),
    xaxis: xAxis(view, curves, narrow),
    yaxis: yAxis(view, curves),
    ...plainLayout(curves, narrow),
  };
}

// A saved picture stands alone: it needs a legend and a title.
function pictureLayout(view, curves, report) {
  const text = caption(view, curves, report).replaceAll("<", "&lt;").replaceAll(". ", ".<br>");
  return {
    ...plotLayout(view, curves, false),
    title: { text, font: { size: 13 }, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top" },
    showlegend: true,
    legend: { orientation: "h", y: -0.16, yanchor: "top" },
    margin: { l: 70, r: 20, t: 90, b: 50 },
  };
}

function xAxis(view, curves, narrow) {
  const axis = plainAxis(AXIS_TITLES[view.axis]);
  if (view.layout === "traces") return axis;
  const ticks = increasing(curves.flatMap((curve) => curve.x));
  if (["megabytes", "seconds"].includes(view.axis)) return costAxis(axis, ticks);
  if (ticks.length > 16) return { ...axis, type: "log" };
  // Label the powers of two themselves, every other one where there is little room.
  const every = narrow && ticks.length > 7 ? 2 : 1;
  const tickvals = ticks.filter((_, i) => (ticks.length - 1 - i) % every === 0);
  return { ...axis, type: "log", tickmode: "array", tickvals, ticktext: tickvals.map(String) };
}

// Measured costs: 1, 2, 5, 10, ...; only powers of ten where that would be too many.
function costAxis(axis, costs) {
  const [low, high] = [costs[0], costs.at(-1)];
  // A link may cost nothing, which a logarithmic axis has no place for.
  if (!(low > 0) || high < 10 * low) return axis;
  const leading = high > 100 * low ? [1] : [1, 2, 5];
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) powers.push(power);
  const tickvals = powers.flatMap((power) => leading.map((digit) => Number(`${digit}e${power}`)));
  return { ...axis, type: "log", tickmode: "array", tickvals, ticktext: tickvals.map(String) };
}

function yAxis(view, curves) {
  const { title, scale } = view.metric;
  const what = view.layout === "traces" ? title : `${title}, best step size`;
  const axis = { ...plainAxis(what), type: scale };
  if (scale === "linear") return axis;
  // The guide may leave the figure; the measurements may not.
  const heights = curves.filter((curve) => curve.name !== GUIDE).flatMap((curve) => curve.y);
  if (!heights.length) return axis;
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  axis.range = [Math.log10(low / 1.5), Math.log10(high * 1.5)];
  // Whole powers of ten, unless there are too few of them.
  if (high > 30 * low) axis.dtick = 1;
  return axis;
}
