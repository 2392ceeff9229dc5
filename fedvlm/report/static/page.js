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
        var now = head.getAttribute("aria-sort");
        var first = head.getAttribute("data-first") || (head.className === "number" ? "descending" : "ascending");
        sort(table, column, now ? now === "ascending" : first === "descending"); // the best first
      });
    });
  });
  document.querySelectorAll("[data-filter]").forEach(function (box) {
    var input = box.querySelector("input");
    var count = box.querySelector("output");
    var rows = document.querySelectorAll("#" + box.getAttribute("data-filter") + " tbody tr");
    function apply() {
      var words = input.value.toLowerCase().match(/"[^"]*"|\S+/g) || [];
      var shown = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        var cells = Array.prototype.map.call(row.cells, function (one) { return '"' + one.textContent.toLowerCase() + '"'; });
        row.hidden = !words.every(function (word) { // "in quotes": a whole cell
          return word.length > 1 && word[0] === '"' ? cells.indexOf(word) >= 0 : text.indexOf(word) >= 0;
        });
        if (!row.hidden) shown += 1;
      });
      count.textContent = shown + " of " + rows.length;
    }
    box.hidden = false;
    input.addEventListener("input", apply);
    apply();
    if (box.getAttribute("data-filter") === "run-table") {
      document.querySelectorAll("a[data-words]").forEach(function (link) { // a cell shows its runs
        link.addEventListener("click", function () {
          input.value = link.getAttribute("data-words");
          apply();
        });
      });
    }
  });
  window.addEventListener("beforeprint", function () { // on paper nothing can be opened
    document.querySelectorAll("details:not([open])").forEach(function (one) {
      one.open = true;
      window.addEventListener("afterprint", function () { one.open = false; }, { once: true });
    });
  });
  var marked = document.querySelectorAll("[data-method]");
  function of(name) {
    return Array.prototype.filter.call(marked, function (one) { return one.getAttribute("data-method") === name; });
  }
  document.querySelectorAll("[data-switches]").forEach(function (box) {
    var all = box.querySelector("[data-all]");
    var inputs = box.querySelectorAll("input");
    function apply() {
      var off = 0;
      inputs.forEach(function (input) {
        if (!input.checked) off += 1;
        of(input.value).forEach(function (one) {
          if (one.tagName !== "LABEL") one.toggleAttribute("hidden", !input.checked);
        });
      });
      all.hidden = !off;
    }
    inputs.forEach(function (input) {
      input.disabled = false;
      input.addEventListener("change", apply);
    });
    all.addEventListener("click", function () {
      inputs.forEach(function (input) { input.checked = true; });
      apply();
    });
  });
  marked.forEach(function (one) {
    var name = one.getAttribute("data-method");
    one.addEventListener("pointerenter", function () {
      document.body.classList.add("pointing");
      of(name).forEach(function (same) { same.classList.add("lit"); });
    });
    one.addEventListener("pointerleave", function () {
      document.body.classList.remove("pointing");
      of(name).forEach(function (same) { same.classList.remove("lit"); });
    });
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
