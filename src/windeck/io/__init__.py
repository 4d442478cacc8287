"""Reading of files: the only code that opens, lists, maps or sizes them."""
