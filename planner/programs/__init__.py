"""Training programs that a spec becomes: ordinary scripts, which a launcher starts on GPUs as well."""
