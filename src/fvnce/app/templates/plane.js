"use strict";
// Points that tell what they are: under the pointer, or with the arrow keys once the chart has the focus.
(() => {
  const svg = document.querySelector("svg[data-plane]");
  if (!svg) return;
  const items = JSON.parse(document.getElementById("plane-items").textContent);
  const said = document.getElementById("plane-said"), picture = document.getElementById("plane-picture");
  const points = [...svg.querySelectorAll("circle[data-i]")];
  let chosen = -1;
  const choose = position => {
    if (chosen >= 0) points[chosen].classList.remove("chosen");
    chosen = position;
    const point = points[position], i = +point.dataset.i;
    point.classList.add("chosen");
    said.textContent = items.text[i];
    if (items.sprite) {
      const s = items.sprite, scale = 64 / s.width;
      picture.hidden = false;
      picture.style.width = "64px";
      picture.style.height = `${s.height * scale}px`;
      picture.style.backgroundSize = `${s.across * 64}px auto`;
      picture.style.backgroundPosition = `${-(i % s.across) * 64}px ${-Math.floor(i / s.across) * s.height * scale}px`;
    }
  };
  svg.addEventListener("pointerover", event => {
    const position = points.indexOf(event.target);
    if (position >= 0) choose(position);
  });
  svg.addEventListener("keydown", event => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    choose((chosen + move + points.length) % points.length);
  });
})();
