// Long tables of three columns or more get a field that filters their rows, and a heading that is clicked sorts them.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".md-content table:not([class])").forEach((table) => {
    const body = table.tBodies[0];
    if (!table.tHead || !body || body.rows.length < 10 || table.tHead.rows[0].cells.length < 3) return;
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "show only rows with these words";
    field.className = "table-filter";
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    table.before(field);
    [...table.tHead.rows[0].cells].forEach((cell, at) => {
      let sign = -1;
      cell.style.cursor = "pointer";
      cell.addEventListener("click", () => {
        const value = (row) => row.cells[at] ? row.cells[at].textContent.trim() : "";
        const number = (row) => parseFloat(value(row).replace(/,/g, ""));
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [number(a), number(b)];
          if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1; // what is missing comes last
          return sign * (isNaN(x) ? value(a).localeCompare(value(b)) : x - y);
        });
        body.append(...rows);
        sign = -sign;
      });
    });
  });
});
