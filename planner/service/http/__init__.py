"""The HTTP interface: its endpoints, what they read, what they answer, and its OpenAPI description."""
