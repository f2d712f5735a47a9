"""One module a subcommand of `ctxbench`: HELP, add_arguments(parser), run(args) -> exit code."""
