// Tables of numbers sort by any column: a click, or Enter, on its heading; a third one restores the
// order of the page. Intervals sort by the number before them, and what is no number comes last.
function numberOf(cell) {
  const found = cell.textContent.trim().match(/^[<>~≈]?\s*([-+−]?[\d,]*\.?\d+(?:e[-+]?\d+)?)/i);
  return found ? Number(found[1].replaceAll(",", "").replace("−", "-")) : NaN;
}

function sortable(table) {
  const heads = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  const rows = body ? [...body.rows] : [];
  // Where the first cell is empty, a row belongs to the one above it.
  if (rows.length < 3 || rows.some((row) => !row.cells[0].textContent.trim())) return;
  const numbers = heads.map((_, column) => rows.map((row) => numberOf(row.cells[column])));
  const isNumeric = numbers.map((cells) => cells.filter((cell) => !isNaN(cell)).length >= rows.length / 2);
  if (!isNumeric.slice(1).some(Boolean)) return;

  heads.forEach((head, column) => {
    if (!head.textContent.trim() || head.querySelector("a")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    const texts = rows.map((row) => row.cells[column].textContent.trim());
    const compare = (a, b) => {
      if (!isNumeric[column]) return texts[a].localeCompare(texts[b]);
      const [first, second] = [numbers[column][a], numbers[column][b]];
      if (isNaN(first) || isNaN(second)) return isNaN(first) - isNaN(second);
      return first - second;
    };
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending" }[head.ariaSort ?? "none"];
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      const order = rows.map((_, row) => row);
      if (next) order.sort(compare);
      if (next === "descending") {
        const known = (row) => !isNumeric[column] || !isNaN(numbers[column][row]);
        order.splice(0, order.length, ...order.filter(known).reverse(), ...order.filter((row) => !known(row)));
      }
      body.append(...order.map((row) => rows[row]));
    });
  });
}

document.querySelectorAll(".md-typeset table:not([class])").forEach(sortable);
