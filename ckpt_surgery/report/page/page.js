"use strict";

const list = document.getElementById("models");
const models = [...list.children];
const filter = document.getElementById("filter");
const toggles = [...document.querySelectorAll(".toggle input")];
const shown = document.getElementById("shown");

function refresh() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const statuses = new Set(toggles.filter((toggle) => toggle.checked).map((toggle) => toggle.value));
  let count = 0;
  for (const model of models) {
    const wanted = statuses.has(model.dataset.status) && words.every((word) => model.dataset.find.includes(word));
    model.hidden = !wanted;
    count += wanted;
  }
  shown.value = `${count.toLocaleString("en")} of ${models.length.toLocaleString("en")}`;
  document.getElementById("nothing").hidden = count > 0;
}

function compare(key, a, b) {
  const [x, y] = [a.dataset[key], b.dataset[key]];
  if (x === "" || y === "") return (x === "") - (y === "");
  return key === "saved" ? x - y : x < y ? -1 : x > y ? 1 : 0;
}

/* A first click sorts upwards, a second downwards, a third brings back the order of the page. */
function sort(button) {
  const next = { undefined: "ascending", ascending: "descending" }[button.dataset.order];
  for (const other of document.querySelectorAll("[data-sort]")) delete other.dataset.order;
  const order = [...models];
  if (next) {
    const key = button.dataset.sort;
    const sign = next === "ascending" ? 1 : -1;
    button.dataset.order = next;
    order.sort((a, b) => (a.dataset[key] === "" || b.dataset[key] === "" ? 1 : sign) * compare(key, a, b));
  }
  list.append(...order);
}

function unfold(open) {
  for (const model of models) if (!model.hidden) model.open = open;
}

filter.addEventListener("input", refresh);
for (const toggle of toggles) toggle.addEventListener("change", refresh);
for (const button of document.querySelectorAll("[data-sort]")) button.addEventListener("click", () => sort(button));
for (const button of document.querySelectorAll(".causes button")) {
  button.addEventListener("click", () => {
    const wanted = button.dataset.find;
    filter.value = filter.value === wanted ? "" : wanted;
    refresh();
  });
}
document.getElementById("unfold").addEventListener("click", () => unfold(true));
document.getElementById("fold").addEventListener("click", () => unfold(false));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  }
});
refresh();
