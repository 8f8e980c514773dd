"use strict";

// Small tools that the other scripts share. Text from the data becomes text nodes and attributes
// only, never markup.

const $ = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
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

const increasing = (values) => [...new Set(values)].sort((a, b) => a - b);
const scientific = (value) => value.toExponential(2).replace("e+0", "");
// Whole numbers keep all their digits: 4096 rounds are not 4100.
const threeDigits = (value) => (Number.isInteger(value) ? value : Number(value.toPrecision(3)));

// Fill a select. The current choice stays if it is offered.
function offer(id, values, preferred) {
  const texts = values.map(String);
  const wanted = [$(id).value, String(preferred), texts[0]];
  $(id).replaceChildren(...texts.map((text) => new Option(text, text)));
  $(id).value = wanted.find((text) => texts.includes(text)) ?? "";
}

// Fill a select that nobody needs where there is only one value.
function offerSeveral(id, values, ...before) {
  offer(id, [...before, ...values]);
  setVisible($(id), values.length > 1);
}

function setVisible(control, visible) {
  control.closest("label").hidden = !visible;
}
