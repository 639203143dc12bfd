"""HTML, SVG and text for notebooks, from values of the language. No rules live here."""
