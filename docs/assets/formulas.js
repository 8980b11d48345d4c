// Formulas are written in TeX and set by KaTeX, from this site alone.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const source = element.textContent.trim();
    const display = source.startsWith("\\[");
    katex.render(source.slice(2, -2), element, { displayMode: display, throwOnError: false });
    // What follows a formula without a space, such as a full stop, does not begin a line.
    const next = element.nextSibling;
    const close = !display && element.offsetWidth < 100 && next?.nodeType === Node.TEXT_NODE && next.data.match(/^[^\s]{1,3}(?=\s|$)/);
    if (close) {
      const both = document.createElement("span");
      both.className = "punctuated";
      element.replaceWith(both);
      both.append(element, close[0]);
      next.data = next.data.slice(close[0].length);
    }
  }
});
