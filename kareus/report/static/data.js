// The data block of the page; everything below draws from it. Tables come column by column.

const data = JSON.parse(document.getElementById("data").textContent);

function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
}

for (const line of data.iteration) line.plans = rowsOf(line.plans);
for (const search of data.search) {
  search.candidates = rowsOf(search.candidates);
  search.rounds = rowsOf(search.rounds);
}
for (const { methods } of data.microbatch) {
  for (const line of methods) line.points = rowsOf(line.points);
}
