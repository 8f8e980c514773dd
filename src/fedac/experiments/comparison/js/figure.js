// The suboptimality, or loss, of every method against its cost.

const BEST = "best of each method";
const UNITS = {
  rounds: "rounds",
  megabytes: "megabytes per client, up and down",
  seconds: "seconds",
};
const HOVER =
  "<b>%{fullData.name}</b>, %{customdata.set}<br>%{customdata.measure} %{customdata.height}<br>" +
  "round %{customdata.rounds}, %{customdata.megabytes:.3~g} MB, " +
  "%{customdata.seconds:.3~g} seconds<extra></extra>";

function drawFigure(report, Plotly) {
  function update() {
    const chosen = chosenRows(report);
    const drawn = chosen.filter(({ row }) => row.middle !== null);
    const lines = drawn.map((each) => lineOf(each, report));
    // Bands first, so that they cover no line.
    const bands = drawn.map(({ line }, i) => band(lines[i].customdata, line));
    const curves = [...bands, ...lines];
    Plotly.react($("plot"), curves, figureLayout(report, lines), plotOptions());
    $("caption").textContent = figureCaption(report, chosen);
  }

  offer("unit", Object.keys(UNITS), "seconds");
  const local = report.rows.filter(({ all_clients }) => !all_clients);
  offerSeveral("K", increasing(local.map(({ K }) => K)), BEST);
  addBoxes("lines", report.lines);
  $("plot").closest("section").addEventListener("change", update);
  for (const media of [DARK, NARROW]) media.addEventListener("change", update);
  update();
}

// The ticked lines with their row at the chosen K, which baselines do not have; rows come best first.
function chosenRows({ lines, rows }) {
  const ticked = [...$("lines").querySelectorAll(":checked")].map((box) => box.value);
  const K = $("K").value;
  return lines
    .filter(({ label }) => ticked.includes(label))
    .map((line) => ({
      line,
      row: rows.find(
        (row) => row.line === line.label && (K === BEST || row.all_clients || String(row.K) === K),
      ),
    }));
}

function lineOf({ line, row }, { records, measure }) {
  const unit = $("unit").value;
  const set = row.all_clients ? "full gradients" : `K = ${row.K}`;
  const points = records.map((rounds, i) => {
    const [y, low, high] = [row.middle[i], row.low[i], row.high[i]];
    const costs = { rounds, megabytes: rounds * row.megabytes_per_round, seconds: row.elapsed[i] };
    const height = withBrackets([y, low, high]);
    return { x: costs[unit], y, low, high, height, ...costs, set, measure };
  });
  const drawn = curve(line, points, HOVER);
  return { ...drawn, baseline: row.all_clients, marker: { ...drawn.marker, maxdisplayed: 8 } };
}

function figureLayout({ target, measure }, lines) {
  // L-BFGS continues down to rounding errors, where there is nothing else to see.
  const measured = lines.filter(({ baseline }) => !baseline);
  const heights = (measured.length ? measured : lines).flatMap(({ customdata }) =>
    customdata.flatMap(({ low, high }) => [low, high]),
  );
  const aim = typeof target === "number" ? target : Infinity; // or a metric on the test set
  const [low, high] = [Math.min(...heights, aim), Math.max(...heights)];
  const yaxis = { ...plainAxis(measure), type: "log" };
  if (lines.length) yaxis.range = [Math.log10(low / 2), Math.log10(high * 1.1)];
  if (high > 30 * low) yaxis.dtick = 1;
  return {
    ...plainLayout(lines),
    uirevision: [$("unit").value, $("K").value].join(),
    xaxis: { ...plainAxis(UNITS[$("unit").value]), rangemode: "tozero" },
    yaxis,
    shapes: aim === Infinity ? [] : [targetLine(target)],
  };
}

function targetLine(target) {
  const color = themeColour("--quiet");
  return {
    type: "line",
    xref: "paper",
    x0: 0,
    x1: 1,
    y0: target,
    y1: target,
    line: { color, width: 1.5, dash: "dash" },
    label: { text: `target ${target}`, textposition: "end", yanchor: "bottom", font: { color } },
  };
}

function figureCaption({ repeats, target }, chosen) {
  const sentences = [`Lines: geometric mean of ${repeats} fresh seeds; bands: their range.`];
  if ($("unit").value === "seconds") sentences.push("Seconds: mean of the seeds.");
  if (typeof target === "number") sentences.push(`Horizontal line: the target, ${target}.`);
  const diverged = chosen.filter(({ row }) => row.middle === null).map(({ line }) => line.label);
  if (diverged.length) {
    sentences.push(`Not drawn, because a seed diverged: ${diverged.join("; ")}.`);
  }
  return sentences.join(" ");
}
