"""`windeck view URL`: looks into checkpoints from the terminal.

`app` has the commands and their options; what they do stands beside it, one idea a file. `session`
opens stores and turns errors into exit codes, `output` prints. The library imports none of it.
"""
