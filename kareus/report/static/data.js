// The data block of the page; everything below draws from it. Tables come column by column.

const data = JSON.parse(document.getElementById("data").textContent);

function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
}
