"use strict";
// The paper's family of scoring rules, as fvnce.PowerRule has it:
//   f1 = ((r+β)^α − 1)/α,   f0 = β f1 − ((r+β)^(1+α) − β)/(1+α),   r = e^Δ,
// each continued along its tangent above Δ = T/α and Δ = T/(1+α).
const fvnceRule = (() => {
  const softLog = (d, beta) => { // log(r + β) without overflow
    if (beta === 0) return d;
    const b = Math.log(beta), high = Math.max(d, b);
    return high + Math.log1p(Math.exp(-Math.abs(d - b)));
  };
  return (alpha, beta, clip) => {
    const value1 = d => { const u = softLog(d, beta); return alpha === 0 ? u : Math.expm1(alpha * u) / alpha; };
    const slope1 = d => Math.exp(d + (alpha - 1) * softLog(d, beta));
    const value0 = d => {
      const power = Math.exp((1 + alpha) * softLog(d, beta));
      return beta === 0 ? -power / (1 + alpha) : beta * value1(d) - (power - beta) / (1 + alpha);
    };
    const slope0 = d => -Math.exp(d) * slope1(d);
    const above1 = clip === null || alpha <= 0 ? Infinity : clip / alpha;
    const above0 = clip === null ? Infinity : clip / (1 + alpha);
    const along = (d, t, value, slope) => d > t ? value(t) + slope(t) * (d - t) : value(d);
    const f1 = d => along(d, above1, value1, slope1), f0 = d => along(d, above0, value0, slope0);
    const G = mu => { const d = Math.log(mu) - Math.log1p(-mu); return mu * f1(d) + (1 - mu) * f0(d); };
    // With φ = df1/dΔ of the unclipped rule: f1 is concave in r where (log φ)' ≤ 1, f0 where (log φ)' ≥ 0.
    const rates = [];
    for (let d = -30; d <= 30; d += 0.25)
      rates.push(1 + (alpha - 1) * (beta === 0 ? 1 : 1 / (1 + Math.exp(Math.log(beta) - d))));
    const f1Concave = Math.max(...rates) <= 1 + 1e-9, f0Concave = Math.min(...rates) >= -1e-9;
    const holds = f1Concave && f0Concave;
    return { f1, f0, G, f1Concave, f0Concave, holds, validBelow: holds ? Math.min(above1, above0) : -Infinity };
  };
})();

(() => {
  const root = document.getElementById("explorer");
  if (!root) return;
  const W = 440, H = 270, L = 54, R = 12, T = 30, B = 44, NS = "http://www.w3.org/2000/svg";
  const input = name => root.querySelector(`[name=${name}]`);
  const steps = (low, high, n) => Array.from({ length: n + 1 }, (_, i) => low + (high - low) * i / n);
  const panels = [
    { id: "pair", x: steps(0.01, 4, 160), xs: [0, 4], ys: [-6, 4], curves: rule => [
      r => rule.f1(Math.log(r)), r => rule.f0(Math.log(r))] },
    { id: "losses", x: steps(-6, 6, 160), xs: [-6, 6], ys: [-4, 10], curves: rule => [d => -rule.f1(d), d => -rule.f0(d)] },
    { id: "generator", x: steps(0.005, 0.995, 160), xs: [0, 1], ys: [-2, 3], curves: rule => [mu => rule.G(mu)] },
  ];
  const make = (parent, name, attributes, text) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return parent.appendChild(node);
  };
  for (const panel of panels) {
    const svg = root.querySelector(`#x-${panel.id}`);
    panel.px = v => L + (v - panel.xs[0]) / (panel.xs[1] - panel.xs[0]) * (W - L - R);
    panel.py = v => H - B - (v - panel.ys[0]) / (panel.ys[1] - panel.ys[0]) * (H - T - B);
    const stride = span => span <= 1 ? 0.2 : span <= 5 ? 1 : 2;
    for (let v = panel.xs[0]; v <= panel.xs[1] + 1e-9; v += stride(panel.xs[1] - panel.xs[0])) {
      make(svg, "line", { class: "grid", x1: panel.px(v), x2: panel.px(v), y1: T, y2: H - B });
      make(svg, "text", { class: "soft", x: panel.px(v), y: H - B + 16, "text-anchor": "middle" }, +v.toFixed(2));
    }
    for (let v = panel.ys[0]; v <= panel.ys[1] + 1e-9; v += stride(panel.ys[1] - panel.ys[0])) {
      make(svg, "line", { class: "grid", x1: L, x2: W - R, y1: panel.py(v), y2: panel.py(v) });
      make(svg, "text", { class: "soft", x: L - 6, y: panel.py(v) + 4, "text-anchor": "end" }, +v.toFixed(2));
    }
    make(svg, "text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle" }, svg.dataset.x);
    const names = svg.dataset.curves.split("|");
    panel.mark = make(svg, "line", { class: "mark", y1: T, y2: H - B });
    panel.paths = names.map((name, i) => {
      const dash = i ? "7 4" : "none", left = L + 110 * i;
      make(svg, "path", { class: `s${i}`, d: `M${left} 14L${left + 24} 14`, "stroke-dasharray": dash });
      make(svg, "text", { x: left + 29, y: 18 }, name);
      return make(svg, "path", { class: `s${i}`, "stroke-dasharray": dash });
    });
  }
  const trace = (panel, f) => {
    let text = "", inside = false;
    for (const v of panel.x) {
      const y = f(v), low = panel.ys[0], high = panel.ys[1];
      const seen = Number.isFinite(y) && y >= low && y <= high;
      if (seen) text += `${inside ? "L" : "M"}${panel.px(v).toFixed(2)} ${panel.py(y).toFixed(2)}`;
      inside = seen;
    }
    return text || "M0 0";
  };
  const show = v => String(+v.toFixed(3));
  const outputs = texts => ["alpha", "beta", "clip"].forEach((name, i) =>
    root.querySelector(`#x-${name}-out`).textContent = texts[i]);
  // Beyond this line the clipped rule breaks its laws.
  const marks = (validBelow, clipped) => panels.forEach(panel => {
    const v = { pair: Math.exp(validBelow), losses: validBelow, generator: 1 / (1 + Math.exp(-validBelow)) }[panel.id];
    const visible = clipped && v > panel.xs[0] && v < panel.xs[1];
    panel.mark.setAttribute("visibility", visible ? "visible" : "hidden");
    if (visible) { panel.mark.setAttribute("x1", panel.px(v)); panel.mark.setAttribute("x2", panel.px(v)); }
  });
  const say = (text, holds, validBelow) => {
    const verdict = root.querySelector("#x-verdict");
    verdict.textContent = text;
    verdict.dataset.holds = holds;
    verdict.dataset.validBelow = validBelow;
  };
  const given = JSON.parse(document.getElementById("x-given").textContent);
  // The rule that the page was made for, by numbers of the library: it may be a sum, which no slider can be set to.
  const drawGiven = () => {
    outputs(given.shown);
    for (const panel of panels)
      given[panel.id].forEach((values, i) => panel.paths[i].setAttribute("d",
        trace(panel, x => { const y = values[panel.x.indexOf(x)]; return y === null ? NaN : y; })));
    marks(given.validBelow, given.holds && given.validBelow !== null);
    say(given.verdict, given.holds, given.validBelow);
  };
  const draw = () => {
    const alpha = +input("alpha").value, beta = +input("beta").value;
    const clip = input("clipped").checked ? +input("clip").value : null;
    input("clip").disabled = clip === null;
    const rule = fvnceRule(alpha, beta, clip);
    outputs([show(alpha), show(beta), clip === null ? "none" : show(clip)]);
    for (const panel of panels)
      panel.curves(rule).forEach((f, i) => panel.paths[i].setAttribute("d", trace(panel, f)));
    marks(rule.validBelow, rule.holds && clip !== null);
    const name = `(α, β) = (${show(alpha)}, ${show(beta)})`;
    say(rule.holds
      ? `${name} has the double-ELBO property: f1 and f0 are both concave in r, so both terms have a lower bound`
        + (clip === null ? "." : `, as long as Δ < T/(1+α) = ${show(rule.validBelow)}; above it the clip breaks the laws.`)
      : `${name} does not have the double-ELBO property: ${rule.f1Concave ? "f0" : "f1"} is not concave in r, so `
        + `the ${rule.f1Concave ? "noise" : "data"} term has no lower bound.`, rule.holds, rule.validBelow);
  };
  root.addEventListener("input", draw);
  const again = document.getElementById("x-again"), start = ["alpha", "beta", "clip"].map(name => input(name).value);
  const clipped = input("clipped").checked;
  again.textContent = given.name;
  again.addEventListener("click", () => {
    ["alpha", "beta", "clip"].forEach((name, i) => input(name).value = start[i]);
    input("clipped").checked = clipped;
    input("clip").disabled = !clipped;
    drawGiven();
  });
  root.addEventListener("click", event => {
    const values = event.target.dataset.rule;
    if (!values) return;
    const [alpha, beta] = values.split(",").map(Number);
    input("alpha").value = alpha;
    input("beta").value = beta;
    draw();
  });
  input("clip").disabled = !clipped;
  drawGiven();
})();
