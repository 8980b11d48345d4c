// Formulas are written in TeX and set by KaTeX, from this site alone.
document.addEventListener("DOMContentLoaded", () => {
  const displayed = [];
  for (const element of document.querySelectorAll(".arithmatex")) {
    const source = element.textContent.trim();
    const display = source.startsWith("\\[");
    katex.render(source.slice(2, -2), element, { displayMode: display, throwOnError: false });
    if (display) {
      displayed.push(element);
      continue;
    }
    // What follows a short formula without a space, such as a full stop, does not begin a line.
    const next = element.nextSibling;
    const close = next?.nodeType === Node.TEXT_NODE && next.data.match(/^[^\s]{1,3}(?=\s|$)/);
    if (close && element.offsetWidth < 100) {
      const both = document.createElement("span");
      both.className = "punctuated";
      element.replaceWith(both);
      both.append(element, close[0]);
      next.data = next.data.slice(close[0].length);
    }
  }
  // On a narrow screen a formula is set smaller rather than cut off, within limits; beyond them it scrolls.
  document.fonts.ready.then(() => {
    for (const element of displayed) {
      if (element.scrollWidth > element.clientWidth) {
        element.style.fontSize = `${Math.max(0.77, (0.95 * element.clientWidth) / element.scrollWidth)}em`;
      }
    }
  });
});
