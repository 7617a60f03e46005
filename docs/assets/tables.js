// A field above each long table that hides the rows without the words typed into it.
for (const table of document.querySelectorAll("article table")) {
  const rows = [...table.querySelectorAll("tbody tr")];
  if (rows.length < 20) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.className = "table-filter";
  field.placeholder = `Filter ${rows.length} rows`;
  field.setAttribute("aria-label", field.placeholder);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    rows.forEach((row, at) => (row.hidden = !words.every((word) => texts[at].includes(word))));
  });
  table.before(field);
}
