"""The site of the documentation: hooks of MkDocs, and the pages that are generated from the code and the notebooks."""
