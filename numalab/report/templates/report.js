// Draws what report.html holds as JSON: each plot when it comes near the window, all of them before printing.
"use strict";
const PRINTED = {wide: 660, narrow: 318}; // CSS pixels on A4 or Letter with report.css's margins
const config = {displayModeBar: false, responsive: true};

function draw(plot) {
  if (plot.dataset.drawn) return;
  plot.dataset.drawn = "yes";
  const {data, layout} = JSON.parse(plot.nextElementSibling.textContent);
  // A finger that scrolls must not zoom.
  if (matchMedia("(pointer: fine)").matches) layout.dragmode = "zoom";
  Plotly.newPlot(plot, data, layout, config);
}

const plots = [...document.querySelectorAll(".plot")];
const watch = new IntersectionObserver((seen) => {
  for (const {target} of seen.filter((one) => one.isIntersecting)) {
    watch.unobserve(target);
    draw(target);
  }
}, {rootMargin: "800px"});
plots.forEach((plot) => watch.observe(plot));

addEventListener("beforeprint", () => {
  for (const plot of plots) {
    draw(plot);
    Plotly.relayout(plot, {width: plot.parentElement.classList.contains("wide") ? PRINTED.wide : PRINTED.narrow});
  }
});
addEventListener("afterprint", () => plots.forEach((plot) => Plotly.relayout(plot, {width: null, autosize: true})));
