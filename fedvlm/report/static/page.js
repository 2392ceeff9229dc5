"use strict";
// Without this script every table is whole and in order; it adds sorting, filtering and copying.
(function () {
  function rank(cell) {
    var given = cell.getAttribute("data-value");
    var text = given === null ? cell.textContent.trim() : given;
    var number = text === "" ? NaN : Number(text);
    return { text: text, number: number, none: text === "" };
  }
  function compare(a, b) {
    if (!isNaN(a.number) && !isNaN(b.number)) return a.number - b.number;
    return a.text.localeCompare(b.text, "en", { numeric: true });
  }
  function sort(table, column, down) {
    var body = table.tBodies[0];
    var rows = Array.prototype.map.call(body.rows, function (row, at) {
      return { row: row, at: at, rank: rank(row.cells[column]) };
    });
    rows.sort(function (a, b) {
      if (a.rank.none !== b.rank.none) return a.rank.none ? 1 : -1; // unknown is last, both ways
      var order = a.rank.none ? 0 : compare(a.rank, b.rank);
      return (down ? -order : order) || a.at - b.at;
    });
    rows.forEach(function (one) { body.appendChild(one.row); });
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (head, at) {
      if (at === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) button.appendChild(head.firstChild);
      head.appendChild(button);
      button.addEventListener("click", function () {
        sort(table, column, head.getAttribute("aria-sort") === "ascending");
      });
    });
  });
  document.querySelectorAll("[data-filter]").forEach(function (box) {
    var input = box.querySelector("input");
    var count = box.querySelector("output");
    var rows = document.querySelectorAll("#" + box.getAttribute("data-filter") + " tbody tr");
    function apply() {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        if (!row.hidden) shown += 1;
      });
      count.textContent = shown + " of " + rows.length;
    }
    box.hidden = false;
    input.addEventListener("input", apply);
    apply();
  });
  document.querySelectorAll("[data-copy]").forEach(function (button) {
    var source = document.getElementById(button.getAttribute("data-copy"));
    button.hidden = false;
    button.addEventListener("click", function () {
      var said = function (word) { button.textContent = word; };
      var select = function () { // files opened from disk may have no clipboard
        var range = document.createRange();
        range.selectNodeContents(source);
        var selection = window.getSelection();
        selection.removeAllRanges();
        selection.addRange(range);
        said(document.execCommand && document.execCommand("copy") ? "copied" : "selected");
      };
      if (navigator.clipboard) {
        navigator.clipboard.writeText(source.textContent).then(function () { said("copied"); }, select);
      } else select();
    });
  });
})();
