// Bars that are all as long as each other, by the shares of their parts.

const BAR_HEIGHT = 14;
const ROW_HEIGHT = 38;

function sharesFigure(parent, shares) {
  const legend = new Map(shares.bars.flatMap(({ parts }) => parts.map(({ name, style }) => [name, style])));
  const body = figure(parent, shares, [...legend.entries()]);
  if (shares.bars.length) responsive(body, (width) => drawShares(shares, width));
  else body.append(html("p", {}, shares.empty));
}

function drawShares({ title, bars }, width) {
  const root = drawing(width, bars.length * ROW_HEIGHT, title);
  const lanes = bars.map((bar, row) => {
    const top = row * ROW_HEIGHT;
    const total = bar.parts.reduce((sum, part) => sum + part.count, 0);
    const spots = [];
    root.append(svg("text", { x: 0, y: top + 12 }, bar.name));
    let left = 0;
    for (const part of bar.parts.filter(({ count: own }) => own)) {
      const share = part.count / total;
      const box = { x: left * width, y: top + 17, width: share * width, height: BAR_HEIGHT };
      root.append(svg("rect", { ...box, class: "part", style: `fill:var(--${part.style.color})` }));
      const text = percent(100 * share, 0);
      if (box.width > 34)
        root.append(svg("text", { class: "part-text", x: box.x + box.width / 2, y: box.y + 11 }, text));
      spots.push(boxSpot(box, `${part.name}, ${bar.name}`, [["of the frontier", `${text} (${part.count})`], ...part.tips]));
      left += share;
    }
    return spots;
  });
  hover(root, lanes, inside(lanes.flat()));
  return root;
}
