"""How things look in a notebook: values of the language in, HTML and SVG out. No rules live here."""
