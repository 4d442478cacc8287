"""The command line: `windeck demo` and `windeck view URL`.

`main` is the entry point. Each command has a module with `add_parser`, which is imported when the
command is called. `session` opens stores and turns errors into exit codes, `catalog` reads
manifests, `output` prints.
"""
