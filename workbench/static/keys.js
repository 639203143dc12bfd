// Jupyter Notebook 7 takes keys before they reach an element, so `d d` in a widget would delete its cell. It ignores those of a
// focused element with this attribute. JupyterLab needs none, because widgets keep their keys from it (keepKeys).
if ("notebook" in document.body.dataset)
  document.addEventListener("focusin", ({ target }) => {
    if (target.closest(".ewb-widget, .ewc")) target.setAttribute("data-lm-suppress-shortcuts", "true");
  });
