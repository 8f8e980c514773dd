// The page's tables. A column is [key, heading, format]; the first one names its row.

// Fill a table, without the columns that have no values.
function fillTable(table, columns, records, asHeading = ([, text]) => text) {
  const isEmpty = (value) => (value ?? "") === "";
  const used = columns.filter(([key]) => records.some((record) => !isEmpty(record[key])));
  const head = used.map((column) =>
    element("th", { scope: "col", "data-key": column[0] }, asHeading(column)),
  );
  const cells = (record) =>
    used.map(([key, , format = String], i) =>
      element(
        i ? "td" : "th",
        i ? {} : { scope: "row" },
        isEmpty(record[key]) ? "" : format(record[key]),
      ),
    );
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...records.map((record) => element("tr", {}, ...cells(record)))),
  );
}

// A table that is wider than its box says so.
function hintAtScrolling(box) {
  const hint = element("p", { class: "small" }, "\u2194 Scroll the table sideways to see all of it.");
  box.after(hint);
  const watcher = new ResizeObserver(() => {
    hint.hidden = box.scrollWidth <= box.clientWidth + 1;
  });
  for (const watched of [box, box.firstElementChild]) watcher.observe(watched);
}
