"""Contents of the HTML page, and its template, style and scripts."""
