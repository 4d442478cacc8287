"""From a store that is opened to the chunks, rows and numbers that are asked for."""
