// The page's tables. A column is [key, heading, format]; the first one names its row. A format gets
// the value and its record.

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
        isEmpty(record[key]) ? "" : format(record[key], record),
      ),
    );
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...records.map((record) => element("tr", {}, ...cells(record)))),
  );
}

// A table whose headings sort it. Returns a function that shows records in the chosen order.
function sortable(table, columns, order) {
  let shown = [];
  const headOf = (key) => table.querySelector(`[data-key=${key}]`);

  function show() {
    const sorted = [...shown].sort((a, b) => order.sign * inOrder(a[order.key], b[order.key]));
    fillTable(table, columns, sorted, sortButton);
    const direction = order.sign > 0 ? "ascending" : "descending";
    headOf(order.key)?.setAttribute("aria-sort", direction);
  }

  function sortButton([key, text]) {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      Object.assign(order, { key, sign: order.key === key ? -order.sign : 1 });
      show();
      headOf(key).firstElementChild.focus();
    });
    return button;
  }

  return (records) => {
    shown = records;
    show();
  };
}

// "0.05 (smallest tried)" sorts by its number.
function inOrder(left, right) {
  const numbers = [left, right].map(parseFloat);
  if (numbers.some(Number.isNaN)) return String(left ?? "").localeCompare(String(right ?? ""));
  return numbers[0] - numbers[1] || 0; // two infinities are the same
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
