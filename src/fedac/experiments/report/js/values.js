// The figure as a table, for readers who cannot see it or want the numbers.

function fillValues(view, curves) {
  const columns = [
    { key: "name", text: "curve", words: true },
    { key: "x", text: AXIS_TITLES[view.axis], format: threeDigits },
    { key: "y", text: "suboptimality", format: scientific },
    ...(view.layout === "traces"
      ? [{ key: "seed", text: "seed" }]
      : [{ key: "range", text: "range over seeds" }]),
    { key: "eta", text: "step size" },
  ];
  const points = curves
    .filter((curve) => curve.customdata)
    .flatMap(({ name, x, y, customdata }) =>
      customdata.map((point, i) => ({ name, x: x[i], y: y[i], ...point })),
    );
  const shown = columns.filter(({ key }) => points.some((point) => point[key] !== ""));
  $("values").tHead.rows[0].replaceChildren(
    ...shown.map(({ text, words }) =>
      element("th", text, { scope: "col", ...(words ? { class: "text" } : {}) }),
    ),
  );
  fillBody($("values"), shown, points);
}
