"""A PostgreSQL of the machine's own, for what is said of backups."""

from postgresql_server import postgresql as postgresql
