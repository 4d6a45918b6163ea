"""The command line: options, help, files and exit codes."""
