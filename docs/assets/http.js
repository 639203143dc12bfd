// Shows the OpenAPI document on the page of the HTTP reference, in the colours of the site.
const isDark = () =>
  getComputedStyle(document.body).getPropertyValue("color-scheme").trim() === "dark" ||
  document.body.dataset.mdColorScheme === "slate";
const applyColours = () => document.documentElement.classList.toggle("dark-mode", isDark());
new MutationObserver(applyColours).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
applyColours();
SwaggerUIBundle({
  dom_id: "#swagger-ui",
  spec: window.openapi,
  docExpansion: "none",
  defaultModelsExpandDepth: -1,
  deepLinking: true,
  filter: true,
  tagsSorter: "alpha",
  validatorUrl: null,
});
