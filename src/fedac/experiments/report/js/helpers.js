"use strict";

// Small tools that the other scripts share. Text from the store reaches the page through
// textContent only, never as markup.

const $ = (id) => document.getElementById(id);

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Tables come as columns, which compress better than rows.
function rows(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, index) => ({
    index,
    ...Object.fromEntries(names.map((name) => [name, columns[name][index]])),
  }));
}

const distinct = (values) => [...new Set(values)];
const increasing = (values) => distinct(values).sort((a, b) => a - b);
const scientific = (value) => (value === null ? "" : value.toExponential(2).replace("e+0", ""));
// Whole numbers keep all their digits: 4096 rounds are not 4100.
const threeDigits = (value) =>
  value === null ? "" : String(Number.isInteger(value) ? value : Number(value.toPrecision(3)));

function problemText(report, { dataset, l2, T }) {
  const several = distinct(report.problems.map((problem) => problem.T)).length > 1;
  return `${dataset}, l2 = ${l2}` + (several ? `, T = ${T}` : "");
}

// Fill a select with values, or pairs [value, text]. The current choice stays if it is offered.
function offer(select, choices, preferred) {
  const before = select.value;
  const options = choices.map((choice) => [].concat(choice));
  select.replaceChildren(
    ...options.map(([value, text = value]) => element("option", text, { value })),
  );
  const values = options.map(([value]) => String(value));
  const wanted = [before, String(preferred), values[0]];
  select.value = wanted.find((value) => values.includes(value)) ?? "";
}

function offerProblems(select, report, problems, ...before) {
  offer(
    select,
    [...before, ...problems.map((problem) => [problem.index, problemText(report, problem)])],
    report.first_problem,
  );
  setVisible(select, problems.length > 1);
}

function setVisible(control, visible) {
  control.closest("label").hidden = !visible;
}

function onChange(ids, update) {
  for (const id of ids) $(id).addEventListener("change", update);
}

// Fill the body of a table. A column of words is aligned to the left; the first names the row.
function fillBody(table, columns, records) {
  table.tBodies[0].replaceChildren(
    ...records.map((record) => {
      const row = element("tr", "");
      columns.forEach(({ key, words, format = (value) => value ?? "" }, i) => {
        const cell = element(i ? "td" : "th", format(record[key]), i ? {} : { scope: "row" });
        if (words) cell.className = "text";
        row.append(cell);
      });
      return row;
    }),
  );
}

// A table that is wider than its box says so.
function hintAtScrolling() {
  const watcher = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const box = target.closest(".scroll");
      box.nextElementSibling.hidden = box.scrollWidth <= box.clientWidth + 1;
    }
  });
  for (const table of document.querySelectorAll(".scroll > table")) {
    watcher.observe(table);
    watcher.observe(table.parentElement);
  }
}
